"""Runs in an environment with modelexpress: its publisher writes a version, and its receiver applies one.

``publish OLD NEW DIRECTORY VERSION BASE_VERSION``; ``receive MODEL DIRECTORY VERSION BASE_VERSION``. Both go through
its own functions, with a store that is a directory; they use nothing of torch here, so it may be missing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock


class _Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torch, which is two gigabytes."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "nixl"} or name == "safetensors.torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name, __path__=[], __spec__=spec)
        module.__name__ = spec.name
        return module

    def exec_module(self, module):
        pass


if importlib.util.find_spec("torch") is None:
    sys.meta_path.insert(0, _Stand())

from modelexpress_rl.inference import receiver  # noqa: E402
from modelexpress_rl.train.methods import canonical_delta  # noqa: E402
from modelexpress_rl.utils import (  # noqa: E402
    checksum_factory,
    compress_delta,
    compute_delta,
    index_checkpoint_tensors,
    make_tensor_reader,
)


class _Gathering:
    """torch.distributed with one rank."""

    @staticmethod
    def all_gather_object(found, given, group=None):
        found[0] = given

    @staticmethod
    def gather_object(given, found, dst=0, group=None):
        found[0] = given


def publish(old, new, directory, version, base_version):
    """Write a version as `CanonicalDeltaPublicationMethod.publish` does."""
    (read_old, names), (read_new, _) = make_tensor_reader(old), make_tensor_reader(new)
    encoded, sums = {}, {}
    for name in names:
        delta, _ = compute_delta(read_new(name), read_old(name))
        if delta is not None:
            encoded[name] = compress_delta(delta)
            checksum = checksum_factory("adler32")
            checksum.update(read_new(name))
            sums[name] = checksum.hexdigest()
    Path(directory).mkdir(parents=True)
    method = object.__new__(canonical_delta.CanonicalDeltaPublicationMethod)
    put = SimpleNamespace(put=lambda uri, data: Path(uri).write_bytes(data))
    canonical_delta.dist = _Gathering
    staged = canonical_delta.StagedCanonicalDelta(
        base_version_id=base_version,
        target_version_id=version,
        object_storage_uri=f"{directory}/model.safetensors.index.json",
        candidate_snapshot={},
        encoded_deltas=encoded,
        checksums=sums,
        changed_bytes=0,
        total_bytes=0,
    )
    vars(method).update(_staged=staged, current_base_version_id=base_version, _clock=lambda: 0.0, _rank=0)
    vars(method).update(_process_group=None, _world_size=1, _s3=put, _checksum_format="adler32", snapshot={})
    method.publish(version=SimpleNamespace(version_id=version), staged=staged)


def receive(model, directory, version, base_version):
    """Apply a delta in place as the receiver does."""
    directory = Path(directory)
    metadata, where = receiver._parse_index_manifest(
        (directory / "model.safetensors.index.json").read_bytes(),
        is_delta=True,
        version=SimpleNamespace(version_id=version, base_version_id=base_version),
    )
    local = object.__new__(receiver._LocalCheckpoint)
    _, local.locations, _ = index_checkpoint_tensors(model)
    grouped = receiver._group_tensors_by_shard(where)
    shards = {name: ((directory / name).read_bytes(), tensors) for name, tensors in grouped.items()}
    local._apply_shards(shards, index_metadata=metadata)


if __name__ == "__main__":
    {"publish": publish, "receive": receive}[sys.argv[1]](*sys.argv[2:])
