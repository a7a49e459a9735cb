"""The cause codes that these checks can give, each with its sentence. Nothing else is accepted in a measurement."""

from __future__ import annotations

CAUSES: dict[str, str] = {
    "check.not_in_this_version": "The check is known, but this version does not carry it yet.",
    "check.timeout": "The check did not end within its time limit and was killed.",
    "check.crashed": "The check ended without an answer.",
    "driver.not_loaded": "No driver for this node is registered in /proc/devices: its kernel module is not loaded.",
    "device.node_missing": "The device node does not exist where the workload runs.",
    "device.node_not_char": "Something stands at the device node's path that is not a character device.",
    "device.node_wrong_major": "The device node has a major number that is not its driver's current one.",
    "device.denied_cgroup": "Opening the device node is not permitted (EPERM): the container's device rules refuse it.",
    "device.denied_mode": "Opening the device node is refused (EACCES): its mode, its owner or a nodev mount.",
    "device.open_failed": "The device node cannot be opened.",
    "device.query_failed": "The device node opens, but its driver does not answer as it should.",
    "device.gpu_count": "The number of GPU device nodes is not the expected one.",
}
