"""Helpers for several test modules: child processes, the process's own memory map, comparison bit by bit."""

import functools
import importlib
import inspect
import json
import math
import os
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.builders import Tensor

import weightmap as wm
from weightmap.core import native

DATA = Path(__file__).parent / "data"
SOURCES = str(Path(wm.__file__).parent.parent)
CSRC = Path(__file__).parent.parent / "csrc"
# The C sources that need no Python: test programs are compiled from them.
C_SOURCES = sorted(p for p in CSRC.rglob("*.c") if p.parent.name != "python")
EMULATED = "WEIGHTMAP_EMULATE_VPCLMULQDQ"
C_FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-pthread"]

# Seconds after which a thread or a process counts as hanging, and is ended. Working ones take less, however busy the
# machine is: bounds of work are processor time, requests or bytes.
HANG = 3600


def until(condition: Callable[[], object]) -> None:
    """Wait until another thread or process makes a condition true."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.01)


def run_child(
    code: str, *args: object, env: dict[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that can import the same weightmap; its arguments are in `sys.argv[1:]`."""
    path = os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert not check or result.returncode == 0, result.stderr
    return result


# The first code of a child process of `peak_of`.
_PEAK = """
import sys, threading
import numpy as np
import weightmap as wm

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

def peak(call):
    before, most, done = anonymous(), 0, threading.Event()

    def watch():
        nonlocal most
        while not done.wait(0.002):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return max(most, anonymous()) - before

"""


def peak_of(work: str, big: object, small: object, out: object, **options: Any) -> int:
    """Return the bytes of anonymous memory that a child takes at its peak for `work` on `source` and `out`, with `big`.

    It does the same with `small` first, for the imports.
    """
    code = f"{_PEAK}def work(source, out):\n    {work}\n\nbig, small, out = sys.argv[1:]\n"
    code += 'work(small, f"{out}.small")\nprint(peak(lambda: work(big, out)))'
    return int(run_child(code, big, small, out, **options).stdout)


def sparse(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "F32") -> Path:
    """Write a safetensors file of zeros, which takes no room on the disk."""
    width, entries, end = {"F32": 4, "U8": 1}[dtype], {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + width * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return path


def compiled(once: Callable[..., Path], name: str, program: Path, *, emulated: bool = False) -> None:
    """Make a program of ``tests/c/<name>.c`` and the kernels, which all such programs of a run share."""
    compiler = shutil.which("gcc") or (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, *C_FLAGS, f"-I{CSRC}"]
    kernels = once("kernels", lambda at: subprocess.run([*command, "-c", *map(str, C_SOURCES)], cwd=at, check=True))
    again = [path for path in C_SOURCES if emulated and EMULATED in path.read_text(encoding="utf-8")]
    objects = [kernels / f"{path.stem}.o" for path in C_SOURCES if path not in again]
    sources = [f"-D{EMULATED}"] * emulated + [str(CSRC.parent / "tests" / "c" / f"{name}.c"), *map(str, again)]
    subprocess.run([*command, *sources, *map(str, objects), "-o", str(program), "-lm"], check=True)


def preloaded(library: Path) -> str:
    """Return the LD_PRELOAD by which a child loads `library`, behind what this process was itself started with.

    That is the sanitiser's library, under the sanitisers: the package loads only where it came first.
    """
    return " ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(library))))


def each(cases: Iterable[Any], check: Callable[[Any], object], name: Callable[[Any], object] = str) -> None:
    """Call `check` with one case after another, and fail with the failures of all: for cases by the hundred.

    Collecting, distributing and reporting a pytest item for each would take longer than most checks.
    """
    failures: list[BaseException] = []
    for case in cases:
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the other cases are tried as well
            error.add_note(f"in the case {name(case)}")
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} cases", failures)


def in_one_item(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but with all cases in one item: `each` tries every one and tells which failed.

    The cases share their fixtures, such as a folder.
    """
    given, cases = names.split(", "), list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            tuples = ((case,) if len(given) == 1 else case for case in cases)
            each(tuples, lambda case: test(**fixtures, **dict(zip(given, case, strict=True))), name=repr)

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=fixtures)
        return run

    return decorate


def mappings(path: Path) -> list[tuple[int, int]]:
    """The address ranges where this process has `path` mapped."""
    name, found = os.path.realpath(path), []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5] == name:
            start, end = (int(part, 16) for part in parts[0].split("-"))
            found.append((start, end))
    return found


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element."""
    return int(array.__array_interface__["data"][0])


def same(array: Any, expected: Tensor) -> bool:
    """Whether an array has the shape, the dtype and every bit of the expected tensor."""
    return (
        isinstance(array, np.ndarray)
        and array.shape == expected.shape
        and array.dtype == expected.array.dtype
        and array.tobytes() == expected.data
    )


def exercise(handle: wm.TensorFile) -> None:
    """Touch all that a handle offers; on a damaged file each step may raise a TensorFileError and nothing else."""
    repr(handle)
    dict(handle.metadata)
    handle.infos()
    for name in handle:
        handle.info(name)
        np.asarray(handle[name]).tobytes()
    if handle.vocab is not None:
        words = list(handle.vocab)
        dict(handle.vocab.special_ids)
        handle.vocab.get("nothing like it")
        if words:
            handle.vocab.index(words[-1])
    handle.verify()


def kernel_modules() -> list[ModuleType]:
    """Every module of the kernels, all imported: one that is imported while another is patched would keep the patch."""
    return [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(native.__path__, "weightmap.core.native.")
    ]


def listing(folder: Path) -> list[str]:
    """Every name in a directory, hidden ones included."""
    return sorted(path.name for path in folder.iterdir())


def save_with(path, tensors, *, layout=None, checksums=True, durable=True, **options):
    """`wm.save` with the arguments that builders name."""
    wm.save(path, tensors, output=wm.Output(layout, checksums=checksums, durable=durable), **options)
