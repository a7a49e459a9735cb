// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The lab's own module, in the stub driver's package because each further
 * package costs a minute of DKMS under emulation. It does two things.
 *
 * GPUs: a PCIe host bridge in software, in PCI domain 0001, with N root ports
 * and one GPU endpoint behind each. Its configuration space is memory with
 * write masks, so MaxReadReq is really kept, and really lost with a reboot,
 * which QEMU's own devices do not offer.
 *
 * Slots: takes char majors before the stub driver can, first the given ones,
 * then a number of dynamic ones. On the new kernel it gets the majors that
 * nvidia-uvm and nvidia-caps had on the old one; so these move, as in a real
 * upgrade, and their old numbers belong to another driver.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/ioport.h>
#include <linux/module.h>
#include <linux/pci.h>

#define DOMAIN 1
#define MAX_GPUS 16
#define CFG_BYTES 4096
#define CAP_OFFSET 0x40 /* the PCI Express capability, alone in its list */

/* 32 GT/s x16, as the cards have; Link Status says the same plus "active". */
#define LINK_CAP 0x00000105
#define LINK_STATUS 0x2105
/* MaxReadReq 512, MaxPayload 128, extended tags, relaxed ordering. */
#define DEVICE_CONTROL 0x2110

static unsigned int gpus = 2;
module_param(gpus, uint, 0444);
MODULE_PARM_DESC(gpus, "Number of GPUs to show");
static unsigned int readonly_gpus;
module_param(readonly_gpus, uint, 0444);
MODULE_PARM_DESC(readonly_gpus, "Bit mask of GPUs whose MaxReadReq cannot be written");
static unsigned int readonly_ports;
module_param(readonly_ports, uint, 0444);
MODULE_PARM_DESC(readonly_ports, "The same of root ports");

struct function {
	u8 value[CFG_BYTES];
	u8 writable[CFG_BYTES];
};

static struct function *ports, *endpoints;
static struct pci_bus *root_bus;
static struct pci_sysdata sysdata = { .domain = DOMAIN, .node = NUMA_NO_NODE };
static struct resource bus_numbers = {
	.name = "gpuhost-lab bus",
	.start = 0,
	.end = MAX_GPUS,
	.flags = IORESOURCE_BUS,
};

static void put16(u8 *space, int at, u16 value)
{
	space[at] = value;
	space[at + 1] = value >> 8;
}

static void put32(u8 *space, int at, u32 value)
{
	put16(space, at, value);
	put16(space, at + 2, value >> 16);
}

static struct function *find(struct pci_bus *bus, unsigned int devfn)
{
	unsigned int slot = PCI_SLOT(devfn);

	if (PCI_FUNC(devfn))
		return NULL;
	if (bus->number == 0)
		return slot >= 1 && slot <= gpus ? &ports[slot - 1] : NULL;
	if (bus->number <= gpus && slot == 0)
		return &endpoints[bus->number - 1];
	return NULL;
}

static int cfg_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct function *f = find(bus, devfn);
	int i;

	*value = ~0u;
	if (!f || where + size > CFG_BYTES)
		return PCIBIOS_DEVICE_NOT_FOUND;
	*value = 0;
	for (i = 0; i < size; i++)
		*value |= (u32)f->value[where + i] << (8 * i);
	return PCIBIOS_SUCCESSFUL;
}

static int cfg_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct function *f = find(bus, devfn);
	int i;

	if (!f || where + size > CFG_BYTES)
		return PCIBIOS_DEVICE_NOT_FOUND;
	for (i = 0; i < size; i++) {
		u8 mask = f->writable[where + i];
		u8 byte = value >> (8 * i);

		f->value[where + i] = (f->value[where + i] & ~mask) | (byte & mask);
	}
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops cfg_ops = { .read = cfg_read, .write = cfg_write };

static void fill_common(struct function *f, u16 vendor, u16 device, u32 class, u16 express)
{
	u8 *v = f->value;

	put16(v, PCI_VENDOR_ID, vendor);
	put16(v, PCI_DEVICE_ID, device);
	put32(v, PCI_CLASS_REVISION, class << 8 | 0xa1);
	put16(v, PCI_STATUS, PCI_STATUS_CAP_LIST);
	put16(f->writable, PCI_COMMAND, 0x0547);
	v[PCI_CAPABILITY_LIST] = CAP_OFFSET;
	v[CAP_OFFSET] = PCI_CAP_ID_EXP;
	put16(v, CAP_OFFSET + PCI_EXP_FLAGS, express);
	put32(v, CAP_OFFSET + PCI_EXP_DEVCAP, 0x8020 | 0x1); /* MaxPayload up to 256 */
	put16(v, CAP_OFFSET + PCI_EXP_DEVCTL, DEVICE_CONTROL);
	put16(f->writable, CAP_OFFSET + PCI_EXP_DEVCTL, 0x7fff);
	put32(v, CAP_OFFSET + PCI_EXP_LNKCAP, LINK_CAP);
	put16(v, CAP_OFFSET + PCI_EXP_LNKSTA, LINK_STATUS);
	put16(f->writable, CAP_OFFSET + PCI_EXP_LNKCTL, 0x0fff);
	put32(v, CAP_OFFSET + PCI_EXP_LNKCAP2, 0x3e); /* 2.5 to 32 GT/s */
	put16(v, CAP_OFFSET + PCI_EXP_LNKCTL2, 0x5);
}

