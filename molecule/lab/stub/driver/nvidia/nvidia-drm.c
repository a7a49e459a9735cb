// SPDX-License-Identifier: MIT OR GPL-2.0
/* Stub "nvidia-drm" module: there to be built, loaded and depended upon. */
#include <linux/module.h>

#include "nvidia-stub.h"

int nvidia_stub_modeset_gpu_count(void);

static bool modeset;
module_param(modeset, bool, 0444);
MODULE_PARM_DESC(modeset, "Accepted and shown; without effect in the stub");

static int __init drm_init(void)
{
	pr_info("nvidia-drm stub: %d GPUs\n", nvidia_stub_modeset_gpu_count());
	return 0;
}

static void __exit drm_exit(void)
{
}

module_init(drm_init);
module_exit(drm_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STUB_VERSION);
MODULE_DESCRIPTION("Stub of nvidia-drm for gpuhost's lab");
