"""Build the peers that our figures are compared with: nvbandwidth, and all_reduce_perf of nccl-tests.

Neither is part of this project. Give a checkout of each, and the nvcc of the machine compiles them:

    git clone https://github.com/NVIDIA/nvbandwidth /tmp/nvbandwidth
    git clone https://github.com/NVIDIA/nccl-tests /tmp/nccl-tests
    python3 tools/peers/build.py --nvbandwidth /tmp/nvbandwidth --nccl-tests /tmp/nccl-tests --output .peers

What has to be there: nvcc (CUDA 12 or newer), a C++ compiler, make. For nvbandwidth also nvml.h (of the CUDA toolkit,
or of the wheel nvidia-nvml-dev, see --nvml) and Boost's program_options as a static library (Debian's package
libboost-program-options-dev, or --boost). For nccl-tests NCCL's header and library: those of the wheel beside torch
unless --nccl says otherwise, so that both sides run the same NCCL. With --mpi a second all_reduce_perf is built that
runs one process a GPU, as engines do: the wheel mpich has all of it (unpack it, and name its folder data).

No driver is needed here: the programs are linked against stand-ins for libcuda and libnvidia-ml that have only the
names, and find the real ones where they run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nccl_tests import nccl_of_torch

DRIVER_LIBRARIES = {
    "libcuda.so.1": re.compile(r"cu[A-Z]\w+"),
    "libnvidia-ml.so.1": re.compile(r"nvml[A-Z]\w+"),
}
"""The driver's libraries, and how the names in each begin. The runtime's own (cudaMalloc) begin with a small letter."""

NOT_FOR_ONE_HOST = ("*.la", "*.a", "*.so", "pkgconfig", "libmpi_abi*", "libfabric", "libuct_ib*", "libuct_rdmacm*")
"""What the wheel mpich has for compilers, for its second interface, and for networks between hosts."""

CUDA_HOME_LINE = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
"""Where nvcc says that its toolkit is; it may be a wrapper that stands elsewhere."""


class BuildError(Exception):
    """Something that is needed is not there, or a compiler failed; the text says what to do."""


@dataclass(frozen=True)
class Toolkit:
    """nvcc, where its toolkit is, and what it shall compile for."""

    nvcc: str
    home: Path
    gencode: tuple[str, ...]


def run(argv: list[str], folder: Path | None = None) -> str:
    """Run a command and give back what it wrote. Raises BuildError with its last lines where it fails."""
    done = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(argv)}\nfailed with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def gencode(architecture: str) -> tuple[str, ...]:
    """nvcc's options for machine code of one architecture, and PTX that later ones can be made from.

    >>> gencode("90")
    ('-gencode=arch=compute_90,code=sm_90', '-gencode=arch=compute_90,code=compute_90')
    """
    compute = f"-gencode=arch=compute_{architecture}"
    return f"{compute},code=sm_{architecture}", f"{compute},code=compute_{architecture}"


def toolkit_home(dry_run: str) -> Path:
    """The toolkit's folder, out of what ``nvcc --dryrun`` says. Raises BuildError where it says nothing of the kind."""
    found = CUDA_HOME_LINE.search(dry_run)
    if found is None:
        raise BuildError("nvcc --dryrun does not say where its toolkit is (a line with TOP=)")
    return Path(found.group(1)).resolve()


def find_toolkit(nvcc: str, architecture: str, small: bool = False) -> Toolkit:
    """The toolkit that this nvcc belongs to."""
    path = shutil.which(nvcc)
    if path is None:
        raise BuildError(f"no {nvcc} here: install the CUDA toolkit, or name its nvcc with --nvcc")
    more = ("--compress-mode=size",) if small else ()  # CUDA 12.8 and newer
    return Toolkit(path, toolkit_home(run([path, "--dryrun", "-c", "any.cu"])), (*gencode(architecture), *more))


