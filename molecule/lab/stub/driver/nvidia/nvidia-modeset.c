// SPDX-License-Identifier: MIT OR GPL-2.0
/* Stub "nvidia-modeset" module: node 195:254, nothing behind it. */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>

#include "nvidia-stub.h"

static struct cdev modeset_cdev;
static const struct file_operations modeset_fops = { .owner = THIS_MODULE };

/* nvidia-drm needs a symbol of this module, as the real one does. */
int nvidia_stub_modeset_gpu_count(void)
{
	return nvidia_stub_gpu_count();
}
EXPORT_SYMBOL(nvidia_stub_modeset_gpu_count);

static int __init modeset_init(void)
{
	dev_t dev = MKDEV(STUB_MAJOR, STUB_MINOR_MODESET);
	int rc = register_chrdev_region(dev, 1, "nvidia-modeset");

	if (rc)
		return rc;
	cdev_init(&modeset_cdev, &modeset_fops);
	modeset_cdev.owner = THIS_MODULE;
	rc = cdev_add(&modeset_cdev, dev, 1);
	if (rc)
		unregister_chrdev_region(dev, 1);
	return rc;
}

static void __exit modeset_exit(void)
{
	cdev_del(&modeset_cdev);
	unregister_chrdev_region(MKDEV(STUB_MAJOR, STUB_MINOR_MODESET), 1);
}

module_init(modeset_init);
module_exit(modeset_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STUB_VERSION);
MODULE_DESCRIPTION("Stub of nvidia-modeset for gpuhost's lab");
