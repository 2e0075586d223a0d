"""Bundles of OpenSSF model-signing, which its library ``model-signing`` reads and writes without a network.

A bundle holds a signed manifest: names of files relative to the model, each with a digest; the names left out; and
whether symbolic links counted as files. The library decides whether the signature is good. Hashing the files is ours,
by the rules of the library: a file that the manifest lacks is refused, unless the manifest leaves it out or it belongs
to git (``.git``, ``.github``, ``.gitattributes``, ``.gitignore``).
Ours: manifests over pieces of files ("shards") are refused, because they have no digest of a whole file. A link stands
for its target, whose bytes are hashed, even if the signature was made without allowing links: caches of hubs link every
file. A link to a folder is refused.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from weightmap._messages import quoted
from weightmap.core.bytes.atomic import scratch_folder, write_plan
from weightmap.core.bytes.open_source import from_path
from weightmap.core.bytes.sink import WritePlan
from weightmap.errors import MissingDependencyError, TargetError, TensorFileError, TrustError, UnsupportedError
from weightmap.trust.checking import Trust, relative
from weightmap.trust.lists import Digest, Digests, plain, read_list

_LARGEST = 1 << 26
_GIT = (".git", ".gitattributes", ".github", ".gitignore")
_ALONE = "."  # the name of a model that is one file


class Signature(NamedTuple):
    """A bundle, and the key or certificates that check its signature: see `weightmap.trust.signature`."""

    path: str
    key: str | None
    certificates: tuple[str, ...]
    identity: str | None

    def trust_for(self, path: str, root: str) -> Trust:
        """Return the signed digests of a model. Raises `TrustError` unless the signature is good."""
        raw = read_list(self.path, _LARGEST)
        if raw is None:
            raise FileNotFoundError(2, os.strerror(2), self.path)
        for needed in filter(None, (self.key, *self.certificates)):
            from_path(needed, "mmap")  # raises OSError if it is missing or a FIFO; it is not a bad signature
        try:
            return self._trust_for(raw, path, root)
        except (TensorFileError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - of the library, of cryptography or of OpenSSL: it is not good
            why = str(error) or type(error).__name__
            raise TrustError(f"the signature does not hold: {why[:1000]}", path=self.path) from None

    def _trust_for(self, raw: bytes, path: str, root: str) -> Trust:
        verifying = _library("verifying")
        config = verifying.Config()
        if self.key is not None:
            config.use_elliptic_key_verifier(public_key=self.key)
        else:
            config.use_certificate_verifier(certificate_chain=self.certificates)
        manifest = _Manifest()
        config.set_hashing_config(manifest)
        # Check the bytes that were read, in case the bundle changes; drop the library's prints, meant for its commands.
        with scratch_folder() as room, contextlib.redirect_stdout(io.StringIO()):
            bundle = Path(room, "model.sig")
            bundle.write_bytes(raw)
            config.verify(root, str(bundle))
        if self.identity is not None:
            _check_identity(raw, self.identity, self.path)
        return manifest.trust(self.path, path, root)


class _Manifest:
    """Replaces the library's hashing: keeps the signed manifest, and leaves hashing to us."""

    def __init__(self) -> None:
        self._signed: Any = None
        self._ignored: list[PurePosixPath] = []

    def add_ignored_paths(self, *, model_path: Any, paths: Any) -> None:  # noqa: ARG002 - the library's interface
        """Note the paths left out of the signature."""
        self._ignored += [PurePosixPath(path) for path in paths]

    def hash(self, model_path: Any, *, files_to_hash: Any = None) -> _Manifest:  # noqa: ARG002 - as above
        """Return this object, which takes the manifest when it is compared."""
        return self

    def __ne__(self, signed: object) -> bool:
        self._signed = signed
        return False

    __hash__ = None  # type: ignore[assignment]

    def trust(self, origin: str, model: str, root: str) -> Trust:
        """Return the digests of a manifest whose signature is good."""
        if self._signed is None:
            raise TrustError("the signature was not checked", path=origin)
        how = self._signed.serialization_type
        if how["method"] != "files" or how["hash_type"] not in {"sha256", "blake3"}:
            what, actual = "manifest of the signature", quoted(f"{how['method']}, {how['hash_type']}")
            raise UnsupportedError(what, path=origin, actual=actual, expected="digests of files by sha256")
        digests: Digests = {}
        for item in self._signed.resource_descriptors():
            if item.digest.algorithm != how["hash_type"]:
                raise TrustError("the manifest has a digest of another kind than it declares", path=origin)
            name = relative(model, root) if item.identifier == _ALONE else plain(item.identifier, origin)
            if name in digests or item.identifier not in {name, _ALONE}:
                raise TrustError("a name in the manifest", path=origin, actual=quoted(item.identifier))
            digests[name] = (Digest(item.digest.algorithm, item.digest.digest_hex, origin),)
        ignored = (*(str(path) for path in self._ignored), *_GIT)
        return Trust(root, digests, ignored=ignored, how=f"as signed in {quoted(origin)}", signed=True)


def sign(
    model: str, path: str, key: str, certificate: str | None, chain: tuple[str, ...], *, allow_symlinks: bool
) -> None:
    """Sign a model: see `weightmap.trust.sign`."""
    signing, hashing = _library("signing"), _library("hashing")
    inputs = [*filter(None, (key, certificate, *chain))]
    for needed in inputs:
        from_path(needed, "mmap")
    if os.path.exists(path) and any(os.path.samefile(path, one) for one in (model, *inputs)):
        raise TargetError("this file is an input, and would be replaced: choose another target", path=path)
    config = signing.Config()
    if certificate is None:
        config.use_elliptic_key_signer(private_key=key)
    else:
        config.use_certificate_signer(private_key=key, signing_certificate=certificate, certificate_chain=chain)
    name = os.path.relpath(os.path.abspath(path), os.path.abspath(model))
    left_out = [] if name.split(os.sep)[0] == os.pardir else [name]
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=left_out).set_allow_symlinks(allow_symlinks))
    with scratch_folder() as room:
        bundle = Path(room, "model.sig")
        config.sign(model, str(bundle))
        raw = bundle.read_bytes()
    write_plan(path, WritePlan(len(raw), lambda sink: sink.write(raw)))


def _check_identity(raw: bytes, identity: str, path: str) -> None:
    """Raise `TrustError` unless the signing certificate has this name, e-mail address, URI or host."""
    from cryptography import x509  # noqa: PLC0415 - model-signing needs it

    material = json.loads(raw)["verificationMaterial"]["x509CertificateChain"]["certificates"][0]["rawBytes"]
    certificate = x509.load_der_x509_certificate(base64.b64decode(material, validate=True))
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    with contextlib.suppress(x509.ExtensionNotFound):
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += [str(name.value) for name in others]
    if identity not in names:
        actual = ", ".join(map(quoted, names)) or "none"
        raise TrustError("identity of the signer", path=path, actual=actual, expected=quoted(identity))


def _library(module: str) -> Any:
    try:
        import OpenSSL  # noqa: F401, PLC0415 - the library needs it, and does not say so

        return import_module(f"model_signing.{module}")
    except ImportError:
        msg = "signatures need model-signing and pyOpenSSL: pip install '.[trust]' in a checkout"
        raise MissingDependencyError(msg) from None
