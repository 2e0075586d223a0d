"""Builds the wheels for Linux from any Linux machine, and audits them: `make wheels`.

The compiler is clang as `ziglang` packs it, with the headers of every glibc and of musl. So a wheel needs no newer C
library than its tag says, whatever this machine has.

Wheels for macOS and Windows come from the machines of `.github/workflows/wheels.yml`: no emulator here runs Python for
them, and an untested module should not be installed.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
MODULE = "_kernels.abi3.so"
# A stripped C module has half of this; with debug information it has four times as much.
MODULE_BYTES = 1_000_000
# The libraries that every Linux has.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"}


class Target(NamedTuple):
    """A platform that wheels are built for."""

    compiler: str
    """The target as the compiler spells it, with the version of glibc."""

    platform: str
    """The platform as setuptools spells it."""

    tag: str
    """The tag that the wheel must earn from auditwheel."""

    musl: str = ""
    """The name of the C library where it is musl."""


TARGETS = {
    "x86_64": Target("x86_64-linux-gnu.2.17", "linux-x86_64", "manylinux_2_17_x86_64"),
    "aarch64": Target("aarch64-linux-gnu.2.17", "linux-aarch64", "manylinux_2_17_aarch64"),
    "x86_64-musl": Target("x86_64-linux-musl", "linux-x86_64", "musllinux_1_2_x86_64", "libc.musl-x86_64.so.1"),
    "aarch64-musl": Target("aarch64-linux-musl", "linux-aarch64", "musllinux_1_2_aarch64", "libc.musl-aarch64.so.1"),
}


def run(*command: str, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output; when it fails, show the output and stop."""
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, env={**os.environ, **(environment or {})}, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def tool(name: str, *arguments: str) -> str:
    """Run a program of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return run(str(Path(sys.executable).parent / name), *arguments, environment={"PATH": path})


def source_distribution() -> Path:
    """Build the source distribution into dist/, and return its path."""
    found = ROOT / "dist"
    for old in found.glob("weightmap-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(found), ".")
    [path] = found.glob("weightmap-*.tar.gz")
    return path


def build(name: str, target: Target, source: Path) -> Path:
    """Build the wheel of a target from the source distribution, and return its path in dist/."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    [unpacked] = folder.iterdir()
    compiler = f"{shlex.quote(sys.executable)} -m ziglang cc -target {target.compiler}"
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), "."),
        folder=unpacked,
        environment={
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared -s",
            # Replace the building interpreter's flags; optimisation is in build_ffi.py.
            "CFLAGS": "-g0 -DNDEBUG",
            "LDFLAGS": "",
            "_PYTHON_HOST_PLATFORM": target.platform,
        },
    )
    [wheel] = folder.glob("*.whl")
    if target.musl:
        wheel = renamed(wheel, target.musl)
    tool("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(folder / "repaired"), str(wheel))
    [repaired] = (folder / "repaired").glob("*.whl")
    return Path(shutil.move(repaired, ROOT / "dist" / repaired.name))


def renamed(wheel: Path, musl: str) -> Path:
    """Let the C module of a wheel ask for musl by the name that distributions give it; the linker calls it libc.so.

    musl takes both names for itself. The longer one tells auditwheel the C library.
    """
    tool("wheel", "unpack", "--dest", str(wheel.parent / "renamed"), str(wheel))
    [unpacked] = (wheel.parent / "renamed").iterdir()
    tool("patchelf", "--replace-needed", "libc.so", musl, str(unpacked / "weightmap" / MODULE))
    wheel.unlink()
    tool("wheel", "pack", "--dest-dir", str(wheel.parent), str(unpacked))
    return wheel


def needed(wheel: Path) -> set[str]:
    """Return the libraries that the C module of a wheel needs."""
    folder = WORK / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        module = archive.extract(f"weightmap/{MODULE}", folder)
    return set(tool("patchelf", "--print-needed", module).split())


def audit(wheel: Path, target: Target) -> None:
    """Stop unless the wheel keeps the stable ABI, its tag's C library, a small module and a sound description."""
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(f"weightmap/{MODULE}").file_size
    problems = []
    if size > MODULE_BYTES:
        problems.append(f"the C module has {size:,} bytes: was it stripped?")
    if target.tag not in wheel.name:
        problems.append(f"it has not earned the tag {target.tag}")
    if foreign := needed(wheel) - SYSTEM:
        problems.append(f"the C module asks for {', '.join(sorted(foreign))}")
    if problems:
        sys.exit(f"{wheel.name}: {'; '.join(problems)}")
    tool("abi3audit", "--strict", str(wheel))
    tool("check-wheel-contents", str(wheel))
    tool("twine", "check", "--strict", str(wheel))
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, of which the C module {size:,} unpacked")


def main() -> None:
    """Build and audit the wheels that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"among {', '.join(TARGETS)}; all by default")
    chosen = parser.parse_args().targets or list(TARGETS)
    if unknown := [name for name in chosen if name not in TARGETS]:
        parser.error(f"unknown targets: {', '.join(unknown)}")
    source = source_distribution()
    tool("twine", "check", "--strict", str(source))
    print(f"{source.name}: {source.stat().st_size:,} bytes")
    for name in chosen:
        audit(build(name, TARGETS[name], source), TARGETS[name])


if __name__ == "__main__":
    main()
