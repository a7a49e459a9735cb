"""The programs of a Debian 12 host, as far as gpuhost calls them; they change the fake host's tree as the real ones do.

Shapes of their output: tests/fixtures/apt, and systemd 252's and DKMS 3.0.10's own texts. Synthetic.
"""

from __future__ import annotations

from fake_host import Answer, FakeHost
from fake_initramfs import image_of
from fake_tree import (
    EFIVARS,
    ESP,
    GUID,
    MACHINE,
    add_headers,
    add_kernel,
    entry_text,
    kernel_of_package,
)

from gpuhost.efi_variables import encode_efi_string

INIT_PID = 1000  # of any container: its /proc files are in the tree


def install_programs(host: FakeHost) -> None:
    """Give a fake host its programs."""
    for name, program in PROGRAMS.items():
        host.programs[(name,)] = program


def lxc_ls(host: FakeHost, argv: list[str]) -> Answer:
    return 0, "".join(f"{name}\n" for name in sorted(host.running)), ""


def lxc_info(host: FakeHost, argv: list[str]) -> Answer:
    """``lxc-info -n NAME -p -H``: the process number of an init that is no systemd."""
    name = argv[argv.index("-n") + 1]
    if name not in host.running:
        return 0, "", ""
    return 0, f"{INIT_PID}\n", ""


def lxc_start(host: FakeHost, argv: list[str]) -> Answer:
    name = argv[argv.index("-n") + 1]
    if name in host.broken:
        return 1, "", f"lxc-start: {name}: lxccontainer.c: wait_on_daemonized_start: 877 The container failed to start"
    host.running.add(name)
    return 0, "", ""


def lxc_stop(host: FakeHost, argv: list[str]) -> Answer:
    name = argv[argv.index("-n") + 1]
    if name in host.stubborn:
        return 1, "", ""
    host.running.discard(name)
    return 0, "", ""


def bootctl(host: FakeHost, argv: list[str]) -> Answer:
    """set-oneshot: an EFI variable, and no check of the name."""
    if argv[1] != "set-oneshot":
        return 0, "systemd 252 (252.39-1~deb12u1)\n", ""
    variable = host.path(f"{EFIVARS}/LoaderEntryOneShot-{GUID}")
    if argv[2]:
        variable.write_bytes(encode_efi_string(argv[2]))
    else:
        variable.unlink(missing_ok=True)
    return 0, "", ""


def systemd_run(host: FakeHost, argv: list[str]) -> Answer:
    host.rebooting = host.rebooting or argv[-3:] == ["systemctl", "reboot", "-i"]
    return 0, "", "Running timer as unit: run-r1.timer"


def kernel_install(host: FakeHost, argv: list[str]) -> Answer:
    """``add RELEASE IMAGE INITRD``: 90-loaderentry.install copies both, then writes the entry."""
    release, image, *initrds = argv[2:]
    data = host.read_bytes(image)
    if data is None:
        return 1, "", f"Error: could not copy '{image}' to '{ESP}/{MACHINE}/{release}/linux'."
    host.put(f"{ESP}/{MACHINE}/{release}/linux", data)
    for initrd in initrds or [f"/boot/initrd.img-{release}"]:
        host.put(f"{ESP}/{MACHINE}/{release}/initrd.img-{release}", host.read_bytes(initrd) or b"")
    options = " ".join((host.read("/etc/kernel/cmdline") or host.read("/proc/cmdline") or "").split())
    host.put(f"{ESP}/loader/entries/{MACHINE}-{release}.conf", entry_text(release, options))
    return 0, "", ""


def update_initramfs(host: FakeHost, argv: list[str]) -> Answer:
    release = argv[argv.index("-k") + 1]
    if not host.exists(f"/boot/vmlinuz-{release}"):
        return 1, "", f"update-initramfs: /boot/vmlinuz-{release} is missing"
    host.put(f"/boot/initrd.img-{release}", image_of(host, release))
    # /etc/initramfs/post-update.d/systemd-boot
    kernel_install(host, ["kernel-install", "add", release, f"/boot/vmlinuz-{release}", f"/boot/initrd.img-{release}"])
    return 0, f"update-initramfs: Generating /boot/initrd.img-{release}\n", ""


def dkms(host: FakeHost, argv: list[str]) -> Answer:
    """Nothing asks it: what it would say is read from its tree."""
    return 1, "", "dkms: not to be asked"


def modinfo(host: FakeHost, argv: list[str]) -> Answer:
    """``modinfo PATH...``; a module of the fake tree holds its fields as text."""
    texts = {path: host.read(path) for path in argv[1:]}
    missing = "".join(f"modinfo: ERROR: Module {path} not found.\n" for path, text in texts.items() if text is None)
    out = ""
    for path, text in texts.items():
        fields = dict(line.split("=", 1) for line in (text or "").splitlines())
        out += (
            "".join(f"{key + ':':<16}{value}\n" for key, value in {"filename": path, **fields}.items()) if text else ""
        )
    return (1 if missing else 0), out, missing


