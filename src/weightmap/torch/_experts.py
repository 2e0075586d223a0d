"""Mixtures of experts on the CPU, whose experts come from a pool one by one, as tokens are routed to them."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap._messages import quoted
from weightmap.core.arguments import mistyped
from weightmap.core.model.codes import check_computable
from weightmap.core.model.saving import check_module
from weightmap.errors import TensorNotFoundError, UnsupportedError
from weightmap.pool.pool import Pool
from weightmap.torch._modules import StateError
from weightmap.torch._tensors import imported_torch, to_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import weightmap.typing as typing

    Key = tuple[str | tuple[str, ...], int | None]

# Checkpoints' names, expert by expert, for the matrices that transformers 5 stacks.
_SEPARATE = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
# The name of a block in transformers 5, and in the checkpoint.
_RENAMED = (".mlp.", ".block_sparse_moe.")


def serve_experts(module: Any, pool: typing.Pool, *, name: Callable[[str], str] | None = None) -> None:
    """Make a transformers model on the CPU take each expert from a pool while it multiplies.

    Every module called ``experts`` loses its parameters, which may be on the device "meta", and takes them from the
    pool as it computes. The experts to which tokens are routed are read ahead. The logits equal the resident model's to
    the bit; in transformers 5, with ``experts_implementation="eager"``, and up to rounding where the resident ones are
    not aligned. This is for inference: experts get no gradients. `load_into` fills the other parameters.

    Parameters
    ----------
    module : torch.nn.Module
        Its experts are stacked in parameters such as ``experts.gate_up_proj``, as in transformers 5, or a
        ``torch.nn.ModuleList`` of modules of ``torch.nn.Linear``, as in transformers 4.
    pool : Pool
        The pool of the model's files, or of ``f.weights``: see `TensorFile.pool`. Experts may be stacked there, or be
        separate under the names of Mixtral or Qwen; the pool then joins matrices that the model needs as one. Quantised
        experts are decoded at each use. Values take the type of the parameter that they replace.
    name : callable, optional
        Maps the name of a parameter to its name in the files.

    Raises
    ------
    TensorNotFoundError
        The files have no tensor for a parameter.
    StateError
        A tensor has another shape than the parameter. After any error, the module is unchanged.
    UnsupportedError
        The module has no experts, or experts of other kinds than above; or the pool has codes under the name of a
        parameter, as in FP8: ``f.weights.pool`` has the parameter. At the first use: the module multiplies with all
        experts at once, as Llama 4's.
    """
    check_module("module", module)
    if not isinstance(pool, Pool):
        raise mistyped("pool", pool, "what TensorFile.pool returns")
    torch = imported_torch()
    name_of = name or (lambda parameters: parameters)
    replaced: list[tuple[str, Any, dict[str, _Served], bool]] = []
    for prefix, part in module.named_modules():
        if prefix.rpartition(".")[2] != "experts":
            continue
        stacked = not isinstance(part, torch.nn.ModuleList)
        for path, inner in [("", part)] if stacked else part.named_modules():
            parameters = dict(inner.named_parameters(recurse=False))
            where = f"{prefix}.{path}".rstrip(".")
            if not parameters and (not stacked or len(list(part.parameters())) == 0):
                continue
            if not parameters or not (stacked or type(inner) is torch.nn.Linear):
                expected = "stacked parameters, or a ModuleList of modules of torch.nn.Linear"
                raise UnsupportedError(f"experts {quoted(where)}", expected=expected, actual=type(inner).__name__)
            served = {
                key: _Served(pool, _keys(pool, f"{where}.{key}", value, name_of, stacked=stacked), value)
                for key, value in parameters.items()
            }
            replaced.append((f"{prefix}.{path.partition('.')[0]}", inner, served, stacked))
    if not replaced:
        expected, actual = "modules called experts with parameters", type(module).__name__
        raise UnsupportedError("module", expected=expected, actual=actual)
    keys = [key for _, _, served, _ in replaced for one in served.values() for key in one.keys]
    names = {name for key, _ in keys for name in ([key] if isinstance(key, str) else key)}
    check_computable(pool._file, names.__contains__, "serve_experts")  # noqa: SLF001 - of this package
    experts: dict[str, list[_Served]] = {}
    for path, inner, served, stacked in replaced:
        for key, one in served.items():
            del inner._parameters[key]  # noqa: SLF001 - or torch refuses what is not a parameter
            setattr(inner, key, one)
        inner.forward = _stacked(inner, pool, served) if stacked else _linear(served)
        if not stacked:
            experts.setdefault(path, []).extend(served.values())
    for path, matrices in experts.items():
        keys = [one.keys[0] for one in matrices]
        module.get_submodule(path).register_forward_pre_hook(lambda *_, keys=keys: pool.prefetch(keys))


class _Served:
    """Stands in for a parameter. A thread holds its last entry until it takes another."""

    def __init__(self, pool: Pool, keys: list[Key], like: Any) -> None:
        self._pool, self.keys, self._dtype = pool, keys, like.dtype
        self._local = threading.local()

    def __getitem__(self, index: Any) -> Any:
        self.release()
        hold = self._local.hold = self._pool.hold(*self.keys[int(index)])
        return _tensor(hold.__enter__()).to(self._dtype)

    def release(self) -> None:
        hold, self._local.hold = getattr(self._local, "hold", None), None
        if hold is not None:
            hold.release()

    @contextmanager
    def whole(self) -> Iterator[Any]:
        """Hold the only entry."""
        with self._pool.hold(*self.keys[0]) as values:
            yield _tensor(values).to(self._dtype)


def _stacked(module: Any, pool: Pool, served: dict[str, _Served]) -> Callable[..., Any]:
    """Return a ``forward`` for a module of stacked experts that visits them one by one."""
    torch = imported_torch()
    forward = type(module).forward
    forward = getattr(forward, "__wrapped__", forward)  # in transformers 5, whatever the configuration chooses

    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dtype == torch.int64:
                routed = [index for index in value.unique().tolist() if index < len(next(iter(served.values())).keys)]
                pool.prefetch([one.keys[index] for index in routed for one in served.values()])
                break
        try:
            return forward(module, *args, **kwargs)
        except (AttributeError, TypeError) as error:
            if _Served.__name__ not in str(error):  # Python and torch name the class that cannot do what is asked
                raise
            what, actual = "the forward of experts", type(module).__name__
            raise UnsupportedError(what, expected="one that takes them one by one", actual=actual) from error
        finally:
            for one in served.values():
                one.release()

    return call


def _linear(served: dict[str, _Served]) -> Callable[[Any], Any]:
    """Return a ``forward`` for a ``torch.nn.Linear``."""
    torch = imported_torch()

    def call(values: Any) -> Any:
        bias_held = served["bias"].whole() if "bias" in served else nullcontext()
        with served["weight"].whole() as weight, bias_held as bias:
            return torch.nn.functional.linear(values, weight, bias)

    return call


def _keys(pool: Pool, parameter: str, value: Any, name_of: Callable[[str], str], *, stacked: bool) -> list[Key]:
    """Return the keys of the pool that replace a parameter, one for each expert if experts are stacked."""
    if not stacked:
        return [_key(pool, [(name_of(parameter), None)], parameter, tuple(value.shape))]
    prefix, _, matrix = parameter.rpartition(".")
    keys = []
    for index in range(value.shape[0]):
        candidates: list[Key] = [(name_of(parameter), index)]
        for pieces in _SEPARATE.get(matrix, ()):
            names = tuple(name_of(f"{prefix}.{index}.{piece}.weight") for piece in pieces)
            both = names, tuple(one.replace(*_RENAMED) for one in names)
            candidates += [(some if len(some) > 1 else some[0], None) for some in both]
        keys.append(_key(pool, candidates, parameter, tuple(value.shape[1:])))
    return keys


def _key(pool: Pool, candidates: list[Key], parameter: str, shape: tuple[int, ...]) -> Key:
    """Return the first candidate that the files have."""
    missing: TensorNotFoundError | None = None
    for name, index in candidates:
        try:
            actual = pool._shape_of(name, index)  # noqa: SLF001 - of this package
        except TensorNotFoundError as error:
            missing = missing or error
            continue
        if actual != shape:
            raise StateError(f"experts for {quoted(parameter)}", actual=f"shape {actual}", expected=f"{shape}")
        return name, index
    assert missing is not None  # noqa: S101 - that is why nothing was returned
    raise missing


class _Writable:
    """Presents the bytes as a writable array: torch has no read-only tensors, and experts are only read."""

    def __init__(self, octets: np.ndarray[Any, Any]) -> None:
        self._octets = octets
        self.__array_interface__ = octets.__array_interface__ | {"data": (octets.ctypes.data, False)}


def _tensor(values: Any) -> Any:
    """Return a tensor over memory of the pool, which is not a mapping of a file; quantised values are decoded."""
    if isinstance(values, np.ndarray) and values.flags.c_contiguous and values.size:
        octets = values.reshape(-1).view(np.uint8)
        values = np.ndarray(values.shape, values.dtype, np.asarray(_Writable(octets)))
    return to_torch(values)
