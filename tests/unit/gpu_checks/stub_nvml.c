/* SPDX-License-Identifier: MIT */
/*
 * A libnvidia-ml.so.1 with two healthy GPUs at 0000:01:00.0 and 0000:02:00.0, H200 by their numbers, and whatever the
 * environment makes of them. STUB_NVML holds entries separated by blanks:
 *   NAME=5  NAME@1=5        the number that a function gives, for every GPU or for one; NAME is short, see below
 *   NAME=!3                 the function gives this NVML error
 *   NAME=hang               the call does not return
 *   NAME=5~0.5              for half a second after nvmlInit, then 0
 *   field138=5000           a field value; ids 138, 139, 197, 198 are counters: so much is added each second
 *   gpm10=40                a GPM metric; gpm=!3: no GPM
 *   process=PID:BYTES       another process; sample=PID:SM:MEMORY   what it does
 * STUB_NVML_CALLS is a file to which the names of the calls are written.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7 };

struct gpu {
	int index;
};
static struct gpu gpus[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static double begin;
static int started;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* The text behind NAME= or NAME@GPU=, or NULL. */
static const char *wish(const char *name, int gpu)
{
	const char *all = getenv("STUB_NVML");
	size_t length = strlen(name);

	for (; all && *all; all = strchr(all, ' ') ? strchr(all, ' ') + 1 : NULL) {
		const char *rest = all + length;

		if (strncmp(all, name, length))
			continue;
		if (*rest == '@' && strtol(rest + 1, (char **)&rest, 10) != gpu)
			continue;
		if (*rest == '=')
			return rest + 1;
	}
	return NULL;
}

/* NVML's number; what is wished for, or else what a healthy GPU gives, in *value. */
static int answer(const char *name, struct gpu *gpu, double healthy, double *value)
{
	const char *text = wish(name, gpu ? gpu->index : 0);
	const char *calls = getenv("STUB_NVML_CALLS");
	char *rest;

	if (calls) {
		FILE *file = fopen(calls, "a");

		fprintf(file, "%s\n", name);
		fclose(file);
	}
	if (!started)
		return UNINITIALIZED;
	*value = healthy;
	if (text && *text == '!')
		return atoi(text + 1);
	if (text && !strncmp(text, "hang", 4))
		sleep(60);
	if (text) {
		*value = strtod(text, &rest);
		if (*rest == '~' && now() - begin > strtod(rest + 1, NULL))
			*value = 0;
	} else if (healthy < 0) {
		return NOT_SUPPORTED;
	}
	return OK;
}

static int number(const char *name, struct gpu *gpu, double healthy, unsigned int *out)
{
	double value;
	int code = answer(name, gpu, healthy, &value);

	if (code == OK)
		*out = value;
	return code;
}

int nvmlInit_v2(void)
{
	const char *text = wish("init", 0);

	if (text)
		return atoi(text);
	begin = now();
	started = 1;
	return OK;
}

int nvmlShutdown(void) { return started = 0, OK; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : code == 18 ? "mismatch" : "other"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { return number("count", NULL, 2, count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **gpu)
{
	double ignored;

	return *gpu = &gpus[index], answer("handle", *gpu, 0, &ignored);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct gpu **gpu)
{
	unsigned int domain, number;
	unsigned int count = 0;

	nvmlDeviceGetCount_v2(&count);
	if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || number < 1 || number > count)
		return NOT_FOUND;
	return *gpu = &gpus[number - 1], OK;
}

struct pci {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char bus_id[32];
};
int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
	return snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", gpu->index + 1), OK;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned int size)
{
	return snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", gpu->index), OK;
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned int size)
{
	return (void)gpu, snprintf(text, size, "stub GPU"), OK;
}

#define NUMBER(function, name, healthy) \
	int function(struct gpu *gpu, unsigned int *out) { return number(name, gpu, healthy, out); }
NUMBER(nvmlDeviceGetPowerUsage, "power", 113000)
NUMBER(nvmlDeviceGetPerformanceState, "pstate", 0)
NUMBER(nvmlDeviceGetMemoryBusWidth, "bus_width", 6144)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "max_generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "max_width", 16)

#define CHOICE(function, name, healthy) \
	int function(struct gpu *gpu, unsigned int which, unsigned int *out) \
	{ char key[64]; snprintf(key, sizeof key, "%s%u", name, which); return number(key, gpu, healthy, out); }
CHOICE(nvmlDeviceGetTemperature, "temperature", 38)
CHOICE(nvmlDeviceGetClockInfo, "clock", which == 2 ? 3201 : 420)
CHOICE(nvmlDeviceGetMaxClockInfo, "max_clock", which == 2 ? 3201 : 1980)
CHOICE(nvmlDeviceGetNvLinkState, "nvlink", which < 18 ? 1 : -1)
CHOICE(nvmlDeviceGetNvLinkRemoteDeviceType, "remote", 0)

int nvmlDeviceGetPcieThroughput(struct gpu *gpu, unsigned int which, unsigned int *out)
{
	usleep(20000);
	return number(which ? "throughput1" : "throughput0", gpu, 700, out);
}

int nvmlDeviceGetNvLinkErrorCounter(struct gpu *gpu, unsigned int link, unsigned int which, unsigned long long *out)
{
	unsigned int value = 0;
	int code = number(which == 0 && link == 0 ? "replay" : "other_errors", gpu, 0, &value);

	return *out = value, code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *gpu, unsigned long long *out)
{
	unsigned int value = 0;
	int code = number("reasons", gpu, 1, &value);

	return *out = value, code;
}

int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, unsigned int kind, unsigned int counter, unsigned long long *out)
{
	static const char *names[] = {"corrected", "corrected_ever", "uncorrected", "uncorrected_ever"};
	unsigned int value = 0;
	int code = number(names[2 * kind + counter], gpu, 0, &value);

	return *out = value, code;
}

