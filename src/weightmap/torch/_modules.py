"""Fills the parameters and buffers of modules with the tensors of a file."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightmap._messages import counted, quoted
from weightmap.checkpoints.handle import Weights
from weightmap.core import arguments
from weightmap.core.arguments import Globs, Rename, as_globs, listed, matches, mistyped, names_moved, takes
from weightmap.core.bytes import Range
from weightmap.core.model.codes import check_cast
from weightmap.core.model.internals import check_unchanged, named_rows, row_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.model.saving import check_module, from_torch
from weightmap.device import Loader
from weightmap.device._transfers import ArrayTransfer, Transfer
from weightmap.errors import TensorFileError
from weightmap.plans.pages import Ahead
from weightmap.torch._device import TorchBackend, pour, to_device
from weightmap.torch._files import load_tensors, shared
from weightmap.torch._tensors import imported_torch, writable_mode

if TYPE_CHECKING:
    from weightmap.core.model.file import TensorFile


# Bytes of a file to request ahead.
_AHEAD = 64 << 20
# Most names in one error.
_SHOWN = 10


class StateError(TensorFileError, RuntimeError):
    """The tensors of a file do not fit a module; the module is unchanged."""


@names_moved
def load_into(
    module: Any,
    path: Model,
    *,
    prefix: str = "",
    include: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    strict: bool = True,
    assign: bool = False,
) -> Any:
    """Fill the parameters and buffers of a module with the tensors of a file.

    `torch.nn.Module.load_state_dict` itself checks all names, shapes and types before any change: a module's hooks and
    methods take effect, and run once more than in a plain load.

    Parameters
    ----------
    module : torch.nn.Module
        On any device. Tensors outside the CPU are filled by `weightmap.device`, which converts values there.
    path : TensorFile, or anything that `weightmap.open` takes
        A handle stays open; ``f.weights`` fills from the parameters of a quantised checkpoint.
        Tied parameters need only one tensor in the file.
    prefix : str
        Read only tensors whose name has this prefix, and remove it: a checkpoint of training may have the module's
        tensors below a key, ``prefix="model."``.
    include : glob or sequence of globs, optional
        Read only tensors whose name in the file matches one of these.
    rename : mapping of str to str, or callable, optional
        Maps names without `prefix` to the module's names (``{"net.*": "*"}`` renames all that begin with "net."); or a
        function that does so.
    strict : bool
        Whether missing and unexpected names are errors, as in torch, and so are tied parameters with different values.
    assign : bool
        Put tensors into the module instead of copying their values. Tensors that replace ones on the CPU or the device
        "meta" share the file's pages and are writable, but never change it. They keep the file's types, and tied ones
        stay tied. From a handle in mode "mmap" or "sealed" they are copies.

    Returns
    -------
    missing_keys, unexpected_keys
        As `torch.nn.Module.load_state_dict` returns them.

    Raises
    ------
    StateError
        Names, shapes or types do not fit; a value would lose its kind (complex to real, float to integer); a parameter
        is on the device "meta" and ``assign=False``; a glob matches no tensor; or no name begins with `prefix`. It is a
        RuntimeError; the module is unchanged. If names or shapes of a transformers model differ from the file's, as for
        fused experts, load it by ``from_pretrained`` within `weightmap.compat.patched`.
    FormatError, OSError
        As `weightmap.open`.
    """
    check_module("module", module)
    targets = {name: value for name, value in module.state_dict(keep_vars=True).items() if hasattr(value, "device")}
    with as_handle(path, mode=writable_mode(), private=False) as file:
        weights = isinstance(file, Weights)
        try:
            chosen = _module_names(file, prefix, as_globs("include", include), rename)
        except StateError as error:
            raise error.located(path=file.path) from None
        if not weights:
            for name, row in named_rows(file):
                if (target := targets.get(chosen.get(name, ""))) is not None:
                    check_cast(file, name, row, str(target.dtype).removeprefix("torch."))
        types = {str(target.dtype).removeprefix("torch.") for target in targets.values() if target.is_floating_point()}
        stored = shared(file, chosen, None if assign else types.pop() if len(types) == 1 else "float32")
        file_path = file.path
    state = {chosen[name]: tensor for name, tensor in stored.items()}
    names = _names_of(stored)
    try:
        _tie(targets, state, strict=strict)
        result = _rehearse(module, state, names, strict=strict, assign=assign)
    except StateError as error:
        if strict and not prefix and (root := _root_of(targets, stored)):
            error.what = f"{error.what}; the file has such names below {root!r}: prefix={root!r} removes it"
        elif strict and hasattr(module, "from_pretrained") and not error.what.startswith(("tensor ", "a tensor ")):
            remedy = (
                "`from_pretrained` within `weightmap.compat.patched()` renames, joins, transposes and unties tensors"
            )
            error.what = f"{error.what}; {remedy} as the model's library does"
        raise error.located(path=file_path) from None
    finish = _assign if assign else _fill
    if weights or not any(map(_is_away, targets.values())):
        finish(module, state, names, targets, None)
    else:
        with as_handle(path, private=False) as file:  # touches no mapping
            finish(module, state, names, targets, file)
    return result


def _module_names(names: Collection[str], prefix: str, include: Globs, rename: Rename | None) -> dict[str, str]:
    """Return the module's names of the tensors to read, by their names in the file."""
    if not isinstance(prefix, str):
        raise mistyped("prefix", prefix, "a str")
    for glob in listed(include):
        if not any(matches(name, glob) for name in names):
            raise StateError(f"include is {quoted(glob)}, which matches none of {counted(len(names), 'tensor')}")
    chosen = {name: name[len(prefix) :] for name in names if name.startswith(prefix) and takes(name, include, None)}
    if prefix and not chosen:
        roots = dict.fromkeys(name.partition(".")[0] for name in names)
        some = ", ".join(map(quoted, list(roots)[:10])) or "nothing: there is no tensor"
        raise StateError(f"prefix is {quoted(prefix)}, which no tensor to read begins with; names begin with {some}")
    if isinstance(rename, Mapping):
        whole, unused = arguments.whole_names(set(chosen.values()), rename)
        if unused:
            some = ", ".join(map(quoted, unused[:3]))
            raise StateError(f"rename has {some}, the name of none of {counted(len(chosen), 'tensor')}")
        rename = whole
    if rename is None:
        return chosen
    renamed: dict[str, str] = {}  # maps names of the module to names in the file
    new_of = arguments.new_names(chosen.values(), rename)
    for stored, old in chosen.items():
        new = new_of[old]
        if new in renamed:
            raise StateError(f"tensors {quoted(renamed[new])} and {quoted(stored)} are both called {quoted(new)}")
        renamed[new] = stored
    return {stored: new for new, stored in renamed.items()}