def apt_mark(host: FakeHost, argv: list[str]) -> Answer:
    """``showhold``, ``hold NAME...``, ``unhold NAME...``."""
    if argv[1] == "hold":
        host.held |= set(argv[2:])
    elif argv[1] == "unhold":
        host.held -= set(argv[2:])
    return 0, "".join(f"{name}\n" for name in sorted(host.held)) if argv[1] == "showhold" else "", ""


def dpkg_query(host: FakeHost, argv: list[str]) -> Answer:
    """``-W`` the packages, ``-S PATH`` the owner of a kernel's file."""
    if argv[1] == "-S":
        release = argv[2].removeprefix("/boot/vmlinuz-").removeprefix("/lib/modules/")
        name = f"linux-image-{release}"
        known = name in host.packages
        return (0, f"{name}: {argv[2]}\n", "") if known else (1, "", f"dpkg-query: no path found matching {argv[2]}")
    return 0, "".join(f"{name}\t{version}\t{state} \n" for name, (version, state) in host.packages.items()), ""


def apt_cache(host: FakeHost, argv: list[str]) -> Answer:
    if argv[1] == "pkgnames":
        names = {name for name, _, _ in host.archive} | set(host.packages)
        return 0, "".join(f"{name}\n" for name in sorted(names) if name.startswith(argv[2])), ""
    place = "http://deb.debian.org/debian-security"
    rows = [row for row in host.archive if row[0] in argv[2:]]
    return (
        0,
        "".join(f" {name} | {version} | {place} {suite}/main amd64 Packages\n" for name, version, suite in rows),
        "",
    )


def apt_get(host: FakeHost, argv: list[str]) -> Answer:
    """``install NAME=VERSION...``, with ``-s`` only simulated; ``update`` does nothing."""
    if "update" in argv:
        return 0, "Reading package lists...\n", ""
    wanted = [tuple(word.split("=", 1)) for word in argv[argv.index("install") + 1 :]]
    missing = [(name, version) for name, version in wanted if not _known(host, name, version)]
    if missing:
        name, version = missing[0]
        return 100, "Reading package lists...\n", f"E: Version '{version}' for '{name}' was not found\n"
    broken = [name for name, (_, state) in host.packages.items() if state in ("iF", "iU")]
    new = [(name, version) for name, version in wanted if host.packages.get(name, ("", ""))[0] != version]
    text = "".join(f"Inst {name} ({version} Debian-Security:12/oldstable-security [amd64])\n" for name, version in new)
    text += "".join(
        f"Conf {name} (1 Debian-Security:12/oldstable-security [amd64])\n" for name in [*dict(new), *broken]
    )
    if "-s" not in argv:
        _install(host, [*new, *((name, host.packages[name][0]) for name in broken)])
    return 0, text, ""


def dpkg(host: FakeHost, argv: list[str]) -> Answer:
    """``--configure -a`` and ``--purge NAME...``."""
    if "--purge" in argv:
        for name in argv[argv.index("--purge") + 1 :]:
            host.packages.pop(name)
        return 0, "", ""
    _install(host, [(name, version) for name, (version, state) in host.packages.items() if state in ("iF", "iU")])
    return 0, "", ""


def _known(host: FakeHost, name: str, version: str) -> bool:
    in_archive = any(row[:2] == (name, version) for row in host.archive)
    return in_archive or host.packages.get(name, ("", ""))[0] == version


def _install(host: FakeHost, packages: list[tuple[str, str]]) -> None:
    for name, version in packages:
        host.packages[name] = (version, "ii")
        release = kernel_of_package(name)
        if name.startswith("linux-image-"):
            add_kernel(host, release, modules=False, entry=False)
            update_initramfs(host, ["update-initramfs", "-c", "-k", release])
        elif name.startswith("linux-headers-"):
            add_headers(host, release)
    for name, _ in packages:
        release = kernel_of_package(name)
        if host.exists(f"/lib/modules/{release}/build") and not host.dkms_fails:  # the hook of dkms
            add_kernel(host, release, modules=True, entry=False)


PROGRAMS = {
    "lxc-ls": lxc_ls,
    "lxc-info": lxc_info,
    "lxc-start": lxc_start,
    "lxc-stop": lxc_stop,
    "bootctl": bootctl,
    "systemctl": lambda host, argv: (0, "running\n" if argv[1] == "is-system-running" else "", ""),
    "systemd-run": systemd_run,
    "kernel-install": kernel_install,
    "update-initramfs": update_initramfs,
    "dkms": dkms,
    "modinfo": modinfo,
    "modprobe": lambda host, argv: (0, "", ""),
    "dpkg-query": dpkg_query,
    "dpkg": dpkg,
    "apt-cache": apt_cache,
    "apt-get": apt_get,
    "apt-mark": apt_mark,
}
