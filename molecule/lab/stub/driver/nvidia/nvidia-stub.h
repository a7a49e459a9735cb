/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Stub of the NVIDIA kernel driver for gpuhost's lab machines: our own code,
 * which only shows the outside of the real driver (device numbers, nodes,
 * /proc files, sysfs versions, a few ioctls). It drives no hardware.
 */
#ifndef GPUHOST_NVIDIA_STUB_H
#define GPUHOST_NVIDIA_STUB_H

#include <linux/types.h>

#define STUB_VERSION "580.95.05"

/* Real numbers of the real driver: clients and cgroup rules know them. */
#define STUB_MAJOR 195
#define STUB_MINOR_MODESET 254
#define STUB_MINOR_CTL 255

/* The nvidia module counts the GPUs that it drives. */
int nvidia_stub_gpu_count(void);

#endif
