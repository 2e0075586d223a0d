"""`trust=`: verify files by SHA-256 digests that were recorded elsewhere, or by a signature.

A file's digest is listed under its name relative to the model's folder: the opened directory, or the folder of the
file. Every opened file must be listed, and two entries for one file must agree. Our choices where specifications are
silent:

* Names are separated by ``/``. A leading ``./`` is ignored; ``..``, absolute names and NUL are refused.
* A list that is a Git LFS pointer, or a bare digest, applies to the single opened file.
* "recorded" consults all known places, and a file must agree with each of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightmap.errors import Remedy, TrustError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightmap.trust.signing import Signature

__all__ = ["sign", "signature"]


def signature(
    path: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    identity: str | None = None,
) -> Signature:
    """Return a value for the argument `trust` of `weightmap.open`: a bundle of OpenSSF model-signing.

    Each opening reads the bundle and checks its signature, without a network.

    Parameters
    ----------
    path : str or os.PathLike
        The bundle, such as ``model.sig``.
    key : str or os.PathLike, optional
        PEM file with the public key of the signer, on one of the elliptic curves P-256, P-384 and P-521.
    certificate : str, os.PathLike or a sequence of these, optional
        Instead of `key`: PEM files with the certificates that are trusted to vouch for the signer's certificate.
    identity : str, optional
        With `certificate`: a name (CN), e-mail address, URI or host that the signer's certificate must have. Without
        it, any signer whom these certificates vouch for is accepted.

    Raises
    ------
    TypeError
        Unless exactly one of `key` and `certificate` is given; for `identity` with a key.
    """
    from weightmap.trust.signing import Signature as Bundle  # noqa: PLC0415 - few models are signed

    if (key is None) == (certificate is None):
        raise TypeError("a signature is checked with key= or certificate=: give one of them")
    if identity is not None and certificate is None:
        raise TypeError("identity= goes with certificate=: a key has no name")
    several = () if certificate is None else certificate
    several = (several,) if isinstance(several, (str, os.PathLike)) else several
    key_path = None if key is None else _absolute(key)
    return Bundle(_absolute(path), key_path, tuple(map(_absolute, several)), identity)


def sign(
    model: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str],
    certificate: str | os.PathLike[str] | None = None,
    chain: Sequence[str | os.PathLike[str]] = (),
    allow_symlinks: bool = False,
) -> str:
    """Sign a model as OpenSSF model-signing does, and return the path of the bundle.

    Parameters
    ----------
    model : str or os.PathLike
        A file, or a directory, whose files are all signed.
    path : str or os.PathLike, optional
        The bundle to write; by default ``model.sig`` in the directory, or the file's name and ``.sig``.
    key : str or os.PathLike
        PEM file with the private key, without a password.
    certificate : str or os.PathLike, optional
        PEM file with the certificate of that key.
    chain : sequence of str or os.PathLike
        PEM files with the certificates between this certificate and a trusted one.
    allow_symlinks : bool
        Sign the files that symbolic links lead to, as in a snapshot in a cache; by default links are refused.

    Raises
    ------
    MissingDependencyError
        Without model-signing and pyOpenSSL, the extra ``[trust]``.
    OSError
    TargetError
        When the bundle would replace the model, the key or a certificate.
    TrustError
        When the key or certificate cannot sign, or the model cannot be signed.
    """
    from weightmap.trust.signing import sign as sign_model  # noqa: PLC0415 - few models are signed

    absolute = _absolute(model)
    os.stat(model)  # raises for a missing model; "" is none, but the absolute path of the working directory
    name = os.path.join(absolute, "model.sig") if os.path.isdir(absolute) else f"{absolute}.sig"
    name = name if path is None else os.fsdecode(path)
    certificate_path = None if certificate is None else _absolute(certificate)
    others = tuple(map(_absolute, chain))
    if not allow_symlinks and (link := _link_in(absolute)) is not None:
        remedy = Remedy("{} signs the files that links lead to", "allow_symlinks", switch=True)
        raise TrustError("this is a symbolic link, and cannot be signed", path=link, remedy=remedy)
    try:
        sign_model(absolute, name, _absolute(key), certificate_path, others, allow_symlinks=allow_symlinks)
    except ValueError as error:  # from the library
        raise TrustError(f"this cannot be signed: {error}", path=absolute) from None
    return name


def _link_in(model: str) -> str | None:
    """Return the path of a symbolic link in a model, or None."""
    if os.path.islink(model):
        return model
    for folder, folders, names in os.walk(model):
        for name in (*folders, *names):
            if os.path.islink(os.path.join(folder, name)):
                return os.path.join(folder, name)
    return None


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
