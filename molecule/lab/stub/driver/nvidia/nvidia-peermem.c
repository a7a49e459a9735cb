// SPDX-License-Identifier: MIT OR GPL-2.0
/* Stub "nvidia-peermem" module: there to be built, loaded and depended upon. */
#include <linux/module.h>

#include "nvidia-stub.h"

static int __init peermem_init(void)
{
	pr_info("nvidia-peermem stub: %d GPUs\n", nvidia_stub_gpu_count());
	return 0;
}

static void __exit peermem_exit(void)
{
}

module_init(peermem_init);
module_exit(peermem_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STUB_VERSION);
MODULE_DESCRIPTION("Stub of nvidia-peermem for gpuhost's lab");
