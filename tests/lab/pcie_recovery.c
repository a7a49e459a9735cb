// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Tells user space that a device is back from a PCIe error, as the kernel's
 * AER code does it (drivers/pci/pci-driver.c, pci_uevent_ers, which modules
 * can't call): a change event of the device with these two variables. The
 * lab's ports have no AER, and a variable that is written to a uevent file
 * arrives as SYNTH_ARG_..., so nothing outside the kernel can say this.
 */
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/pci.h>

static char *address;
module_param(address, charp, 0);
MODULE_PARM_DESC(address, "Full address of the device, such as 0001:01:00.0");

static int __init recovery_init(void)
{
	char *variables[] = { "ERROR_EVENT=SUCCESSFUL_RECOVERY", "DEVICE_ONLINE=1", NULL };
	unsigned int domain, bus, slot, func;
	struct pci_dev *dev;
	int rc;

	if (!address || sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &func) != 4)
		return -EINVAL;
	dev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, func));
	if (!dev)
		return -ENODEV;
	rc = kobject_uevent_env(&dev->dev.kobj, KOBJ_CHANGE, variables);
	pci_dev_put(dev);
	return rc;
}

static void __exit recovery_exit(void)
{
}

module_init(recovery_init);
module_exit(recovery_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("One AER recovery event for gpuhost's lab");
