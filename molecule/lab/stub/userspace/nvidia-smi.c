/* SPDX-License-Identifier: MIT */
/* Stub nvidia-smi on the stub libnvidia-ml: overview, -L and --query-gpu. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device_t;
int nvmlInit_v2(void);
int nvmlSystemGetDriverVersion(char *version, unsigned int length);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device);
int nvmlDeviceGetMinorNumber(device_t device, unsigned int *minor);
int nvmlDeviceGetName(device_t device, char *name, unsigned int length);
int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned int length);
const char *nvmlErrorString(int result);

static char driver[64];

/* The text of one field of one GPU; NULL for a field that the stub has not. */
static const char *field(const char *name, unsigned int index, device_t device)
{
	static char text[96];
	unsigned int minor;

	if (!strcmp(name, "index"))
		snprintf(text, sizeof(text), "%u", index);
	else if (!strcmp(name, "name"))
		nvmlDeviceGetName(device, text, sizeof(text));
	else if (!strcmp(name, "uuid"))
		nvmlDeviceGetUUID(device, text, sizeof(text));
	else if (!strcmp(name, "driver_version"))
		snprintf(text, sizeof(text), "%s", driver);
	else if (!strcmp(name, "pci.bus_id")) {
		nvmlDeviceGetMinorNumber(device, &minor);
		snprintf(text, sizeof(text), "00000001:%02X:00.0", minor + 1);
	} else
		return NULL;
	return text;
}

static int query(char *names, int header, unsigned int count)
{
	char *fields[32];
	device_t device;
	unsigned int i, f, n = 0;

	for (char *name = strtok(names, ", "); name && n < 32; name = strtok(NULL, ", "))
		fields[n++] = name;
	nvmlDeviceGetHandleByIndex_v2(0, &device);
	for (f = 0; f < n; f++)
		if (!field(fields[f], 0, device)) {
			printf("Field \"%s\" is not a valid field to query.\n\n", fields[f]);
			return 2;
		}
	for (f = 0; header && f < n; f++)
		printf("%s%s", fields[f], f + 1 < n ? ", " : "\n");
	for (i = 0; i < count; i++) {
		nvmlDeviceGetHandleByIndex_v2(i, &device);
		for (f = 0; f < n; f++)
			printf("%s%s", field(fields[f], i, device), f + 1 < n ? ", " : "\n");
	}
	return 0;
}

static void list(unsigned int count, int overview)
{
	char name[96], uuid[96];
	device_t device;
	unsigned int i;

	if (overview)
		printf("NVIDIA-SMI %s (gpuhost lab stub)  Driver Version: %s  CUDA Version: 13.0\n",
		       driver, driver);
	for (i = 0; i < count; i++) {
		nvmlDeviceGetHandleByIndex_v2(i, &device);
		nvmlDeviceGetName(device, name, sizeof(name));
		nvmlDeviceGetUUID(device, uuid, sizeof(uuid));
		printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
	}
}

int main(int argc, char **argv)
{
	char *fields = NULL;
	unsigned int count = 0;
	int i, header = 1, overview = 1, rc = nvmlInit_v2();

	for (i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--query-gpu=", 12))
			fields = argv[i] + 12;
		else if (!strncmp(argv[i], "--format=", 9))
			header = !strstr(argv[i], "noheader");
		else if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
			overview = 0;
		else {
			printf("Invalid combination of input arguments: the lab's stub does not know %s\n", argv[i]);
			return 1;
		}
	}
	if (!rc)
		rc = nvmlSystemGetDriverVersion(driver, sizeof(driver));
	if (rc == 9) {
		printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n");
		return 9;
	}
	if (rc) {
		printf("Failed to initialize NVML: %s\n", nvmlErrorString(rc));
		return rc;
	}
	nvmlDeviceGetCount_v2(&count);
	if (!count) {
		printf("No devices were found\n");
		return 6;
	}
	if (fields)
		return query(fields, header, count);
	list(count, overview);
	return 0;
}
