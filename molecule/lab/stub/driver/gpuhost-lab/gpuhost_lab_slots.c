// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Takes char majors before the stub driver can: first the given ones, then a
 * number of dynamic ones. On the new kernel it gets the majors that nvidia-uvm
 * and nvidia-caps had on the old one; so these move, as in a real upgrade, and
 * their old numbers belong to another driver.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>

#define MAX_SLOTS 16

static int majors[MAX_SLOTS];
static int majors_given;
module_param_array(majors, int, &majors_given, 0444);
MODULE_PARM_DESC(majors, "Majors to take");
static int slots;
module_param(slots, int, 0444);
MODULE_PARM_DESC(slots, "Number of further dynamic majors to take");

static dev_t taken[2 * MAX_SLOTS];
static struct cdev cdevs[2 * MAX_SLOTS];
static int taken_count;
static const struct file_operations slot_fops = { .owner = THIS_MODULE };

static void take(int major)
{
	dev_t dev = MKDEV(major, 0);
	int rc;

	if (major)
		rc = register_chrdev_region(dev, 2, "gpuhost-lab-slot");
	else
		rc = alloc_chrdev_region(&dev, 0, 2, "gpuhost-lab-slot");
	if (rc) {
		pr_warn("gpuhost_lab_slots: major %d not taken: %d\n", major, rc);
		return;
	}
	cdev_init(&cdevs[taken_count], &slot_fops);
	if (cdev_add(&cdevs[taken_count], dev, 2)) {
		unregister_chrdev_region(dev, 2);
		return;
	}
	taken[taken_count++] = dev;
}

static int __init slots_init(void)
{
	int i;

	for (i = 0; i < majors_given; i++)
		if (majors[i] > 0)
			take(majors[i]);
	for (i = 0; i < slots && i < MAX_SLOTS; i++)
		take(0);
	return 0;
}

static void __exit slots_exit(void)
{
	while (taken_count--) {
		cdev_del(&cdevs[taken_count]);
		unregister_chrdev_region(taken[taken_count], 2);
	}
}

module_init(slots_init);
module_exit(slots_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0");
MODULE_DESCRIPTION("Takes char majors in gpuhost's lab");
