// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Stub "nvidia" module: char major 195 (nvidia, nvidiactl), the dynamic major
 * nvidia-caps, /proc/driver/nvidia and a PCI driver that sets MaxReadReq as
 * the real one does at each load.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/ioctl.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "nvidia-stub.h"

#define MAX_GPUS 32
#define CAPS_MINORS 65536 /* the range that the real nvidia-caps takes */
#define READ_REQUEST_BYTES 512 /* the real driver's choice at probe */
#define REPLY_RECOGNIZED 1

struct version_query {
	u32 cmd;
	u32 reply;
	char version[64];
};
#define ESC_CHECK_VERSION_STR _IOWR('F', 210, struct version_query)

static struct pci_dev *gpus[MAX_GPUS];
static DEFINE_MUTEX(gpus_lock);
static struct cdev gpu_cdev, ctl_cdev, caps_cdev;
static dev_t caps_dev;
static struct proc_dir_entry *proc_root, *proc_gpus;
static struct proc_dir_entry *proc_of[MAX_GPUS];

int nvidia_stub_gpu_count(void)
{
	int i, n = 0;

	mutex_lock(&gpus_lock);
	for (i = 0; i < MAX_GPUS; i++)
		n += gpus[i] ? 1 : 0;
	mutex_unlock(&gpus_lock);
	return n;
}
EXPORT_SYMBOL(nvidia_stub_gpu_count);

static int nvidia_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);

	if (minor == STUB_MINOR_CTL)
		return 0;
	if (minor >= MAX_GPUS || !gpus[minor])
		return -ENODEV;
	return 0;
}

static long nvidia_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct version_query query;

	if (cmd != ESC_CHECK_VERSION_STR)
		return -EINVAL;
	if (copy_from_user(&query, (void __user *)arg, sizeof(query)))
		return -EFAULT;
	memset(query.version, 0, sizeof(query.version));
	strscpy(query.version, STUB_VERSION, sizeof(query.version));
	query.reply = REPLY_RECOGNIZED;
	if (copy_to_user((void __user *)arg, &query, sizeof(query)))
		return -EFAULT;
	return 0;
}

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.open = nvidia_open,
	.unlocked_ioctl = nvidia_ioctl,
	.compat_ioctl = nvidia_ioctl,
};

static const struct file_operations caps_fops = { .owner = THIS_MODULE };

static int version_show(struct seq_file *seq, void *unused)
{
	seq_puts(seq, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
		      STUB_VERSION "  Release Build  (gpuhost-lab-stub)\n"
		      "GCC version:  gcc version " __VERSION__ "\n");
	return 0;
}

/* /dev/nvidia-caps/nvidia-cap1 and 2: the two that exist without any MIG partition. */
static int capability_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "DeviceFileMinor: %ld\n", (long)seq->private);
	seq_puts(seq, "DeviceFileMode: 256\nDeviceFileModify: 1\n");
	return 0;
}

static void create_proc(void)
{
	struct proc_dir_entry *mig;

	proc_root = proc_mkdir("driver/nvidia", NULL);
	proc_gpus = proc_mkdir("gpus", proc_root);
	proc_create_single("version", 0444, proc_root, version_show);
	mig = proc_mkdir("mig", proc_mkdir("capabilities", proc_root));
	proc_create_single_data("config", 0444, mig, capability_show, (void *)1L);
	proc_create_single_data("monitor", 0444, mig, capability_show, (void *)2L);
}

static int information_show(struct seq_file *seq, void *unused)
{
	int minor = (int)(long)seq->private;
	struct pci_dev *dev = gpus[minor];

	if (!dev)
		return -ENODEV;
	seq_puts(seq, "Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition\n");
	seq_printf(seq, "IRQ:   \t\t %u\n", dev->irq);
	seq_printf(seq, "GPU UUID: \t GPU-00000000-0000-4000-8000-%012x\n", minor);
	seq_puts(seq, "Bus Type: \t PCIe\n");
	seq_printf(seq, "Bus Location: \t %s\n", pci_name(dev));
	seq_printf(seq, "Device Minor: \t %d\n", minor);
	return 0;
}

