"""The tree of modules in the names of tensors; modules of equal structure are folded into one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightmap.core.table.table import TensorInfo

# Names are cut after this many parts: models are not nested deeper, but a file may claim it.
_DEEPEST = 32


class Line(NamedTuple):
    """One line of a folded tree.

    Attributes
    ----------
    depth : int
    label : str
        Name within the parent module; for alike modules their common name, with the numbers in braces.
    modules : int
        Number of alike modules in this line; 1 for a single module or a tensor.
    tensors, nbytes : int
        Totals of this line.
    tensor : TensorInfo or None
        The first tensor of the line; None for a module.
    """

    depth: int
    label: str
    modules: int
    tensors: int
    nbytes: int
    tensor: TensorInfo | None


class Module:
    """A module: tensors and modules by name, in file order, with totals.

    Attributes
    ----------
    children : dict of str to Module
    tensor : TensorInfo or None
        The tensor of this name.
    tensors, nbytes : int
        Totals of all tensors inside.
    build : int
        Equal for modules of equal structure: names, dtypes and shapes.
    """

    __slots__ = ("build", "children", "nbytes", "tensor", "tensors")

    def __init__(self) -> None:
        self.children: dict[str, Module] = {}
        self.tensor: TensorInfo | None = None
        self.tensors: int = 0
        self.nbytes: int = 0
        self.build: int = 0

    def lines(self, mark: str, max_lines: int | None = None) -> Iterator[Line]:
        """Yield the lines below this module, the outermost first.

        Parameters
        ----------
        mark : str
            The separator of the parts of names: see `separator`.
        max_lines : int, optional
            Most lines per module; the last line, with the label "…", stands for all others.
        """
        yield from _lines(self, 0, mark, max_lines, 1)


def separator(names: Iterable[str]) -> str:
    """Return the separator of the parts of names: a dot, or a slash if no name has a dot."""
    slash = False
    for name in names:
        if "." in name:
            return "."
        slash = slash or "/" in name
    return "/" if slash else "."


def module_tree(infos: Iterable[TensorInfo], mark: str) -> Module:
    """Return the root of the tree of modules that hold these tensors.

    Parameters
    ----------
    infos : iterable of TensorInfo
    mark : str
        The separator of the parts of names.
    """
    root = Module()
    for info in infos:
        node = root
        for part in info.name.split(mark, _DEEPEST):
            node = node.children.setdefault(part, Module())
        # An unchecked file may repeat a name: its bytes count in one place.
        node.tensor = node.tensor or info
        node.tensors += 1
        node.nbytes += info.nbytes
    _total(root, {})
    return root


def _total(node: Module, builds: dict[object, int]) -> None:
    for child in node.children.values():
        _total(child, builds)
        node.tensors += child.tensors
        node.nbytes += child.nbytes
    kind = None if node.tensor is None else (node.tensor.dtype, node.tensor.shape)
    key = (kind, tuple((name, child.build) for name, child in node.children.items()))
    node.build = builds.setdefault(key, len(builds) + 1)


def _lines(node: Module, depth: int, mark: str, max_lines: int | None, times: int) -> Iterator[Line]:
    groups = list(_groups(node))
    shown = groups if max_lines is None or len(groups) <= max_lines else groups[: max_lines - 1]
    for names, child in shown:
        label, count, inner = label_of(names), len(names), child
        while inner.tensor is None and len(below := list(_groups(inner))) == 1:
            [(inner_names, inner)] = below  # a module with a single child gets no line
            label += mark + label_of(inner_names)
            count *= len(inner_names)
        totals = times * count * inner.tensors, times * count * inner.nbytes
        alone = inner.tensor if not inner.children else None
        yield Line(depth, label, count, *totals, alone)
        if inner.children:
            if inner.tensor is not None:  # a tensor that shares its name with a module
                yield Line(depth + 1, "", 1, times * count, times * count * inner.tensor.nbytes, inner.tensor)
            yield from _lines(inner, depth + 1, mark, max_lines, times * count)
    hidden = groups[len(shown) :]
    if hidden:
        tensors = sum(len(names) * child.tensors for names, child in hidden)
        nbytes = sum(len(names) * child.nbytes for names, child in hidden)
        yield Line(depth, "…", len(hidden), times * tensors, times * nbytes, None)


def _groups(node: Module) -> Iterator[tuple[list[str], Module]]:
    """Yield the children; numbered children of equal structure come together."""
    groups: dict[tuple[bool, object], tuple[list[str], Module]] = {}
    for name, child in node.children.items():
        numbered = name.isascii() and name.isdigit()
        key = (True, child.build) if numbered else (False, name)
        groups.setdefault(key, ([], child))[0].append(name)
    yield from groups.values()


def label_of(names: Sequence[str]) -> str:
    """Return the label of alike modules: ``0``, ``{0…11}``, ``{0…2, 4, 6…9}``."""
    if len(names) == 1:
        return names[0]
    runs: list[list[str]] = []
    for name in sorted(names, key=lambda name: (len(name), name)):  # files that sort names have 10 before 2
        if runs and name == _next(runs[-1][-1]):
            runs[-1][1:] = [name]
        else:
            runs.append([name])
    return "{" + ", ".join("…".join(run) for run in runs) + "}"


def _next(number: str) -> str:
    # Python reads no number of more than 4,300 digits.
    return str(int(number) + 1) if len(number) < 20 else ""
