/* SPDX-License-Identifier: MIT */
/*
 * Stub libnvidia-ml.so.1: needs nvidiactl and the GPU nodes, not nvidia-uvm;
 * so it works while CUDA is blocked, as in reality. GPUHOST_STUB_NVML=NUMBER
 * is what nvmlInit gives instead of looking; GPUHOST_STUB_CUDA_FREE is the free
 * memory of every GPU, as in libcuda.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "stub.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NO_PERMISSION = 4, DRIVER_NOT_LOADED = 9 };

struct gpu {
	int minor;
};

static int ctl = -1;
static struct gpu gpus[STUB_MAX_GPUS];
static unsigned int gpu_count;

int nvmlInit_v2(void)
{
	const char *wish = getenv("GPUHOST_STUB_NVML");
	int minor;

	if (wish)
		return atoi(wish);
	if (ctl >= 0)
		return OK;
	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		return errno == EPERM || errno == EACCES ? NO_PERMISSION : DRIVER_NOT_LOADED;
	gpu_count = 0;
	for (minor = 0; minor < STUB_MAX_GPUS; minor++) {
		int fd = stub_open_gpu(minor);

		if (fd < 0)
			continue;
		gpus[gpu_count++].minor = minor;
		close(fd);
	}
	return OK;
}

int nvmlShutdown(void)
{
	if (ctl < 0)
		return UNINITIALIZED;
	close(ctl);
	ctl = -1;
	return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	if (ctl < 0)
		return UNINITIALIZED;
	return stub_version(ctl, version, length) ? DRIVER_NOT_LOADED : OK;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (ctl < 0)
		return UNINITIALIZED;
	*count = gpu_count;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **device)
{
	if (ctl < 0)
		return UNINITIALIZED;
	if (index >= gpu_count)
		return INVALID_ARGUMENT;
	*device = &gpus[index];
	return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, struct gpu **device)
{
	unsigned int i, domain, bus;

	if (ctl < 0)
		return UNINITIALIZED;
	if (sscanf(text, "%x:%x:", &domain, &bus) != 2)
		return INVALID_ARGUMENT;
	for (i = 0; i < gpu_count; i++) {
		if (gpus[i].minor + 1u != bus)
			continue;
		*device = &gpus[i];
		return OK;
	}
	return INVALID_ARGUMENT;
}

struct memory {
	unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(struct gpu *device, struct memory *memory)
{
	const char *wish = getenv("GPUHOST_STUB_CUDA_FREE");

	(void)device;
	memory->total = 96ULL << 30;
	memory->free = wish ? strtoull(wish, NULL, 10) : memory->total;
	memory->used = memory->total - memory->free;
	return OK;
}

int nvmlDeviceGetMinorNumber(struct gpu *device, unsigned int *minor)
{
	*minor = device->minor;
	return OK;
}

int nvmlDeviceGetName(struct gpu *device, char *name, unsigned int length)
{
	(void)device;
	snprintf(name, length, "%s", STUB_GPU_NAME);
	return OK;
}

int nvmlDeviceGetUUID(struct gpu *device, char *uuid, unsigned int length)
{
	snprintf(uuid, length, "GPU-00000000-0000-4000-8000-%012x", device->minor);
	return OK;
}

const char *nvmlErrorString(int result)
{
	switch (result) {
	case OK: return "Success";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NO_PERMISSION: return "Insufficient Permissions";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	default: return "Unknown Error";
	}
}
