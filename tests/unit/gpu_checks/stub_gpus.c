/* SPDX-License-Identifier: MIT */
/*
 * A libcuda.so.1 whose GPUs are made of host memory: streams that run when they
 * are waited for, events on a clock that the work itself moves, the kernels of
 * gpu_checks/ptx.py by their names. Data really moves; time is arithmetic.
 *
 * STUB_GPUS=2          how many
 * STUB_FREE_MIB=64     free memory of each
 * STUB_LINK_GB_S=50    between two GPUs; STUB_LOCAL_GB_S=2000 within one
 * STUB_FAULT           what goes wrong, separated by commas; S-T is a source and
 *                      a target, N a GPU:
 *   hang:S-T zeros:S-T flip:S-T slow:S-T nopeer:S-T   copies from S to T
 *   collapse           copies that run beside others are ten times slower
 *   badmem:N           kernels on N write one wrong word
 *   init:999           what cuInit answers
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_FOUND 500
#define INVALID 1
#define TIMEOUT 702
#define DISABLED 217 /* CUDA_ERROR_PEER_ACCESS_UNSUPPORTED */

typedef uint64_t address_t;
enum kind { HOLD, COPY, READ, WRITE, PATTERN, VERIFY, CHASE, FILL, RECORD, WAIT, GRAPH };

struct op {
	enum kind kind;
	address_t to, from;
	uint64_t size, value;
	struct event *event;
	struct graph *graph;
	struct op *next;
};
struct event {
	double us;
	int recorded, pending;
};
struct graph {
	struct op *first, **end;
};
struct stream {
	int device;
	double us;
	struct op *first, **end;
	struct graph *capture;
	struct stream *next;
};
struct block {
	char *address;
	size_t size;
	int device; /* -1: the host's */
	struct block *next;
};

static struct block *blocks;
static struct stream *streams;
static int current;

static const char *kernels[] = {"hold", "copy", "read", "write", "pattern", "verify", "chase"};

static long setting(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text ? atol(text) : otherwise;
}

static int gpus(void) { return setting("STUB_GPUS", 2); }

static int fault(const char *name, int from, int to)
{
	char wanted[64], *copy, *part, *rest;
	const char *all = getenv("STUB_FAULT");
	int found = 0;

	if (!all)
		return 0;
	snprintf(wanted, sizeof(wanted), from < 0 ? "%s" : to < 0 ? "%s:%d" : "%s:%d-%d", name, from, to);
	copy = strdup(all);
	for (part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest))
		found |= !strcmp(part, wanted);
	free(copy);
	return found;
}

static struct block *block_of(address_t address)
{
	struct block *each;

	for (each = blocks; each; each = each->next)
		if ((char *)address >= each->address && (char *)address < each->address + each->size)
			return each;
	return NULL;
}

static int device_of(address_t address)
{
	struct block *found = block_of(address);

	return found ? found->device : -1;
}

static int allocate(address_t *address, size_t size, int device)
{
	struct block *made = malloc(sizeof(*made));

	made->address = aligned_alloc(512, (size + 511) / 512 * 512);
	made->size = size;
	made->device = device;
	made->next = blocks;
	blocks = made;
	*address = (address_t)made->address;
	return made->address ? 0 : 2;
}

static int release(address_t address)
{
	struct block **place, *found;

	for (place = &blocks; (found = *place); place = &found->next)
		if (found->address == (char *)address) {
			*place = found->next;
			free(found->address);
			free(found);
			return 0;
		}
	return INVALID;
}

static uint32_t word(uint32_t place, uint32_t seed)
{
	uint32_t made = place * 0x9E3779B1u + seed;

	made ^= made >> 16;
	made *= 0x85EBCA6Bu;
	made ^= made >> 13;
	return made ? made : 1;
}

static int busy_links(void)
{
	struct stream *each;
	struct op *op;
	int found = 0;

	for (each = streams; each; each = each->next)
		for (op = each->first; op; op = op->next)
			if (op->kind == COPY && device_of(op->to) != device_of(op->from)) {
				found++;
				break;
			}
	return found;
}

static double copy(struct op *op)
{
	int from = device_of(op->from), to = device_of(op->to);
	double gb_s = setting(from == to ? "STUB_LOCAL_GB_S" : "STUB_LINK_GB_S", from == to ? 2000 : 50);

	if (!op->size)
		return 1;
	memmove((void *)op->to, (void *)op->from, op->size);
	if (fault("hang", from, to))
		for (;;)
			pause();
	if (fault("zeros", from, to))
		memset((void *)op->to, 0, op->size);
	if (fault("flip", from, to) || (from == to && fault("badmem", to, -1)))
		*(uint32_t *)(op->to + op->size / 2 / 4 * 4) ^= 0x100;
	if (fault("slow", from, to))
		gb_s /= 10;
	if (from != to && busy_links() > 1 && fault("collapse", -1, -1))
		gb_s /= 10;
	return 1 + op->size / (gb_s * 1000);
}