def _root_of(targets: Collection[str], stored: Collection[str]) -> str:
    """Return the prefix that all names of a module have in a file, such as "model."; "" without one."""
    first = next(iter(targets), "")
    roots = [name.removesuffix(first) for name in stored if first and name.endswith(f".{first}")]
    return next((root for root in roots if all(f"{root}{name}" in stored for name in targets)), "")


def _names_of(state: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of each tensor by its identity; the first name if it has several."""
    return {id(tensor): name for name, tensor in reversed(list(state.items()))}


def load_state(
    module: Any, state: dict[str, Any], *, strict: bool, duplicates: Collection[str]
) -> tuple[set[str], list[str]]:
    """Copy tensors into a module for `weightmap.compat.torch.load_model`; return missing and unexpected names.

    Parameters
    ----------
    duplicates : collection of str
        Parameters stored under another name: they are not missing if absent, but unexpected if present.
    """
    stored_names = _names_of(state)
    result = _rehearse(module, state, stored_names, strict=False, assign=False)
    missing = set(result.missing_keys) - set(duplicates)
    unexpected = [*result.unexpected_keys, *sorted(set(duplicates) - set(result.missing_keys))]
    if strict and (missing or unexpected):
        wrong = f"Error(s) in loading state_dict for {type(module).__name__}:"
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                wrong += f" {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise StateError(wrong)
    _fill(module, state, stored_names, {}, None)
    return missing, unexpected


def _tie(targets: Mapping[str, Any], state: dict[str, Any], *, strict: bool) -> None:
    """Give all names of a tied parameter or buffer the file's tensor for one of them."""
    names: dict[int, list[str]] = {}
    for name, tensor in targets.items():
        names.setdefault(id(tensor), []).append(name)
    for tied in names.values():
        present = [name for name in tied if name in state]
        if len(tied) < 2 or not present:
            continue
        first, *others = present
        differ = not all(_same(state[first], state[name]) for name in others)
        if differ and strict:
            what = f"{', '.join(map(quoted, present))} are one tensor in the module, and differ in the file"
            raise StateError(f"{what} (strict=False takes the last one)")
        value = state[present[-1] if differ else first]  # the last one wins, as in torch
        state.update(dict.fromkeys(tied, value))


def _same(a: Any, b: Any) -> bool:
    torch = imported_torch()
    equal: bool = a.dtype == b.dtype and a.shape == b.shape
    return equal and torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (a, b)))


def _rehearse(
    module: Any, state: Mapping[str, Any], stored_names: Mapping[int, str], *, strict: bool, assign: bool
) -> Any:
    """Make torch load a state without copying values, and return its result. Raises `StateError` if that fails."""
    torch = imported_torch()
    copies: list[tuple[Any, Any]] = []

    def note(_: Any, target: Any, source: Any) -> None:
        copies.append((target, source))

    try:
        with _copying()(note), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of copies to the device "meta"
            result = module.load_state_dict(state, strict=strict)
    except RuntimeError as error:
        raise StateError(_shortened(str(error))) from None
    for target, source in copies:
        what = f"tensor {quoted(stored_names[id(source)])}" if id(source) in stored_names else "a tensor"
        if assign:
            if target.requires_grad and not (source.is_floating_point() or source.is_complex()):
                raise StateError(f"{what} is {source.dtype}, and the parameter has gradients, which take floats")
        elif target.is_meta:
            raise StateError(f"{what} belongs to a parameter without memory, on the device meta: load with assign=True")
        elif source.dtype != target.dtype and not torch.can_cast(source.dtype, target.dtype):
            raise StateError(f"{what} is {source.dtype}, which {target.dtype} of the module cannot hold")
    return result


