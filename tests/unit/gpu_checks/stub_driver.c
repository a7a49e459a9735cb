/* SPDX-License-Identifier: MIT */
/*
 * A driver behind device nodes that have none: preloaded, it answers the three
 * ioctls of gpu_checks/nvidia_ioctl.py on any file, and refuses to open what
 * STUB_OPEN names: STUB_OPEN=/dev/nvidia-uvm=1 gives EPERM.
 * STUB_UVM_STATUS is the answer of nvidia-uvm, STUB_VERSION the driver's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct version_query {
	uint32_t cmd, reply;
	char version[64];
};
struct uvm_initialize {
	uint64_t flags;
	uint32_t status;
};
#define CHECK_VERSION 0xc04846d2UL
#define WAIT_OPEN_COMPLETE 0xc00846daUL
#define UVM_INITIALIZE 0x30000001UL

static int refused(const char *path)
{
	const char *wish = getenv("STUB_OPEN");
	size_t length = strlen(path);

	if (!wish || strncmp(wish, path, length) || wish[length] != '=')
		return 0;
	errno = atoi(wish + length + 1);
	return 1;
}

static int open_real(const char *name, const char *path, int flags, mode_t mode)
{
	int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, name);

	return refused(path) ? -1 : next(path, flags, mode);
}

#define OPEN(name)                                                      \
	int name(const char *path, int flags, ...)                      \
	{                                                               \
		va_list rest;                                           \
		mode_t mode;                                            \
		va_start(rest, flags);                                  \
		mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
		va_end(rest);                                           \
		return open_real(#name, path, flags, mode);             \
	}
OPEN(open)
OPEN(open64)

int ioctl(int file, unsigned long request, ...)
{
	int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	const char *wish;
	va_list rest;
	void *data;

	va_start(rest, request);
	data = va_arg(rest, void *);
	va_end(rest);
	switch (request & 0xffffffffUL) {
	case CHECK_VERSION: {
		struct version_query *query = data;

		wish = getenv("STUB_VERSION");
		query->reply = 1;
		snprintf(query->version, sizeof(query->version), "%s", wish ? wish : "580.95.05");
		return 0;
	}
	case WAIT_OPEN_COMPLETE:
		memset(data, 0, 8);
		return 0;
	case UVM_INITIALIZE:
		wish = getenv("STUB_UVM_STATUS");
		((struct uvm_initialize *)data)->status = wish ? strtoul(wish, NULL, 0) : 0;
		return 0;
	default:
		return next(file, request, data);
	}
}
