"""gpuhost's lab: real QEMU machines with a real Debian and a stub NVIDIA driver."""
