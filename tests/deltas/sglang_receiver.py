"""A stand-in for the receiver of SGLang: it writes into the files through a mapping, and the record last.

It knows the lock, the record and, by their endings, the files in the directory, and nothing else of ours. Where
``WEIGHTMAP_SGLANG`` names SGLang's own ``sglang/srt/weight_sync/local_checkpoint.py``, that takes its place.
"""

import fcntl
import importlib.util
import json
import mmap
import os
import shutil
import struct
from types import SimpleNamespace

import numpy as np
import zstandard
from tests.deltas.delta_files import SUMS


def places(folder):
    """The file, offset and bytes of each tensor; no tensor is in two files."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                assert name not in found, f"{name} is in {found[name][0].name} and in {path.name}"
                begin, end = entry["data_offsets"]
                found[name] = path, start + begin, end - begin
    return found


OWN = os.environ.get("WEIGHTMAP_SGLANG")


def own_pull(local, source, target, base, *, torn):
    """The same by SGLang's own code, which is one file of Python."""
    spec = importlib.util.spec_from_file_location("local_checkpoint", str(OWN))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    decoders = []

    def decoder():
        if torn and decoders:
            raise InterruptedError
        decoders.append(None)
        return zstandard.ZstdDecompressor()

    module.NUM_WORKERS = 1
    module.zstandard = SimpleNamespace(ZstdDecompressor=decoder)
    module.pull(str(local), str(base), str(source), target)


def pull(local, source, target, base, *, torn=False):
    """Go to a version; `torn`: stop after the first tensor, as if killed."""
    if OWN is not None:
        own_pull(local, source, target, base, torn=torn)
        return
    sync = local / ".weight_sync"
    sync.mkdir(parents=True, exist_ok=True)
    with (sync / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state, way, number = sync / "state.json", [], target
        at = int(json.loads(state.read_text())["version"]) if state.exists() else None
        while number not in (0, at):
            folder = source / f"weight_v{number:06}"
            index = folder / "model.safetensors.index.json"
            said = json.loads(index.read_text()).get("metadata", {}) if index.exists() else {}
            way.append((number, folder, said))
            if "delta_encoding" not in said:
                break
            number = int(said["base_version"])
        if number == 0 != at:
            way.append((0, base, {}))
        for number, folder, said in reversed(way):
            if "delta_encoding" in said:
                change(local, folder, said, torn=torn)
            else:
                replace(local, folder)
            state.write_text(json.dumps({"version": f"{number:06}"}))


def replace(local, folder):
    """Copy a full version over the present files."""
    new = {path.name for path in folder.iterdir()}
    for path in local.iterdir():
        if path.is_file() and path.name not in new:
            path.unlink()
    for name in new:
        shutil.copy(folder / name, local / name)


def change(local, folder, said, *, torn):
    """Apply a delta in place."""
    where = places(local)
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:start])
        sums = header.pop("__metadata__")
        for name, entry in header.items():
            begin, end = (start + at for at in entry["data_offsets"])
            got = np.frombuffer(zstandard.ZstdDecompressor().decompress(data[begin:end]), np.uint8)
            file, at, size = where[name]
            with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
                old = np.frombuffer(mapped, np.uint8, size, at)
                if said["delta_encoding"] == "xor":
                    new = old ^ got
                else:
                    count = struct.unpack_from("<I", got)[0]
                    new = old.copy()
                    new[got[4 : 4 + 4 * count].view("<u4")] = got[4 + 4 * count :]
                del old
                mapped[at : at + size] = new.tobytes()
                assert SUMS[said["checksum_format"]](new.tobytes()) == sums[name]
            if torn:
                raise InterruptedError
