/* SPDX-License-Identifier: MIT */
/*
 * libcuda and libnccl in one library, for the check allreduce: streams are queues
 * that run when somebody waits, graphs are recorded queues, a kernel is known
 * by its name, and ranks meet in a shared file. It refuses what a GPU would
 * not forgive: a stream, function or event of another context, a wait for a
 * stream that is held.
 *
 * STUB_GPUS: how many there are (2). STUB_FREE_MIB: their free memory.
 * STUB_FAIL=name=number: this function gives this error.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAIL(name) do { int number = wished(name); if (number) return number; } while (0)
enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, LAUNCH_FAILED = 719, CAPTURING = 900 };

struct event {
	int ordinal;
	double ms;
};
struct op {
	enum { KERNEL, FILL, RECORD, REDUCE } kind;
	const char *name;
	uint64_t a, b, c, d;
	uint32_t u, v;
	float f;
	void *object;
	int arrived;
};
struct graph {
	struct op *ops;
	size_t count, room;
};
struct stream {
	int ordinal, capturing;
	struct graph queue, captured;
	size_t head;
	struct stream *next;
};
struct function {
	int ordinal;
	char name[32];
};

static int current = -1;
static struct stream *streams;

static int wished(const char *name)
{
	const char *wish = getenv("STUB_FAIL");
	size_t length = strlen(name);

	return wish && !strncmp(wish, name, length) && wish[length] == '=' ? atoi(wish + length + 1) : 0;
}

static int number(const char *name, int otherwise)
{
	return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static void push(struct graph *graph, struct op op)
{
	if (graph->count == graph->room) {
		graph->room = graph->room ? 2 * graph->room : 64;
		graph->ops = realloc(graph->ops, graph->room * sizeof(op));
	}
	graph->ops[graph->count++] = op;
}

static int queue(struct stream *stream, struct op op)
{
	if (!stream || stream->ordinal != current)
		return INVALID_HANDLE;
	push(stream->capturing ? &stream->captured : &stream->queue, op);
	return 0;
}

#include "stub_nccl.h"

static void run_kernel(const struct op *op)
{
	float *data = (float *)op->a;
	uint64_t *first = (uint64_t *)op->d;
	uint32_t *wrong = (uint32_t *)(op->d + 8), sum, rank, got, right;

	for (uint64_t i = 0; !strcmp(op->name, "values") && i < op->b; i++)
		data[i] = (((uint32_t)i * 0x9E3779B1u + op->u) >> 24) + 1;
	for (uint64_t i = 0; !strcmp(op->name, "compare") && i < op->b; i++) {
		for (sum = rank = 0; rank < op->v; rank++)
			sum += (((uint32_t)i * 0x9E3779B1u + op->u + rank * 0x85EBCA6Bu) >> 24) + 1;
		float expected = (float)sum * op->f;

		memcpy(&got, &data[i], 4);
		memcpy(&right, &expected, 4);
		if (got != right) {
			*wrong += 1;
			*first = i < *first ? i : *first;
		}
	}
}

/* Run the head of a queue. 0: it can't go on yet. */
static int step(struct op *op)
{
	struct timespec now;

	switch (op->kind) {
	case KERNEL:
		if (!strcmp(op->name, "hold") && !*(volatile uint32_t *)op->a)
			return 0;
		run_kernel(op);
		return 1;
	case FILL:
		memset((void *)op->a, op->u, op->b);
		return 1;
	case RECORD:
		clock_gettime(CLOCK_MONOTONIC, &now);
		((struct event *)op->object)->ms = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
		return 1;
	default:
		return reduce(op);
	}
}

int cuStreamSynchronize(struct stream *stream)
{
	time_t begin = time(NULL);

	FAIL("cuStreamSynchronize");
	/* The default stream, into which nothing is queued here. */
	if (!stream)
		return 0;
	while (stream->head < stream->queue.count) {
		int moved = 0;

		for (struct stream *each = streams; each; each = each->next)
			for (; each->head < each->queue.count && step(&each->queue.ops[each->head]); each->head++)
				moved = 1;
		if (!moved)
			sched_yield();
		/* Held, and we are the one who waits. */
		if (!moved && stream->queue.ops[stream->head].kind == KERNEL && time(NULL) > begin + 3)
			return LAUNCH_FAILED;
	}
	stream->head = stream->queue.count = 0;
	return 0;
}

