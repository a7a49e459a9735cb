/* SPDX-License-Identifier: MIT */
/*
 * Stub nvidia-modprobe: loads the modules and makes the device nodes from
 * /proc/devices. -c MINOR, -u, -m and -f FILE as in the real program; --all is
 * the lab's own: every node of every GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MINOR_CTL 255
#define MINOR_MODESET 254
#define CAPABILITIES "/proc/driver/nvidia/capabilities/"

static int load(const char *module)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		execl("/sbin/modprobe", "modprobe", "-q", module, (char *)NULL);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static int major_of(const char *name)
{
	char line[128], found[96];
	int number, major = -1;
	FILE *devices = fopen("/proc/devices", "re");

	while (devices && fgets(line, sizeof(line), devices)) {
		if (!strncmp(line, "Block", 5))
			break;
		if (sscanf(line, "%d %95s", &number, found) == 2 && !strcmp(found, name))
			major = number;
	}
	if (devices)
		fclose(devices);
	return major;
}

static int make(const char *path, int major, int minor, mode_t mode)
{
	struct stat now;
	dev_t want = makedev(major, minor);

	if (major < 0) {
		fprintf(stderr, "nvidia-modprobe: no driver for %s in /proc/devices\n", path);
		return 1;
	}
	if (!lstat(path, &now)) {
		if (S_ISCHR(now.st_mode) && now.st_rdev == want)
			return chmod(path, mode) ? 1 : 0;
		unlink(path);
	}
	if (mknod(path, S_IFCHR | mode, want) || chmod(path, mode)) {
		fprintf(stderr, "nvidia-modprobe: %s: %s\n", path, strerror(errno));
		return 1;
	}
	return 0;
}

static int make_gpu(int minor)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
	return make("/dev/nvidiactl", major_of("nvidiactl"), MINOR_CTL, 0666) |
	       make(path, major_of("nvidia"), minor, 0666);
}

static int make_uvm(void)
{
	int major;

	load("nvidia-uvm");
	major = major_of("nvidia-uvm");
	return make("/dev/nvidia-uvm", major, 0, 0666) | make("/dev/nvidia-uvm-tools", major, 1, 0666);
}

static int make_modeset(void)
{
	load("nvidia-modeset");
	return make("/dev/nvidia-modeset", major_of("nvidia-modeset"), MINOR_MODESET, 0666);
}

static int make_capability(const char *file)
{
	char line[96], path[64];
	int minor = -1, mode = 0400;
	FILE *capability = fopen(file, "re");

	while (capability && fgets(line, sizeof(line), capability)) {
		sscanf(line, "DeviceFileMinor: %d", &minor);
		sscanf(line, "DeviceFileMode: %d", &mode);
	}
	if (capability)
		fclose(capability);
	if (minor < 0) {
		fprintf(stderr, "nvidia-modprobe: no DeviceFileMinor in %s\n", file);
		return 1;
	}
	mkdir("/dev/nvidia-caps", 0755);
	snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%d", minor);
	return make(path, major_of("nvidia-caps"), minor, mode);
}

static int make_all(void)
{
	char path[64];
	int minor, rc = 0;

	/* "nvidia" gives every GPU a folder in /proc; count them by trying */
	for (minor = 0; minor < 32; minor++) {
		snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/0001:%02x:00.0", minor + 1);
		if (!access(path, F_OK))
			rc |= make_gpu(minor);
	}
	rc |= make_uvm() | make_modeset();
	rc |= make_capability(CAPABILITIES "mig/config");
	rc |= make_capability(CAPABILITIES "mig/monitor");
	return rc;
}

int main(int argc, char **argv)
{
	int i, rc = 0;

	umask(0);
	if (load("nvidia")) {
		fprintf(stderr, "nvidia-modprobe: module nvidia cannot be loaded\n");
		return 1;
	}
	for (i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--all"))
			rc |= make_all();
		else if (!strcmp(argv[i], "-u"))
			rc |= make_uvm();
		else if (!strcmp(argv[i], "-m"))
			rc |= make_modeset();
		else if (!strcmp(argv[i], "-c") && i + 1 < argc)
			rc |= make_gpu(atoi(argv[++i]));
		else if (!strncmp(argv[i], "-c=", 3))
			rc |= make_gpu(atoi(argv[i] + 3));
		else if (!strcmp(argv[i], "-f") && i + 1 < argc)
			rc |= make_capability(argv[++i]);
		else {
			fprintf(stderr, "nvidia-modprobe: unknown option %s\n", argv[i]);
			return 1;
		}
	}
	return rc;
}
