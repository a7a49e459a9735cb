/* SPDX-License-Identifier: MIT */
/*
 * Stub libcuda.so.1: cuInit opens the device nodes as CUDA does and keeps them
 * open. Blocked nvidia-uvm gives 999, as in the incident that the lab replays.
 */
#include "stub.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, UNKNOWN = 999 };

static int initialized, gpu_count;
static int ctl = -1, uvm = -1;
static int gpu_fds[STUB_MAX_GPUS];

static void close_all(void)
{
	while (gpu_count)
		close(gpu_fds[--gpu_count]);
	if (ctl >= 0)
		close(ctl);
	ctl = -1;
}

int cuInit(unsigned int flags)
{
	struct uvm_initialize params = { 0 };
	char version[64];
	int minor;

	if (flags)
		return INVALID_VALUE;
	if (initialized)
		return SUCCESS;
	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (ctl < 0 || stub_version(ctl, version, sizeof(version))) {
		close_all();
		return NO_DEVICE;
	}
	for (minor = 0; minor < STUB_MAX_GPUS; minor++) {
		int fd = stub_open_gpu(minor);

		if (fd >= 0)
			gpu_fds[gpu_count++] = fd;
	}
	if (!gpu_count) {
		close_all();
		return NO_DEVICE;
	}
	uvm = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	if (uvm < 0 || ioctl(uvm, UVM_INITIALIZE, &params) || params.status) {
		if (uvm >= 0)
			close(uvm);
		close_all();
		return UNKNOWN;
	}
	initialized = 1;
	return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
	if (!version)
		return INVALID_VALUE;
	*version = 13000; /* CUDA 13.0, what driver 580 offers */
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (!count)
		return INVALID_VALUE;
	*count = gpu_count;
	return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (!device || ordinal < 0 || ordinal >= gpu_count)
		return INVALID_DEVICE;
	*device = ordinal;
	return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device)
{
	if (!initialized)
		return NOT_INITIALIZED;
	if (!name || length <= 0 || device < 0 || device >= gpu_count)
		return INVALID_VALUE;
	snprintf(name, length, "%s", STUB_GPU_NAME);
	return SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
	switch (error) {
	case SUCCESS: *name = "CUDA_SUCCESS"; break;
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
	case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
	case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
	case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
	case UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; break;
	default: return INVALID_VALUE;
	}
	return SUCCESS;
}