int cuInit(unsigned int flags) { return flags ? INVALID_VALUE : wished("cuInit"); }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = number("STUB_GPUS", 2); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Stub %d", device); return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device) { snprintf(text, length, "0000:%02x:00.0", device + 1); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 1UL << 37; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = attribute == 16 ? 4 : 1; return 0; }
int cuGetErrorName(int error, const char **name) { (void)error; *name = "CUDA_ERROR_STUB"; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(device + 1); current = device; return wished("cuDevicePrimaryCtxRetain"); }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context - 1; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = (size_t)number("STUB_FREE_MIB", 4096) << 20; *total = 1UL << 37; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { FAIL("cuMemAlloc_v2"); *address = (uint64_t)malloc(bytes); return 0; }
int cuMemFree_v2(uint64_t address) { free((void *)address); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) { *address = malloc(bytes); return flags == 3 ? 0 : INVALID_VALUE; }
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned int flags) { *device = (uint64_t)host; return flags; }
int cuMemFreeHost(void *address) { free(address); return 0; }
int cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, struct stream *stream) { return queue(stream, (struct op){.kind = FILL, .a = address, .b = bytes, .u = byte}); }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return strncmp(image, "//", 2) ? INVALID_VALUE : wished("cuModuleLoadData"); }
int cuModuleUnload(void *module) { (void)module; return 0; }
int cuEventDestroy_v2(struct event *event) { free(event); return 0; }
int cuEventRecord(struct event *event, struct stream *stream) { return event->ordinal != current ? INVALID_HANDLE : queue(stream, (struct op){.kind = RECORD, .object = event}); }
int cuEventElapsedTime(float *ms, struct event *first, struct event *last) { *ms = (float)(last->ms - first->ms); return first->ms && last->ms ? 0 : 600; }
int cuGraphDestroy(void *graph) { (void)graph; return 0; }
int cuGraphExecDestroy(struct graph *graph) { free(graph->ops); free(graph); return 0; }
int cuStreamDestroy_v2(struct stream *stream) { (void)stream; return 0; }

int cuModuleGetFunction(struct function **function, void *module, const char *name)
{
	(void)module;
	*function = calloc(1, sizeof(**function));
	(*function)->ordinal = current;
	snprintf((*function)->name, sizeof((*function)->name), "%s", name);
	return 0;
}

int cuLaunchKernel(struct function *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
		   struct stream *stream, void **parameters, void **extra)
{
	struct op op = {.kind = KERNEL, .name = function->name};

	if (!grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_y != 1 || block_z != 1 || shared || extra)
		return INVALID_VALUE;
	if (function->ordinal != current)
		return INVALID_CONTEXT;
	op.a = *(uint64_t *)parameters[0];
	if (!strcmp(op.name, "values") || !strcmp(op.name, "compare")) {
		op.b = *(uint64_t *)parameters[1];
		op.u = *(uint32_t *)parameters[2];
	}
	if (!strcmp(op.name, "compare")) {
		op.v = *(uint32_t *)parameters[3];
		op.f = *(float *)parameters[4];
		op.d = *(uint64_t *)parameters[5];
	}
	return queue(stream, op);
}

int cuStreamCreate(struct stream **stream, unsigned int flags)
{
	*stream = calloc(1, sizeof(**stream));
	(*stream)->ordinal = current;
	(*stream)->next = streams;
	streams = *stream;
	return flags == 1 ? 0 : INVALID_VALUE;
}

int cuEventCreate(struct event **event, unsigned int flags)
{
	*event = calloc(1, sizeof(**event));
	(*event)->ordinal = current;
	return flags;
}

static int recording; /* streams of this one thread */

int cuStreamBeginCapture_v2(struct stream *stream, int mode)
{
	stream->capturing = 1;
	recording++;
	stream->captured = (struct graph){0};
	return stream->ordinal != current ? INVALID_HANDLE : mode == 1 ? 0 : INVALID_VALUE;
}

int cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
	FAIL("cuStreamEndCapture");
	*graph = malloc(sizeof(**graph));
	**graph = stream->captured;
	stream->capturing = 0;
	recording--;
	return stream->ordinal != current ? INVALID_HANDLE : 0;
}

int cuGraphInstantiateWithFlags(struct graph **executable, struct graph *graph, unsigned long long flags)
{
	*executable = graph;
	/* seen on two H200: no stream of the thread may be recording, in whichever context */
	return recording ? CAPTURING : flags ? INVALID_VALUE : 0;
}

int cuGraphLaunch(struct graph *graph, struct stream *stream)
{
	for (size_t i = 0; i < graph->count; i++)
		if (queue(stream, graph->ops[i]))
			return INVALID_HANDLE;
	return stream->capturing ? CAPTURING : 0;
}