int nvmlDeviceGetEccMode(struct gpu *gpu, unsigned int *current, unsigned int *pending)
{
	return *pending = 1, number("ecc", gpu, 1, current);
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned int *current, unsigned int *pending)
{
	return *pending = 0, number("mig", gpu, 0, current);
}

int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned int *corrected, unsigned int *uncorrected,
			      unsigned int *pending, unsigned int *failed)
{
	*corrected = *uncorrected = 0;
	number("remap_failed", gpu, 0, failed);
	return number("remap_pending", gpu, 0, pending);
}

struct memory {
	unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory)
{
	unsigned int free_mib = 0;
	int code = number("free_mib", gpu, 143156, &free_mib);

	memory->total = 143771ull << 20;
	memory->free = (unsigned long long)free_mib << 20;
	memory->used = memory->total - memory->free;
	return code;
}

struct rates {
	unsigned int gpu, memory;
};
int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct rates *rates)
{
	number("memory_utilisation", gpu, 0, &rates->memory);
	return number("utilisation", gpu, 0, &rates->gpu);
}

struct process {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned int *count, struct process *rows)
{
	const char *text = wish("process", gpu->index);
	unsigned int room = *count;

	*count = text ? 1 : 0;
	if (text && room < 1)
		return INSUFFICIENT;
	if (text)
		sscanf(text, "%u:%llu", &rows[0].pid, &rows[0].used);
	return OK;
}

struct sample {
	unsigned int pid;
	unsigned long long time;
	unsigned int sm, memory, encoder, decoder;
};
int nvmlDeviceGetProcessUtilization(struct gpu *gpu, struct sample *rows, unsigned int *count, unsigned long long since)
{
	const char *text = wish("sample", gpu->index);
	struct timeval time;

	(void)since;
	if (!text)
		return NOT_FOUND;
	if (*count < 1)
		return *count = 1, INSUFFICIENT;
	gettimeofday(&time, NULL);
	memset(rows, 0, sizeof *rows);
	rows[0].time = time.tv_sec * 1000000ull + time.tv_usec;
	sscanf(text, "%u:%u:%u", &rows[0].pid, &rows[0].sm, &rows[0].memory);
	return *count = 1, OK;
}

struct field {
	unsigned int id, scope;
	long long time, latency;
	unsigned int kind, result;
	union {
		double d;
		unsigned int ui;
		unsigned long long ull;
	} value;
};
int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field *rows)
{
	for (int i = 0; i < count; i++) {
		unsigned int id = rows[i].id;
		int counter = id == 138 || id == 139 || id == 197 || id == 198;
		char name[32];
		double value;

		snprintf(name, sizeof name, "field%u", id);
		/* Retired pages are of older GPUs; the recovery action is 0. */
		rows[i].result = answer(name, gpu, counter || id == 230 ? 0 : -1, &value);
		rows[i].kind = counter ? 3 : 1;
		if (counter)
			rows[i].value.ull = 1000 + value * (now() - begin);
		else
			rows[i].value.ui = value;
	}
	return OK;
}

/* A GPM sample is the GPU and a time; the time between two must be above 100 ms. */
struct gpm {
	struct gpu *gpu;
	double time;
};
struct support {
	unsigned int version, supported;
};
struct metric {
	unsigned int id, result;
	double value;
	const char *names[3];
};
struct request {
	unsigned int version, count;
	struct gpm *first, *second;
	struct metric rows[];
};
static int samples;

int nvmlGpmQueryDeviceSupport(struct gpu *gpu, struct support *support)
{
	double ignored;
	int code = answer("gpm", gpu, 1, &ignored);

	support->supported = code == OK;
	return support->version == 1 ? code == OK || code == NOT_SUPPORTED ? OK : code : 25;
}

int nvmlGpmSampleAlloc(struct gpm **sample) { return samples++, *sample = calloc(1, sizeof **sample), OK; }
int nvmlGpmSampleFree(struct gpm *sample) { return samples--, free(sample), OK; }
int stub_samples(void) { return samples; }

int nvmlGpmSampleGet(struct gpu *gpu, struct gpm *sample)
{
	double ignored;

	sample->gpu = gpu;
	sample->time = now();
	return answer("gpm_sample", gpu, 1, &ignored);
}

int nvmlGpmMetricsGet(struct request *request)
{
	if (request->version != 1)
		return 25;
	if (request->second->time - request->first->time <= 0.1)
		return INVALID;
	for (unsigned int i = 0; i < request->count; i++) {
		struct metric *row = &request->rows[i];
		char name[32];

		snprintf(name, sizeof name, "gpm%u", row->id);
		row->result = answer(name, request->first->gpu, 0, &row->value);
	}
	return OK;
}
