/* SPDX-License-Identifier: MIT */
/* Shared by the stub user space of gpuhost's lab: our own code, no GPU behind it. */
#ifndef GPUHOST_STUB_H
#define GPUHOST_STUB_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define STUB_VERSION "580.95.05"
#define STUB_GPU_NAME "NVIDIA RTX PRO 6000 Blackwell Server Edition"
#define STUB_MAX_GPUS 32

struct version_query {
	uint32_t cmd;
	uint32_t reply;
	char version[64];
};
#define ESC_CHECK_VERSION_STR _IOWR('F', 210, struct version_query)

struct uvm_initialize {
	uint64_t flags;
	uint32_t status;
};
#define UVM_INITIALIZE 0x30000001

static inline int stub_open_gpu(int minor)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* Asks the kernel module for its version; 0 when it answered. */
static inline int stub_version(int ctl, char *text, size_t size)
{
	struct version_query query = { .cmd = '2' };

	if (ioctl(ctl, ESC_CHECK_VERSION_STR, &query) || query.reply != 1)
		return -1;
	query.version[sizeof(query.version) - 1] = 0;
	snprintf(text, size, "%s", query.version);
	return 0;
}

#endif
