/* SPDX-License-Identifier: MIT */
/*
 * Stub libcuda.so.1, no GPU behind it. cuInit is honest about the device
 * nodes: it opens them as CUDA does and keeps them open; blocked nvidia-uvm
 * gives 999, as in the incident that the lab replays. Everything behind cuInit
 * is emulated on the CPU's memory, and of kernels it knows one: the one that
 * gpu_checks/cuda_work.py launches. What it computes proves nothing about a GPU.
 *
 * Failures are injected by the environment, comma separated:
 *   GPUHOST_STUB_CUDA=cuInit=802             the call gives this number
 *   GPUHOST_STUB_CUDA=cuMemAlloc_v2@1=2      only on device 1
 *   ...=hang  ...=crash  cuLaunchKernel=wrong
 *   GPUHOST_STUB_CUDA_FREE=BYTES             what cuMemGetInfo calls free
 */
#include <signal.h>
#include <stdlib.h>

#include "stub.h"

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, UNAVAILABLE = 46, NO_DEVICE = 100,
	INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_JIT = 221, NOT_FOUND = 500,
	LAUNCH_FAILED = 719, NOT_READY = 802, MISMATCH = 803, NO_COMPAT = 804, UNKNOWN = 999
};
enum { GO_ON = -1, WRONG = -2 };

#define TOTAL_BYTES (96ULL << 30)
#define KERNEL "gpuhost_mix"
#define FACTOR 0x9E3779B1u

static int initialized, gpu_count, current = -1;
static int ctl = -1, uvm = -1;
static int gpu_fds[STUB_MAX_GPUS], gpu_minors[STUB_MAX_GPUS];

/* Never returns, in state D: the parent of a vfork waits uninterruptibly for its child. */
static void hang(void)
{
	if (vfork() == 0)
		for (;;)
			pause();
}

/* What is to go wrong in this call, or GO_ON. */
static int injected(const char *call)
{
	const char *wishes = getenv("GPUHOST_STUB_CUDA");
	size_t length = strlen(call);

	for (; wishes && *wishes; wishes = strchr(wishes, ',') ? strchr(wishes, ',') + 1 : NULL) {
		const char *rest = wishes + length;

		if (strncmp(wishes, call, length))
			continue;
		if (*rest == '@' && strtol(rest + 1, (char **)&rest, 10) != current)
			continue;
		if (*rest++ != '=')
			continue;
		if (!strncmp(rest, "hang", 4))
			hang();
		if (!strncmp(rest, "crash", 5))
			raise(SIGSEGV);
		if (!strncmp(rest, "wrong", 5))
			return WRONG;
		return atoi(rest);
	}
	return GO_ON;
}

#define MAY_FAIL(call)                                                  \
	do {                                                            \
		int number = injected(call);                            \
		if (number > SUCCESS)                                   \
			return number;                                  \
		if (!initialized)                                       \
			return NOT_INITIALIZED;                         \
	} while (0)

static void close_all(void)
{
	while (gpu_count)
		close(gpu_fds[--gpu_count]);
	if (ctl >= 0)
		close(ctl);
	ctl = -1;
}

/* CUDA_VISIBLE_DEVICES as the real library takes it: cut at the first bad entry; 101 for one that comes twice. */
static int choose(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int chosen[STUB_MAX_GPUS], count = 0, i;

	if (!list)
		return SUCCESS;
	while (*list && count < STUB_MAX_GPUS) {
		char *end;
		long ordinal = strtol(list, &end, 10);

		if (end == list || ordinal < 0 || ordinal >= gpu_count)
			break;
		for (i = 0; i < count; i++)
			if (chosen[i] == ordinal)
				return INVALID_DEVICE;
		chosen[count++] = ordinal;
		list = *end == ',' ? end + 1 : end;
	}
	for (i = 0; i < count; i++)
		chosen[i] = gpu_minors[chosen[i]];
	memcpy(gpu_minors, chosen, sizeof(chosen[0]) * count);
	while (gpu_count > count)
		close(gpu_fds[--gpu_count]);
	return count ? SUCCESS : NO_DEVICE;
}