static int run_op(struct op *op, struct stream *stream)
{
	double local = setting("STUB_LOCAL_GB_S", 2000) * 1000.0;
	uint32_t *words = (uint32_t *)op->to, *result;
	uint64_t place, first;
	struct op *each;
	int error;

	switch (op->kind) {
	case HOLD:
		if (!*(volatile uint32_t *)op->to)
			return TIMEOUT; /* the real one waits; here nobody could release it any more */
		break;
	case COPY:
		stream->us += copy(op);
		break;
	case READ:
		stream->us += 1 + op->size / local;
		break;
	case WRITE:
		for (place = 0; place < op->size / 4; place++)
			words[place] = op->value;
		stream->us += 1 + op->size / local;
		break;
	case FILL:
		memset((void *)op->to, op->value, op->size);
		break;
	case PATTERN:
		for (place = 0; place < op->size / 4; place++)
			words[place] = word(place, op->value);
		if (op->size && fault("badmem", stream->device, -1))
			words[op->size / 8] ^= 1;
		break;
	case VERIFY:
		result = (uint32_t *)op->from;
		for (place = 0; place < op->size / 4; place++)
			if (words[place] != word(place, op->value)) {
				memcpy(&first, result, 8);
				if (place < first)
					memcpy(result, &place, 8);
				result[2]++;
				result[3] += !words[place];
			}
		break;
	case CHASE:
		for (place = 0, first = op->to; place < op->size; place++)
			first = *(uint64_t *)first;
		*(uint64_t *)op->from = first;
		/* nanoseconds a step: to a neighbour over a link, or at home */
		stream->us += op->size * (device_of(op->to) == stream->device ? 0.3 : 0.8);
		break;
	case RECORD:
		op->event->us = stream->us;
		op->event->recorded = 1;
		op->event->pending = 0;
		break;
	case WAIT:
		if (op->event->us > stream->us)
			stream->us = op->event->us;
		break;
	case GRAPH:
		for (each = op->graph->first; each; each = each->next)
			if ((error = run_op(each, stream)))
				return error;
		break;
	}
	return 0;
}

/* Run everything that is queued anywhere; a stream that waits for an event lets the others go first. */
static int run_all(void)
{
	struct stream *each;
	struct op *op;
	int moved = 1, error = 0, now;

	while (moved) {
		moved = 0;
		for (each = streams; each; each = each->next)
			while ((op = each->first) && !(op->kind == WAIT && op->event->pending)) {
				now = run_op(op, each);
				error = error ? error : now;
				each->first = op->next;
				if (!each->first)
					each->end = &each->first;
				free(op);
				moved = 1;
			}
	}
	return error;
}

static struct op *queue(struct stream *stream, enum kind kind)
{
	struct op *made = calloc(1, sizeof(*made));

	made->kind = kind;
	if (stream->capture) {
		*stream->capture->end = made;
		stream->capture->end = &made->next;
	} else {
		*stream->end = made;
		stream->end = &made->next;
	}
	return made;
}

int cuInit(unsigned int flags)
{
	const char *all = getenv("STUB_FAULT"), *init = all ? strstr(all, "init:") : NULL;

	(void)flags;
	return init ? atoi(init + 5) : 0;
}
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = gpus(), 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal < gpus() ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, size, "stub GPU %d", device), 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int device) { return snprintf(bus, size, "0000:%02x:00.0", device + 1), 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	memset(uuid, 0, 16);
	uuid[15] = device;
	return 0;
}
int cuDeviceTotalMem_v2(size_t *size, int device) { return (void)device, *size = 8ul << 30, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	*value = attribute == 16 ? 4 : attribute == 38 ? 1 << 20 : attribute == 75 ? 9 : attribute == 83 ? 1 : 0;
	return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(intptr_t)(device + 1), 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
int cuCtxSetCurrent(void *context) { return current = (int)(intptr_t)context - 1, 0; }
int cuCtxGetDevice(int *device) { return *device = current, 0; }
int cuCtxSynchronize(void) { return run_all(); }
int cuMemGetInfo_v2(size_t *available, size_t *total)
{
	*available = (size_t)setting("STUB_FREE_MIB", 64) << 20;
	*total = 8ul << 30;
	return 0;
}
int cuMemAlloc_v2(address_t *address, size_t size)
{
	return size > (size_t)setting("STUB_FREE_MIB", 64) << 20 ? 2 : allocate(address, size, current);
}
int cuMemAllocManaged(address_t *address, size_t size, unsigned int flags)
{
	return (void)flags, allocate(address, size, current);
}
int cuMemFree_v2(address_t address) { return run_all(), release(address); }
int cuMemHostAlloc(address_t *address, size_t size, unsigned int flags)
{
	(void)flags;
	if (allocate(address, size, -1))
		return 2;
	memset((void *)*address, 0, size);
	return 0;
}
int cuMemHostGetDevicePointer_v2(address_t *device, address_t address, unsigned int flags)
{
	return (void)flags, *device = address, 0;
}
int cuMemFreeHost(address_t address) { return run_all(), release(address); }
int cuMemcpyHtoD_v2(address_t to, const void *from, size_t size)
{
	return memcpy((void *)to, from, size), 0;
}
int cuMemcpyDtoH_v2(void *to, address_t from, size_t size)
{
	int error = run_all();

	memcpy(to, (void *)from, size);
	return error;
}
int cuMemcpyAsync(address_t to, address_t from, size_t size, struct stream *stream)
{
	struct op *op = queue(stream, COPY);

	op->to = to, op->from = from, op->size = size;
	return 0;
}
int cuMemsetD8Async(address_t to, unsigned char value, size_t size, struct stream *stream)
{
	struct op *op = queue(stream, FILL);

	op->to = to, op->value = value, op->size = size;
	return 0;
}

int cuStreamCreate(struct stream **stream, unsigned int flags)
{
	struct stream *made = calloc(1, sizeof(*made));

	(void)flags;
	made->device = current;
	made->end = &made->first;
	made->next = streams;
	*stream = streams = made;
	return 0;
}
int cuStreamDestroy_v2(struct stream *stream)
{
	struct stream **place;

	run_all();
	for (place = &streams; *place; place = &(*place)->next)
		if (*place == stream) {
			*place = stream->next;
			free(stream);
			return 0;
		}
	return INVALID;
}
int cuStreamSynchronize(struct stream *stream) { return (void)stream, run_all(); }
int cuStreamQuery(struct stream *stream) { return stream->first ? 600 : 0; }
int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	(void)flags;
	queue(stream, WAIT)->event = event;
	return 0;
}
int cuEventCreate(struct event **event, unsigned int flags)
{
	return (void)flags, *event = calloc(1, sizeof(**event)), 0;
}
int cuEventDestroy_v2(struct event *event) { return run_all(), free(event), 0; }
int cuEventRecord(struct event *event, struct stream *stream)
{
	event->pending = 1;
	queue(stream, RECORD)->event = event;
	return 0;
}
int cuEventQuery(struct event *event) { return event->pending ? 600 : 0; }
int cuEventSynchronize(struct event *event) { return (void)event, run_all(); }
int cuEventElapsedTime(float *milliseconds, struct event *first, struct event *last)
{
	if (!first->recorded || !last->recorded)
		return 600;
	*milliseconds = (last->us - first->us) / 1000;
	return 0;
}

