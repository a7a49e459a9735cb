/* SPDX-License-Identifier: MIT */
/*
 * Stands before the real libcuda (or, with -DFOR_NCCL, before the real libnccl) and makes one call go wrong. All other
 * functions are the real library's: it is linked as a dependency, so that a search in this one finds them there.
 *
 * -DREAL="path" is the real library. GPUHOST_FAULT says what goes wrong:
 *   cuInit=999          the call gives this number
 *   cuMemcpyAsync=hang  the call never returns; with @N, the Nth one (from 1)
 *   cuMemcpyAsync=wrong    what was copied is changed afterwards, in the middle
 *   cuMemcpyDtoH_v2=wrong  what was brought back is changed; counters and the like (below 4 KiB) are left alone
 *   ncclAllReduce=hang     as above
 *   ncclAllReduce=wrong    the first element of the sum is changed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long address;

enum { GO_ON = -1, WRONG = -2 };
enum { BULK_BYTES = 4096, CHANGED_BYTES = 64 };

static void *function_of(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);

	return handle ? dlsym(handle, name) : NULL;
}

/* What is to go wrong in this call, its calls counted by *count; or GO_ON. */
static int fault(const char *call, int *count)
{
	const char *wish = getenv("GPUHOST_FAULT");
	size_t length = strlen(call);
	const char *at;

	if (!wish || strncmp(wish, call, length) || wish[length] != '=')
		return GO_ON;
	at = strchr(wish, '@');
	if (++*count < (at ? atoi(at + 1) : 1))
		return GO_ON;
	wish += length + 1;
	if (!strncmp(wish, "wrong", 5))
		return WRONG;
	if (!strncmp(wish, "hang", 4))
		for (;;)
			pause();
	return atoi(wish);
}

/* Change some bytes on a GPU, in the stream's own order. No byte of a pattern stays by chance: there are 64. */
static void change(const char *library, address where, size_t size, void *stream)
{
	int (*fill)(address, unsigned char, size_t, void *) = function_of(library, "cuMemsetD8Async");

	if (fill)
		fill(where, 0x5E, size, stream);
}

#ifdef FOR_NCCL

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *communicator, void *stream)
{
	static int calls;
	int (*real)(const void *, void *, size_t, int, int, void *, void *) = function_of(REAL, "ncclAllReduce");
	int wrong = fault("ncclAllReduce", &calls), number;

	number = real(from, to, count, type, op, communicator, stream);
	if (wrong == WRONG && !number)
		change("libcuda.so.1", (address)(size_t)to, 4, stream);
	return number;
}

#else

int cuInit(unsigned flags)
{
	static int calls;
	int (*real)(unsigned) = function_of(REAL, "cuInit");
	int number = fault("cuInit", &calls);

	return number == GO_ON ? real(flags) : number;
}

int cuMemcpyAsync(address to, address from, size_t size, void *stream)
{
	static int calls;
	int (*real)(address, address, size_t, void *) = function_of(REAL, "cuMemcpyAsync");
	int wrong = fault("cuMemcpyAsync", &calls), number = real(to, from, size, stream);

	if (wrong == WRONG && !number && size >= BULK_BYTES)
		change(REAL, to + size / 2, CHANGED_BYTES, stream);
	return number;
}

int cuMemcpyDtoH_v2(void *to, address from, size_t size)
{
	static int calls;
	int (*real)(void *, address, size_t) = function_of(REAL, "cuMemcpyDtoH_v2");
	int wrong = fault("cuMemcpyDtoH_v2", &calls), number = real(to, from, size);

	if (wrong == WRONG && !number && size >= BULK_BYTES)
		((char *)to)[size / 2] ^= 0x10;
	return number;
}

#endif