static int gpu_probe(struct pci_dev *dev, const struct pci_device_id *id)
{
	int minor, rc = -ENOSPC;

	mutex_lock(&gpus_lock);
	for (minor = 0; minor < MAX_GPUS; minor++) {
		if (gpus[minor])
			continue;
		gpus[minor] = dev;
		rc = 0;
		break;
	}
	mutex_unlock(&gpus_lock);
	if (rc)
		return rc;
	pci_set_drvdata(dev, (void *)(long)minor);
	if (pcie_set_readrq(dev, READ_REQUEST_BYTES))
		pci_warn(dev, "nvidia stub: MaxReadReq not set\n");
	proc_of[minor] = proc_mkdir(pci_name(dev), proc_gpus);
	if (proc_of[minor])
		proc_create_single_data("information", 0444, proc_of[minor],
					information_show, (void *)(long)minor);
	return 0;
}

static void gpu_remove(struct pci_dev *dev)
{
	int minor = (int)(long)pci_get_drvdata(dev);

	proc_remove(proc_of[minor]);
	mutex_lock(&gpus_lock);
	proc_of[minor] = NULL;
	gpus[minor] = NULL;
	mutex_unlock(&gpus_lock);
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(0x10de, 0x2bb5) },
	{}
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

static struct pci_driver gpu_driver = {
	.name = "nvidia",
	.id_table = gpu_ids,
	.probe = gpu_probe,
	.remove = gpu_remove,
};

static int add_cdev(struct cdev *cdev, const struct file_operations *fops,
		    dev_t dev, unsigned int count)
{
	cdev_init(cdev, fops);
	cdev->owner = THIS_MODULE;
	return cdev_add(cdev, dev, count);
}

static void remove_proc(void)
{
	proc_remove(proc_root);
	proc_root = NULL;
}

static int __init nvidia_init(void)
{
	int rc;

	rc = register_chrdev_region(MKDEV(STUB_MAJOR, 0), STUB_MINOR_MODESET, "nvidia");
	if (rc)
		return rc;
	rc = register_chrdev_region(MKDEV(STUB_MAJOR, STUB_MINOR_CTL), 1, "nvidiactl");
	if (rc)
		goto free_gpu;
	rc = alloc_chrdev_region(&caps_dev, 0, CAPS_MINORS, "nvidia-caps");
	if (rc)
		goto free_ctl;
	rc = add_cdev(&gpu_cdev, &nvidia_fops, MKDEV(STUB_MAJOR, 0), STUB_MINOR_MODESET);
	if (rc)
		goto free_caps;
	rc = add_cdev(&ctl_cdev, &nvidia_fops, MKDEV(STUB_MAJOR, STUB_MINOR_CTL), 1);
	if (rc)
		goto del_gpu;
	rc = add_cdev(&caps_cdev, &caps_fops, caps_dev, CAPS_MINORS);
	if (rc)
		goto del_ctl;
	create_proc();
	rc = pci_register_driver(&gpu_driver);
	if (!rc)
		return 0;
	remove_proc();
	cdev_del(&caps_cdev);
del_ctl:
	cdev_del(&ctl_cdev);
del_gpu:
	cdev_del(&gpu_cdev);
free_caps:
	unregister_chrdev_region(caps_dev, CAPS_MINORS);
free_ctl:
	unregister_chrdev_region(MKDEV(STUB_MAJOR, STUB_MINOR_CTL), 1);
free_gpu:
	unregister_chrdev_region(MKDEV(STUB_MAJOR, 0), STUB_MINOR_MODESET);
	return rc;
}

static void __exit nvidia_exit(void)
{
	pci_unregister_driver(&gpu_driver);
	remove_proc();
	cdev_del(&caps_cdev);
	cdev_del(&ctl_cdev);
	cdev_del(&gpu_cdev);
	unregister_chrdev_region(caps_dev, CAPS_MINORS);
	unregister_chrdev_region(MKDEV(STUB_MAJOR, STUB_MINOR_CTL), 1);
	unregister_chrdev_region(MKDEV(STUB_MAJOR, 0), STUB_MINOR_MODESET);
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STUB_VERSION);
MODULE_DESCRIPTION("Stub of the NVIDIA driver for gpuhost's lab");
