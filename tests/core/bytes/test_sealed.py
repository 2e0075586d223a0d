"""Mode "sealed": memory that nobody can change or take away, shared by its descriptor."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support import SOURCES

import weightmap as wm
from weightmap.core.bytes import sealed as sealing

fcntl = pytest.importorskip("fcntl")
VALUES = np.arange(5000, dtype=np.float32)
WORDS = ["one", "two"]
needs_sealing = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no sealed memory")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.weights"
    wm.save(path, {"w": VALUES}, vocab=WORDS)
    return path


def sealed_memory():
    """The sealed memory that this process has open, by inode."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            if "memfd:weightmap" in str(descriptor.readlink()):
                found.append(descriptor.stat().st_ino)
    return found


def memory(data, *seals):
    """A descriptor of memory with these bytes and these seals."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    for seal in seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, getattr(fcntl, seal))
    return fd


@needs_sealing
def test_nobody_can_write_to_the_memory_or_shrink_it(path):
    with wm.open(path, mode="sealed") as f:
        fd = f.fileno()
        size = os.fstat(fd).st_size
        assert size == path.stat().st_size
        for change in (
            lambda: os.pwrite(fd, b"x", 0),
            lambda: os.ftruncate(fd, 0),
            lambda: os.ftruncate(fd, size + 1),
            lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0),
        ):
            with pytest.raises(PermissionError):
                change()
        assert not f["w"].flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            f["w"].setflags(write=True)


@needs_sealing
def test_one_descriptor_while_it_is_open_and_none_afterwards(path):
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    f = wm.open(path, mode="sealed")
    held = f["w"]
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before + 1
    assert len(sealed_memory()) == 1
    f.close()
    assert not sealed_memory()
    np.testing.assert_array_equal(held, VALUES)


@needs_sealing
@pytest.mark.parametrize("mode", ["sealed", "copy"])
@pytest.mark.parametrize(
    ("limits", "bound"), [(wm.Limits(max_copy_bytes=1 << 20), "max_copy_bytes"), (None, "the memory that is left")]
)
def test_the_copy_is_bounded_before_anything_is_read(tmp_path, mode, limits, bound):
    path = tmp_path / "huge.safetensors"
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (2**40, 2**40)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 2**40)
    with pytest.raises(wm.LimitError, match=bound) as caught:
        wm.open(path, mode=mode, limits=limits)
    assert caught.value.path == str(path)
    assert not sealed_memory()


@needs_sealing
@pytest.mark.parametrize("mode", ["sealed", "copy"])
def test_a_file_that_changes_while_it_is_copied(path, mode, monkeypatch):
    preadv = os.preadv
    data = path.read_bytes()

    def shrunk(fd, buffers, offset):
        os.truncate(path, 100)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", shrunk)
    with pytest.raises(wm.TruncatedError, match="became shorter"):
        wm.open(path, mode=mode)
    path.write_bytes(data)

    def touched(fd, buffers, offset):
        os.utime(path, ns=(1, 1))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", touched)
    with pytest.raises(wm.FileChangedError, match=r"model\.weights"):
        wm.open(path, mode=mode)
    assert not sealed_memory()


def test_a_system_without_sealed_memory_is_an_error(path, monkeypatch):
    monkeypatch.setattr(sealing, "AVAILABLE", False)
    with pytest.raises(ValueError, match="needs Linux; use 'copy'"):
        wm.open(path, mode="sealed")
    monkeypatch.setenv("WEIGHTMAP_MODE", "sealed")
    with pytest.raises(ValueError, match="needs Linux"):
        wm.open(path)
    with wm.open(path, mode="mmap") as f, path.open("rb") as file, wm.open(file.fileno(), mode="mmap") as g:
        assert not f.is_stable
        assert not g.is_stable


@needs_sealing
@pytest.mark.parametrize("mode", ["mmap", "cow", "sealed"])
def test_sealed_memory_of_others(path, mode):
    fd = memory(path.read_bytes(), "F_SEAL_SHRINK", "F_SEAL_WRITE")
    with wm.open(fd, mode=mode) as f:
        assert f.is_stable
        np.testing.assert_array_equal(f["w"], VALUES)
        if mode == "sealed":
            assert os.fstat(f.fileno()).st_ino == os.fstat(fd).st_ino
    os.close(fd)


@needs_sealing
@pytest.mark.parametrize("seals", [(), ("F_SEAL_SHRINK", "F_SEAL_GROW"), ("F_SEAL_WRITE",)], ids="-".join)
def test_memory_that_is_not_sealed_enough_is_copied(path, seals):
    """If somebody could still write to the memory or shrink it, it is copied like a file, and is not stable itself."""
    fd = memory(path.read_bytes(), *seals)
    with wm.open(fd, mode="sealed") as f, wm.open(fd, mode="mmap") as g:
        assert not g.is_stable
        assert os.fstat(f.fileno()).st_ino != os.fstat(fd).st_ino
        np.testing.assert_array_equal(f["w"], VALUES)
    os.close(fd)


def test_what_is_stable(path):
    data = path.read_bytes()
    stable = {"copy": wm.open(path, mode="copy"), "bytes": wm.open(data), "view": wm.open(memoryview(data))}
    stable |= {"copied": wm.open(bytearray(data), mode="copy"), "cow": wm.open(bytearray(data), mode="cow")}
    changing = {"mmap": wm.open(path), "cow": wm.open(path, mode="cow"), "bytearray": wm.open(bytearray(data))}
    changing |= {"array": wm.open(np.frombuffer(bytearray(data), np.uint8))}
    for kind, f in (stable | changing).items():
        f["w"]
        assert f.is_stable == (kind in stable and f in stable.values()), kind
        f.close()
        with pytest.raises(wm.ClosedError):
            f.is_stable  # noqa: B018 - a property that raises


@pytest.mark.parametrize("mode", ["mmap", "cow", "copy"])
def test_other_modes_have_no_descriptor_to_share(path, mode):
    with wm.open(path, mode=mode) as f, pytest.raises(io.UnsupportedOperation, match="sealed"):
        f.fileno()
    with pytest.raises(wm.ClosedError):
        f.fileno()


CHILD = """
import os, sys, numpy as np, weightmap as wm
with wm.open(int(sys.argv[1]), mode="sealed") as f:
    print(os.fstat(f.fileno()).st_ino, f["w"].sum())
"""


@needs_sealing
def test_another_program_opens_the_descriptor(path):
    with wm.open(path, mode="sealed") as f:
        path.unlink()
        fd = f.fileno()
        inode, total = subprocess.run(
            [sys.executable, "-c", CHILD, str(fd)],
            env={**os.environ, "PYTHONPATH": SOURCES},
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert int(inode) == os.fstat(fd).st_ino
    assert float(total) == float(VALUES.sum())