def undefined(listing: str) -> list[str]:
    """The names that object files take from elsewhere, out of what ``nm --undefined-only`` lists.

    >>> undefined("a.o:\\n                 U cuInit\\n                 w __gmon_start__\\n                 U cuInit\\n")
    ['cuInit']
    """
    return sorted(set(re.findall(r"^\s+U (\w+)", listing, re.MULTILINE)))


def stand_ins(names: list[str], folder: Path) -> list[str]:
    """Make libraries of the driver's names that have nothing behind them; returns what to link.

    They are for the linker alone and must not come near a program that runs.
    """
    made = []
    for library, pattern in DRIVER_LIBRARIES.items():
        wanted = [name for name in names if pattern.fullmatch(name)]
        source, target = folder / f"{library}.c", folder / library.removesuffix(".1")  # nvcc knows .so and no .so.1
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in wanted))
        run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", str(source), "-o", str(target)])
        made.append(str(target))
    return made


def boost(prefix: Path | None) -> tuple[list[str], str]:
    """Include options and the static library of Boost's program_options. Raises BuildError where there is none."""
    root = prefix or Path("/usr")
    for folder in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"):
        library = root / folder / "libboost_program_options.a"
        if library.exists():
            return ([f"-I{root / 'include'}"] if prefix else []), str(library)
    raise BuildError(
        f"no libboost_program_options.a under {root}: install libboost-program-options-dev (Debian, Ubuntu) "
        "or boost-static (Fedora), or unpack it somewhere and name that prefix with --boost"
    )


def nvml_include(given: Path | None, toolkit: Toolkit) -> list[str]:
    """The include option for nvml.h. Raises BuildError where it is nowhere."""
    places = [given] if given else [toolkit.home / "include", toolkit.home / "targets/x86_64-linux/include"]
    for place in places:
        if (place / "nvml.h").exists():
            return [f"-I{place}"]
    raise BuildError(
        f"no nvml.h in {' or '.join(map(str, places))}: pip install --target nvml nvidia-nvml-dev, "
        "then --nvml nvml/nvidia/cu13/include"
    )


def build_nvbandwidth(source: Path, toolkit: Toolkit, options: argparse.Namespace) -> Path:
    """Compile nvbandwidth as its CMakeLists does in a release build, but for one architecture and without a GPU."""
    include, library = boost(options.boost)
    version = run(["git", "-C", str(source), "describe", "--always", "--tags"]).strip()
    common = [
        toolkit.nvcc, "-std=c++17", "-O3", "-DNDEBUG", *toolkit.gencode, f'-DGIT_VERSION="{version}"',
        f"-I{source}", *include, *nvml_include(options.nvml, toolkit),
    ]  # fmt: skip
    target = options.output / "nvbandwidth"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = []
        for path in sorted([*source.glob("*.cpp"), *source.glob("*.cu"), source / "json/jsoncpp.cpp"]):
            print(f"  nvbandwidth: {path.name}", flush=True)
            objects.append(str(folder / f"{path.stem}.o"))
            run([*common, "-c", str(path), "-o", objects[-1]])
        libraries = stand_ins(undefined(run(["nm", "--undefined-only", *objects])), folder)
        run([*common, *objects, library, *libraries, "-o", str(target)])
    return target


def nccl_home(given: Path | None, folder: Path) -> Path:
    """A folder as nccl-tests' Makefile wants it: the wheel has libnccl.so.2, the linker looks for libnccl.so."""
    place = given or nccl_of_torch()
    if place is None or not (place / "include/nccl.h").exists():
        raise BuildError(
            f"no include/nccl.h in {place or 'this Python (no wheel nvidia-nccl-*)'}: run this with the Python that "
            "has torch, or name NCCL's folder with --nccl"
        )
    libraries = sorted((place / "lib").glob("libnccl.so*"))
    if not libraries:
        raise BuildError(f"no libnccl.so in {place / 'lib'}")
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(place.resolve() / "include")
    (folder / "lib/libnccl.so").symlink_to(libraries[0].resolve())
    return folder


