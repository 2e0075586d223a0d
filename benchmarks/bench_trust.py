"""Loading a signed model of several files: every byte hashed, then every tensor touched.

The rival verifies the signature with model_signing, and then loads with safetensors. Ours hashes the copy that tensors
are made of, or the file before it is mapped. "From the disk" the files were dropped from the page cache before each
call; then no load is faster than reading alone, nor than hashing what lies in memory.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weightmap as wm
from timing import Timed, each_contender, need, ours, rival

MEBIBYTES, FILES, READ = 512, 4, 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory, smoke):
    """A folder of shards, with a signature and its public key beside it."""
    ec = need("cryptography.hazmat.primitives.asymmetric.ec")
    own = need("cryptography.hazmat.primitives.serialization")
    need("model_signing.signing")
    need("OpenSSL")
    at = tmp_path_factory.mktemp("trust")
    rng = np.random.default_rng(1)
    count = FILES if smoke else MEBIBYTES
    tensors = {f"layer.{i}": rng.random(1 << 18, np.float32) for i in range(count)}
    (at / "model").mkdir()
    wm.save(at / "model" / "model.safetensors", tensors, max_shard_size=(count // FILES << 20) + 4096)
    key = ec.generate_private_key(ec.SECP256R1())
    form = (own.Encoding.PEM, own.PrivateFormat.PKCS8, own.NoEncryption())
    (at / "key").write_bytes(key.private_bytes(*form))
    form = (own.Encoding.PEM, own.PublicFormat.SubjectPublicKeyInfo)
    (at / "pub").write_bytes(key.public_key().public_bytes(*form))
    wm.trust.sign(at / "model", at / "sig", key=at / "key")
    return at


def touch(arrays):
    """Touch every page of some arrays."""
    for array in arrays:
        array.reshape(-1)[::1024].sum()


def weightmap(model, mode, *, signed=True, touched=True):
    """Open, hash, and touch the tensors."""
    trust = wm.trust.signature(model / "sig", key=model / "pub") if signed else None

    def call():
        with wm.open(model / "model", mode=mode, trust=trust) as file:
            if touched:
                touch(file.values())

    return Timed(call)


def verify_then_load(model):
    """Verify by model_signing, then load by safetensors."""
    verifying, safetensors = need("model_signing.verifying"), need("safetensors.numpy")
    paths = sorted((model / "model").glob("*.safetensors"))

    def call():
        verifying.Config().use_elliptic_key_verifier(public_key=model / "pub").verify(model / "model", model / "sig")
        for path in paths:
            touch(safetensors.load_file(path).values())

    return Timed(call)


def hashing(model):
    """SHA-256 of as many bytes in memory, by two threads."""
    paths = sorted((model / "model").glob("*.safetensors"))
    contents = [path.read_bytes() for path in paths]

    def call():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda content: hashlib.sha256(content).digest(), contents))

    return Timed(call)


def reading_and_hashing(model):
    """SHA-256 of the files, as hashlib reads them, by two threads: the least cost of a check before the load."""
    paths = sorted((model / "model").glob("*.safetensors"))

    def digest(path):
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").digest()

    def call():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(digest, paths))

    return Timed(call)


def reading(model):
    """Read the files and do nothing with them, by two threads."""
    paths = sorted((model / "model").glob("*.safetensors"))

    def read(path):
        into = bytearray(READ)
        with path.open("rb", buffering=0) as file:
            while file.readinto(into):
                pass

    def call():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, paths))

    return Timed(call)


def evict(model):
    """Drop the files from the page cache; they stay on a file system in memory."""
    for path in (model / "model").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_disk(contender):
    """Return the contender with the files dropped before each call."""

    def prepare(model):
        warm = contender.prepare(model)
        return Timed(lambda _: warm.function(), lambda: evict(model))

    return contender._replace(prepare=prepare)


CONTENDERS = (
    ours(lambda model: weightmap(model, "mmap"), "weightmap, mmap", threads=2)
    | ours(lambda model: weightmap(model, "mmap", touched=False), "weightmap, mmap, not touched", threads=2)
    | ours(lambda model: weightmap(model, "copy"), "weightmap, copy", threads=2)
    | ours(lambda model: weightmap(model, "mmap", signed=False), "weightmap, mmap, without trust=", threads=2)
    | {
        "model_signing, then safetensors": rival(verify_then_load),
        "hashlib.file_digest, 2 threads": rival(reading_and_hashing),
        "hashlib, 2 threads, from memory": rival(hashing),
    }
)


WHAT = f"trust/{FILES} files, {MEBIBYTES} MiB"
GROUPS = {
    WHAT: CONTENDERS,
    f"{WHAT}, from the disk": {name: from_disk(contender) for name, contender in CONTENDERS.items()}
    | {"reading, 2 threads": from_disk(rival(reading))},
}


@each_contender(GROUPS)
def test_trust(compare, model, group, who):
    """Load a signed model."""
    nbytes = sum(path.stat().st_size for path in (model / "model").iterdir())
    compare(GROUPS, model, nbytes=nbytes)