def _shortened(message: str) -> str:
    """Return torch's message in one line, with the first names of a long list, and the number of the others."""
    title, *problems = message.split("\n\t")
    problems = [_first(problem.split(', "'), ', "') for problem in problems]
    return " ".join(f"{title} {_first(problems, ' ')}".split()).removesuffix(".")


def _first(items: list[str], between: str) -> str:
    more = len(items) - _SHOWN
    return between.join(items[:_SHOWN]) + (f" and {more} more." if more > 0 else "")


def _is_away(tensor: Any) -> bool:
    """Whether a tensor lies on a device other than the CPU."""
    return tensor.device.type not in {"cpu", "meta"}


def _assign(
    module: Any,
    state: dict[str, Any],
    stored_names: Mapping[int, str],
    targets: Mapping[str, Any],
    file: TensorFile | None,
) -> None:
    """Put the tensors of a rehearsed state into a module; those for devices other than the CPU are read from `file`."""
    torch = imported_torch()
    away: dict[Any, set[str]] = {}  # names in the file by device
    for name, tensor in state.items():
        if file is not None and name in targets and _is_away(targets[name]):
            away.setdefault(targets[name].device, set()).add(stored_names[id(tensor)])
    loaded = {device: load_tensors(file, names, device) for device, names in away.items() if file is not None}
    converted: dict[int, Any] = {}
    for name, tensor in state.items():
        old = targets.get(name)
        if old is not None and id(tensor) not in converted:
            new = loaded[old.device][stored_names[id(tensor)]] if old.device in loaded else tensor
            if new.device.type == "cpu" and _is_away(old):
                new = to_device(from_torch(new), old.device)
            parameter = isinstance(old, torch.nn.Parameter)
            converted[id(tensor)] = torch.nn.Parameter(new, old.requires_grad) if parameter else new
    placed = {name: converted.get(id(tensor), tensor) for name, tensor in state.items()}
    module.load_state_dict(placed, strict=False, assign=True)


def _fill(
    module: Any,
    state: dict[str, Any],
    stored_names: Mapping[int, str],
    targets: Mapping[str, Any],
    file: TensorFile | None,
) -> None:
    """Copy the values of a rehearsed state; for devices other than the CPU, from `file` and never from its mapping."""
    names_to_read: dict[str, None] = {}  # tensors to read for other devices, in the order of the module
    if file is not None:
        there = [name for name, old in targets.items() if name in state and _is_away(old)]
        names = (stored_names.get(id(state[name])) for name in there)
        names_to_read = dict.fromkeys(name for name in names if name is not None)
        rows = [row_of(file, name) for name in names_to_read]
        ahead = Ahead([(row.source, Range(row.offset, row.offset + row.nbytes)) for row in rows], _AHEAD)
    places = {name: number for number, name in enumerate(names_to_read)}
    done: dict[tuple[int, int], tuple[Any, Any]] = {}  # keeps both alive, so that their ids stay unique
    loaders: dict[Any, Loader] = {}

    def fill(copy: Any, target: Any, source: Any) -> None:
        if (id(target), id(source)) in done:  # a tied parameter
            return
        done[id(target), id(source)] = target, source
        if target.device.type == "cpu" or source.device.type != "cpu":
            copy(target, source)
            return
        loader = loaders.get(target.device)
        if loader is None:
            loader = loaders[target.device] = open_loaders.enter_context(Loader(TorchBackend(target.device)))
        name, dtype = stored_names.get(id(source)), str(target.dtype).removeprefix("torch.")
        if name is None or file is None:  # a hook made the tensor
            pour(loader, ArrayTransfer("a tensor", from_torch(source), dtype), target)
        else:
            if name in places:
                ahead.reading(places[name])
            pour(loader, Transfer(loader.backend, name, row_of(file, name), None, dtype), target)

    with contextlib.ExitStack() as open_loaders, _copying()(fill):
        module.load_state_dict(state, strict=False)
    if file is not None:
        check_unchanged(file)


@functools.cache
def _copying() -> Any:
    """Return the class of contexts in which ``target.copy_(source)`` of torch calls ``instead(copy, target, source)``.

    The class is made once: one per context would keep everything behind `instead` alive until garbage is collected.
    """
    torch = imported_torch()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copying(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, instead: Callable[[Any, Any, Any], None]) -> None:
            super().__init__()
            self.instead = instead

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not torch.ops.aten.copy_.default:
                return func(*args, **(kwargs or {}))
            self.instead(func, *args[:2])
            return args[0]

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # otherwise torch would import its compiler here, which takes a second

    return Copying