static void fill_port(struct function *f, unsigned int index)
{
	fill_common(f, 0x1022, 0x14ab, PCI_CLASS_BRIDGE_PCI << 8,
		    2 | PCI_EXP_TYPE_ROOT_PORT << 4 | PCI_EXP_FLAGS_SLOT);
	f->value[PCI_HEADER_TYPE] = PCI_HEADER_TYPE_BRIDGE;
	f->value[PCI_PRIMARY_BUS] = 0;
	f->value[PCI_SECONDARY_BUS] = index + 1;
	f->value[PCI_SUBORDINATE_BUS] = index + 1;
	put32(f->writable, PCI_PRIMARY_BUS, 0x00ffffff);
	put16(f->writable, PCI_BRIDGE_CONTROL, 0x0003);
	if (readonly_ports & BIT(index))
		put16(f->writable, CAP_OFFSET + PCI_EXP_DEVCTL, 0x0fff);
}

static void fill_endpoint(struct function *f, unsigned int index)
{
	fill_common(f, 0x10de, 0x2bb5, PCI_CLASS_DISPLAY_3D << 8, 2 | PCI_EXP_TYPE_ENDPOINT << 4);
	put16(f->value, PCI_SUBSYSTEM_VENDOR_ID, 0x10de);
	put16(f->value, PCI_SUBSYSTEM_ID, 0x204e);
	if (readonly_gpus & BIT(index))
		put16(f->writable, CAP_OFFSET + PCI_EXP_DEVCTL, 0x0fff);
}

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
		pr_warn("gpuhost_lab: major %d not taken: %d\n", major, rc);
		return;
	}
	cdev_init(&cdevs[taken_count], &slot_fops);
	if (cdev_add(&cdevs[taken_count], dev, 2)) {
		unregister_chrdev_region(dev, 2);
		return;
	}
	taken[taken_count++] = dev;
}

static void take_slots(void)
{
	int i;

	for (i = 0; i < majors_given; i++)
		if (majors[i] > 0)
			take(majors[i]);
	for (i = 0; i < slots && i < MAX_SLOTS; i++)
		take(0);
}

static void give_slots_back(void)
{
	while (taken_count--) {
		cdev_del(&cdevs[taken_count]);
		unregister_chrdev_region(taken[taken_count], 2);
	}
}

static void free_all(void)
{
	kvfree(ports);
	kvfree(endpoints);
}

static int __init lab_init(void)
{
	LIST_HEAD(resources);
	unsigned int i;

	gpus = min_t(unsigned int, gpus, MAX_GPUS);
	ports = kvcalloc(MAX_GPUS, sizeof(*ports), GFP_KERNEL);
	endpoints = kvcalloc(MAX_GPUS, sizeof(*endpoints), GFP_KERNEL);
	if (!ports || !endpoints) {
		free_all();
		return -ENOMEM;
	}
	for (i = 0; i < gpus; i++) {
		fill_port(&ports[i], i);
		fill_endpoint(&endpoints[i], i);
	}
	/* first: the GPUs' appearance makes udev load the driver */
	take_slots();
	pci_add_resource(&resources, &bus_numbers);
	pci_lock_rescan_remove();
	root_bus = pci_create_root_bus(NULL, 0, &cfg_ops, &sysdata, &resources);
	if (!root_bus) {
		pci_unlock_rescan_remove();
		pci_free_resource_list(&resources);
		give_slots_back();
		free_all();
		return -ENODEV;
	}
	pci_scan_child_bus(root_bus);
	pci_bus_add_devices(root_bus);
	pci_unlock_rescan_remove();
	return 0;
}

static void __exit lab_exit(void)
{
	give_slots_back();
	pci_lock_rescan_remove();
	pci_stop_root_bus(root_bus);
	pci_remove_root_bus(root_bus);
	pci_unlock_rescan_remove();
	free_all();
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("1.0");
MODULE_DESCRIPTION("Shows GPUs and takes char majors in gpuhost's lab");