def build_nccl_tests(source: Path, toolkit: Toolkit, options: argparse.Namespace, mpi: Path | None) -> Path:
    """Run nccl-tests' own Makefile for all_reduce_perf alone; with MPI it is called all_reduce_perf_mpi."""
    suffix = "_mpi" if mpi else ""
    target = options.output / f"all_reduce_perf{suffix}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        wanted = folder / "build" / target.name
        print(f"  nccl-tests: {target.name}", flush=True)
        run([
            "make", "-C", str(source / "src"), f"-j{os.cpu_count() or 1}", str(wanted), f"BUILDDIR={folder / 'build'}",
            f"NVCC={toolkit.nvcc}", f"CUDA_HOME={toolkit.home}", "CUDARTLIB=cudart_static",
            f"NCCL_HOME={nccl_home(options.nccl, folder / 'nccl')}", f"NVCC_GENCODE={' '.join(toolkit.gencode)}",
            *(["MPI=1", f"MPI_HOME={mpi}", f"NAME_SUFFIX={suffix}"] if mpi else []),
        ])  # fmt: skip
        shutil.copyfile(wanted, target)
    return target


def copy_mpi(mpi: Path, output: Path) -> None:
    """Put what runs an MPI program on one host beside it: its libraries and its launcher, stripped."""
    target = output / "mpi"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(mpi / "lib", target / "lib", ignore=shutil.ignore_patterns(*NOT_FOR_ONE_HOST))
    (target / "bin").mkdir()
    for name in ("mpiexec.hydra", "hydra_pmi_proxy"):
        shutil.copyfile(mpi / "bin" / name, target / "bin" / name)
        (target / "bin" / name).chmod(0o755)
    libraries = [path for path in (target / "lib").rglob("*.so.*") if path.read_bytes()[:4] == b"\x7fELF"]
    run(["strip", *map(str, libraries), *map(str, (target / "bin").iterdir())])


def finish(program: Path) -> None:
    """Take the debugging symbols out, make it run, and say how large it is."""
    run(["strip", str(program)])
    program.chmod(0o755)
    print(f"{program}: {program.stat().st_size / 1e6:.1f} MB", flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="build.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--nvbandwidth", type=Path, metavar="SRC", help="a checkout of nvbandwidth")
    made.add_argument("--nccl-tests", type=Path, metavar="SRC", help="a checkout of nccl-tests")
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the programs go")
    made.add_argument("--nvcc", default="nvcc", metavar="PROGRAM")
    made.add_argument("--architecture", default="90", metavar="NN", help="compute capability without its point (90)")
    made.add_argument("--small", action="store_true", help="compress the GPU's code; for carrying it elsewhere")
    made.add_argument("--boost", type=Path, metavar="DIR", help="prefix with include/boost and the static library")
    made.add_argument("--nvml", type=Path, metavar="DIR", help="folder with nvml.h")
    made.add_argument("--nccl", type=Path, metavar="DIR", help="folder with include/nccl.h and lib/libnccl.so*")
    made.add_argument("--mpi", type=Path, metavar="DIR", help="prefix of an MPICH with include/mpi.h, lib and bin")
    return made


def build(options: argparse.Namespace) -> None:
    """Build what was asked for."""
    options.output.mkdir(parents=True, exist_ok=True)
    toolkit = find_toolkit(options.nvcc, options.architecture, options.small)
    if options.nvbandwidth:
        finish(build_nvbandwidth(options.nvbandwidth.resolve(), toolkit, options))
    if options.nccl_tests:
        source = options.nccl_tests.resolve()
        finish(build_nccl_tests(source, toolkit, options, None))
        if options.mpi:
            finish(build_nccl_tests(source, toolkit, options, options.mpi.resolve()))
            copy_mpi(options.mpi.resolve(), options.output)


def main(argv: list[str] | None = None) -> int:
    """Build; exit status 2 and a sentence where something is missing."""
    try:
        build(parser().parse_args(argv))
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