int cuModuleLoadData(void **module, const char *text)
{
	return *module = (void *)1, strstr(text, ".version") ? 0 : 218;
}
int cuModuleUnload(void *module) { return (void)module, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
	size_t each;

	(void)module;
	for (each = 0; each < sizeof(kernels) / sizeof(*kernels); each++)
		if (!strcmp(name, kernels[each]))
			return *function = (void *)(each + 1), 0;
	return NOT_FOUND;
}
int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
		   unsigned int bz, unsigned int shared, struct stream *stream, void **arguments, void **extra)
{
	enum kind kind = (enum kind)((uintptr_t)function - 1);
	uint64_t **at = (uint64_t **)arguments;
	struct op *op;

	(void)shared, (void)extra;
	if (!gx || !gy || !gz || !bx || by * bz != 1 || bx > 1024)
		return INVALID;
	op = queue(stream, kind);
	op->to = *at[0];
	switch (kind) {
	case COPY:
		op->from = *at[1], op->size = *at[2] * 16;
		break;
	case READ:
		op->to = *at[1], op->size = *at[2] * 16;
		break;
	case WRITE:
		op->size = *at[1] * 16, op->value = *(uint32_t *)at[2];
		break;
	case PATTERN:
	case VERIFY:
		op->size = *at[1] * 4, op->value = *(uint32_t *)at[2];
		if (kind == VERIFY)
			op->from = *at[3];
		break;
	case CHASE:
		op->size = *(uint32_t *)at[1], op->from = *at[3];
		break;
	default:
		break;
	}
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	return *can = device != peer && !fault("nopeer", device, peer) && !fault("nopeer", peer, device), 0;
}
int cuCtxEnablePeerAccess(void *context, unsigned int flags)
{
	int can;

	(void)flags;
	cuDeviceCanAccessPeer(&can, current, (int)(intptr_t)context - 1);
	return can ? 0 : DISABLED;
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
	return (void)attribute, cuDeviceCanAccessPeer(value, device, peer);
}

int cuStreamBeginCapture_v2(struct stream *stream, int mode)
{
	(void)mode;
	stream->capture = calloc(1, sizeof(*stream->capture));
	stream->capture->end = &stream->capture->first;
	return 0;
}
int cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
	*graph = stream->capture;
	stream->capture = NULL;
	return *graph ? 0 : 901;
}
int cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long long flags)
{
	return (void)flags, *made = graph, 0;
}
int cuGraphDestroy(struct graph *graph) { return (void)graph, 0; }
int cuGraphExecDestroy(struct graph *graph) { return (void)graph, 0; }
int cuGraphLaunch(struct graph *graph, struct stream *stream)
{
	queue(stream, GRAPH)->graph = graph;
	return 0;
}

int cuGetErrorName(int number, const char **name)
{
	static char text[64];

	snprintf(text, sizeof(text), "CUDA_ERROR_STUB_%d", number);
	*name = text;
	return 0;
}
