"""Reading as safetensors does: `safe_open` and `load_file`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from weightmap.compat._frameworks import framework_named
from weightmap.compat._reading import OpenedFile, SafeSlice, code_of, dtype_of
from weightmap.core.model.internals import dense_row
from weightmap.errors import ClosedError, UnsupportedError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from weightmap.compat._prefetching import PrefetchLoader, TensorMeta
    from weightmap.core.model.typing import Trusted


class safe_open:  # noqa: N801 - the name that safetensors gave it
    """A file whose tensors are arrays, or tensors of another library.

    Parameters
    ----------
    filename : str or os.PathLike
        A file of any format, a directory of shards, or anything else that `weightmap.open` takes. Bytes are content.
    framework : str
        ``"np"`` or ``"numpy"``; ``"pt"``, ``"torch"`` or ``"pytorch"``; ``"jax"`` or ``"flax"``; ``"tf"`` or
        ``"tensorflow"``; ``"mlx"``.
    device : str or int, default "cpu"
        The device for torch tensors. Other libraries choose the device themselves.
    backend : str, default "mmap"
        ``"mmap"`` maps the file; ``"pread"`` reads each tensor or slice at its access.
    trust : optional
        As for `weightmap.open`; safetensors has no such parameter.

    Raises
    ------
    UnsupportedError
        For an unknown framework or device, or an unsupported file.
    FormatError, OSError
        As `weightmap.open`.
    MissingDependencyError
        The library is not installed.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: str = "mmap",
        trust: Trusted | None = None,
    ) -> None:
        framework_ = framework_named(framework)
        if backend not in {"mmap", "pread"}:
            raise UnsupportedError("backend", expected="mmap or pread", actual=repr(backend))
        self._reader: OpenedFile | None = OpenedFile(
            filename, framework_, device, pread=backend == "pread", trust=trust
        )
        self._path = self._reader.file.path

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the file. Tensors and slices obtained before stay valid, as in safetensors."""
        self._reader = None

    def prefetch(
        self,
        plan: Mapping[str, Any] | None = None,
        *,
        device: str | int | None = None,
        threads: int = 8,
        budget: int | None = None,
    ) -> PrefetchLoader:
        """Read tensors in the background; the returned loader hands each out once, by ``take`` or by iteration.

        safetensors 0.9 does this for torch tensors on CUDA devices and for rows of step 1. This works for every
        framework, device, format and store, and for every index that the slices of `get_slice` take.

        Parameters
        ----------
        plan : mapping of str to (None or an index), optional
            None selects the whole tensor, an index such as ``slice(0, 4)`` or ``(slice(None), slice(0, 8, 2))`` a part.
            The selections of a list of slices are joined along its axis: ``([slice(0, 2), slice(4, 6)], slice(0, 8))``.
            By default all tensors, whole.
        device : str or int, optional
            By default the device of the handle.
        threads : int, default 8
            The most threads that read.
        budget : int, optional
            The most bytes in memory of tensors not yet taken; a larger tensor is read alone. By default half of the
            memory that machine and control group leave.

        Returns
        -------
        PrefetchLoader
            ``names() len() take(name) close()``, and an iterator of names and tensors; a context manager. On the CPU,
            tensors are pages of the mapped file, as from `get_tensor`, and the pages leave memory with the tensor.
            Parts that are several runs of bytes, and all tensors with ``backend="pread"``, are copies.

        Raises
        ------
        TensorNotFoundError
            For a name that the file lacks.
        PrefetchError
            For an empty plan, an index that does not fit, or a slice that reaches past its axis.
        UnsupportedError
            For part of a tensor that is packed below the byte, except for rows of whole bytes.

        Examples
        --------
        >>> import numpy as np, weightmap as wm
        >>> from weightmap.compat import safe_open
        >>> wm.save("model.safetensors", {"w": np.arange(6, dtype=np.float32).reshape(3, 2)})
        >>> with safe_open("model.safetensors", "np") as f, f.prefetch({"w": slice(1, 3)}) as loader:
        ...     loader.take("w")
        array([[2., 3.],
               [4., 5.]], dtype=float32)
        """
        from weightmap.compat._prefetching import PrefetchLoader

        return PrefetchLoader(self._open().aimed(device), plan, threads, budget)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Return the entry of a tensor in the header: type, shape, and the range of its bytes in the data section.

        In other formats the data section begins with the first tensor.

        Raises
        ------
        TensorNotFoundError
            The file has no such tensor.
        """
        from weightmap.compat._prefetching import TensorMeta

        file = self._open(name).file
        info = file.info(name)
        place = dense_row(file, name)
        shard = next((part for part in file.shards.values() if name in part), file)
        start = min((other.offset for other in shard.infos()), default=0)
        begin = info.offset - start
        return TensorMeta(code_of(dtype_of(file, info)), list(info.shape), (begin, begin + place.nbytes))

    def _open(self, name: str | None = None) -> OpenedFile:
        """Return the open file; check that it has the tensor `name`, if given."""
        if (reader := self._reader) is None:  # from here on, another thread may close it
            raise ClosedError("file is closed", path=self._path)
        if name is not None:
            reader.check(name)
        return reader

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted, as safetensors does."""
        return sorted(self._open().file)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order of their data, shard after shard for a model in several."""
        return self._open().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata as strings, values of other types as JSON; None if the file has no metadata."""
        file = self._open().file
        metadata = {
            str(key): value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in file.metadata.items()
        }
        return metadata if metadata or file.has_metadata else None

    def get_tensor(self, name: str) -> Any:
        """Return a tensor, as a view of the file if its type and the device allow it.

        Raises
        ------
        TensorNotFoundError
            The file has no such tensor.
        """
        return self._open(name).whole(name)

    def get_tensors(self) -> dict[str, Any]:
        """Return every tensor, in the order of `offset_keys`."""
        reader = self._open()
        return reader.every(self.offset_keys())

    def get_slice(self, name: str) -> SafeSlice:
        """Return an object with the shape and the type of a tensor, whose indexing returns parts of the tensor.

        Raises
        ------
        TensorNotFoundError
            The file has no such tensor.
        """
        return self._open(name).slice_of(name)


def open_handle(f: Any, framework: str, device: str | int | None = "cpu", *, backend: str = "mmap") -> safe_open:
    """Return a `safe_open` over an open file object, binary or text, which stays open at its position.

    Replaces ``safetensors._safe_open_handle``.
    """
    try:
        source = f.fileno()
    except (AttributeError, OSError):  # not a file of the system
        source = f
    return safe_open(source, framework, device, backend=backend)


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, framework: str = "np", backend: str = "mmap"
) -> dict[str, Any]:
    """Return every tensor of a file.

    Parameters
    ----------
    filename, device, backend
        As for `safe_open`.
    framework : str, default "np"
        ``"pt"`` returns the same as ``safetensors.torch.load_file``.

    Returns
    -------
    dict[str, np.ndarray] or dict[str, torch.Tensor]
        In the order of the data in the file. The tensors keep the mapping alive.
    """
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()
