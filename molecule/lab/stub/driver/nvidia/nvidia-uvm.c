// SPDX-License-Identifier: MIT OR GPL-2.0
/* Stub "nvidia-uvm" module: its own dynamic char major and UVM_INITIALIZE. */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "nvidia-stub.h"

#define UVM_MINORS 2 /* 0 nvidia-uvm, 1 nvidia-uvm-tools */
#define UVM_INITIALIZE 0x30000001 /* the real driver's plain number */
#define UVM_STATUS_OK 0

struct uvm_initialize {
	u64 flags;
	u32 status;
};

static bool uvm_disable_hmm;
module_param(uvm_disable_hmm, bool, 0444);
MODULE_PARM_DESC(uvm_disable_hmm, "Accepted and shown; without effect in the stub");

static struct cdev uvm_cdev;
static dev_t uvm_dev;

static int uvm_open(struct inode *inode, struct file *file)
{
	return nvidia_stub_gpu_count() ? 0 : -EIO;
}

static long uvm_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct uvm_initialize params;

	if (cmd != UVM_INITIALIZE)
		return -EINVAL;
	if (copy_from_user(&params, (void __user *)arg, sizeof(params)))
		return -EFAULT;
	params.status = UVM_STATUS_OK;
	if (copy_to_user((void __user *)arg, &params, sizeof(params)))
		return -EFAULT;
	return 0;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open,
	.unlocked_ioctl = uvm_ioctl,
	.compat_ioctl = uvm_ioctl,
};

static int __init uvm_init(void)
{
	int rc = alloc_chrdev_region(&uvm_dev, 0, UVM_MINORS, "nvidia-uvm");

	if (rc)
		return rc;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	rc = cdev_add(&uvm_cdev, uvm_dev, UVM_MINORS);
	if (rc)
		unregister_chrdev_region(uvm_dev, UVM_MINORS);
	return rc;
}

static void __exit uvm_exit(void)
{
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_dev, UVM_MINORS);
}

module_init(uvm_init);
module_exit(uvm_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STUB_VERSION);
MODULE_DESCRIPTION("Stub of nvidia-uvm for gpuhost's lab");