int cuInit(unsigned int flags)
{
	struct uvm_initialize params = { 0 };
	char version[64];
	int minor, number = injected("cuInit");

	if (number > SUCCESS)
		return number;
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

		if (fd < 0)
			continue;
		gpu_minors[gpu_count] = minor;
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
	number = choose();
	if (number) {
		close(uvm);
		close_all();
		return number;
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
	MAY_FAIL("cuDeviceGetCount");
	if (!count)
		return INVALID_VALUE;
	*count = gpu_count;
	return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
	MAY_FAIL("cuDeviceGet");
	if (!device || ordinal < 0 || ordinal >= gpu_count)
		return INVALID_DEVICE;
	*device = ordinal;
	return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device)
{
	MAY_FAIL("cuDeviceGetName");
	if (!name || length <= 0 || device < 0 || device >= gpu_count)
		return INVALID_VALUE;
	snprintf(name, length, "%s", STUB_GPU_NAME);
	return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int length, int device)
{
	MAY_FAIL("cuDeviceGetPCIBusId");
	snprintf(text, length, "0001:%02X:00.0", gpu_minors[device] + 1);
	return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	MAY_FAIL("cuDeviceGetUuid_v2");
	/* the one that libnvidia-ml.c gives as text */
	memset(uuid, 0, 16);
	uuid[6] = 0x40;
	uuid[8] = 0x80;
	uuid[15] = gpu_minors[device];
	return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	(void)device;
	MAY_FAIL("cuDeviceTotalMem_v2");
	*bytes = TOTAL_BYTES;
	return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	MAY_FAIL("cuDeviceGetAttribute");
	/* 83: managed memory. The environment may say that this one has none, as a vGPU. */
	*value = attribute == 83 && !getenv("GPUHOST_STUB_CUDA_NO_MANAGED");
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	current = device;
	MAY_FAIL("cuDevicePrimaryCtxRetain");
	*context = &gpu_fds[device];
	return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	(void)device;
	MAY_FAIL("cuDevicePrimaryCtxRelease_v2");
	current = -1;
	return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
	(void)context;
	MAY_FAIL("cuCtxSetCurrent");
	return SUCCESS;
}

int cuCtxSynchronize(void)
{
	MAY_FAIL("cuCtxSynchronize");
	return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	const char *wish = getenv("GPUHOST_STUB_CUDA_FREE");

	MAY_FAIL("cuMemGetInfo_v2");
	*total = TOTAL_BYTES;
	*free_bytes = wish ? strtoull(wish, NULL, 10) : TOTAL_BYTES;
	return SUCCESS;
}

static int allocate(uint64_t *address, size_t bytes)
{
	void *memory = current < 0 ? NULL : calloc(1, bytes);

	*address = (uint64_t)memory;
	return memory ? SUCCESS : current < 0 ? INVALID_CONTEXT : OUT_OF_MEMORY;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	MAY_FAIL("cuMemAlloc_v2");
	return allocate(address, bytes);
}

int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned int flags)
{
	(void)flags;
	if (injected("cuMemAllocManaged") == WRONG) {
		*address = 8; /* memory that nobody can touch */
		return SUCCESS;
	}
	MAY_FAIL("cuMemAllocManaged");
	return allocate(address, bytes);
}

int cuMemFree_v2(uint64_t address)
{
	MAY_FAIL("cuMemFree_v2");
	free((void *)address);
	return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	MAY_FAIL("cuMemcpyHtoD_v2");
	memcpy((void *)to, from, bytes);
	return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	MAY_FAIL("cuMemcpyDtoH_v2");
	memcpy(to, (void *)from, bytes);
	return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image)
{
	MAY_FAIL("cuModuleLoadData");
	if (!strstr(image, ".entry " KERNEL))
		return INVALID_IMAGE;
	*module = &initialized;
	return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	MAY_FAIL("cuModuleGetFunction");
	if (strcmp(name, KERNEL))
		return NOT_FOUND;
	*function = module;
	return SUCCESS;
}

int cuModuleUnload(void *module)
{
	(void)module;
	MAY_FAIL("cuModuleUnload");
	return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
		   void *stream, void **parameters, void **extra)
{
	const uint32_t *input;
	uint32_t *output, count, seed, i;
	int wrong = injected("cuLaunchKernel") == WRONG;

	(void)function, (void)grid_y, (void)grid_z, (void)block_y, (void)block_z;
	(void)shared, (void)stream, (void)extra;
	MAY_FAIL("cuLaunchKernel");
	input = *(const uint32_t **)parameters[0];
	output = *(uint32_t **)parameters[1];
	count = *(uint32_t *)parameters[2];
	seed = *(uint32_t *)parameters[3];
	for (i = 0; i < count && i < grid_x * block_x; i++)
		output[i] = input[i] ^ (i * FACTOR + seed);
	if (wrong)
		output[count / 2] ^= 1; /* one bit of one element */
	return SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
	switch (error) {
	case SUCCESS: *name = "CUDA_SUCCESS"; break;
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
	case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
	case UNAVAILABLE: *name = "CUDA_ERROR_DEVICE_UNAVAILABLE"; break;
	case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
	case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
	case INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
	case NO_JIT: *name = "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"; break;
	case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
	case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
	case NOT_READY: *name = "CUDA_ERROR_SYSTEM_NOT_READY"; break;
	case MISMATCH: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
	case NO_COMPAT: *name = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"; break;
	case UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; break;
	default: return INVALID_VALUE;
	}
	return SUCCESS;
}
