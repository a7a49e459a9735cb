/* SPDX-License-Identifier: MIT */
/* Stub nvidia-persistenced: holds the GPU nodes open until it is stopped. */
#include <stdlib.h>

#include "stub.h"

int main(void)
{
	int minor, held = 0;

	if (open("/dev/nvidiactl", O_RDWR | O_CLOEXEC) < 0)
		return EXIT_FAILURE;
	for (minor = 0; minor < STUB_MAX_GPUS; minor++)
		held += stub_open_gpu(minor) >= 0;
	if (!held)
		return EXIT_FAILURE;
	for (;;)
		pause();
}
