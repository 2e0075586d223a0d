"""Comparison of two model files of any formats."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import counted, quoted
from weightmap.checkpoints.handle import Weights
from weightmap.conversion.tensor_diffs import TensorDiff, Tolerance, both, by_rows, read_at_all, tensor_diffs
from weightmap.conversion.tensors import dropped_because, file_metadata, vocab_keys
from weightmap.core.arguments import names_moved
from weightmap.core.formats import FORMATS
from weightmap.core.model.codes import check_computable, codes_among
from weightmap.core.model.internals import check_unchanged, detach_index, folder_opened, name_of, parts_of, row_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.core.model.sharded import equal
from weightmap.huggingface import directory as hub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightmap.core.model.file import TensorFile
    from weightmap.core.table.table import Row


class DiffReport(NamedTuple):
    """The result of `diff`.

    Attributes
    ----------
    a, b : str
        The files.
    only_in_a, only_in_b : tuple of str
        Names of tensors.
    changed : tuple of TensorDiff
    metadata : tuple of (key, value in a, value in b)
        None stands for a missing key.
    vocab : str or None
        The difference of the vocabularies; None if they are equal.
    notes : tuple of str
        Parts of only one file that do not count as differences, because `convert` adds or drops them by itself.
    """

    a: str
    b: str
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    changed: tuple[TensorDiff, ...]
    metadata: tuple[tuple[str, Any, Any], ...]
    vocab: str | None
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs: tensors, metadata, vocabulary. Order and format do not count."""
        return not (self.only_in_a or self.only_in_b or self.changed or self.metadata or self.vocab)


@names_moved
def diff(
    a: Model,
    b: Model,
    *,
    tensors_only: bool = False,
    by_value: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> DiffReport:
    """Compare two model files tensor by tensor, bit by bit or by value, with flat memory.

    A file and its conversion are equal, except for changes that were requested, and names and omissions that the report
    of `convert` lists. Additions of `convert` are not differences: see `DiffReport.notes`.

    Parameters
    ----------
    a, b : TensorFile or anything that `open` takes
        Bytes are content, never a path. A handle stays open. ``f.weights`` are compared by value: `TensorDiff` has the
        error of each quantised parameter. From a model directory, the tensor files count, and, if the other side has
        them, the configuration and vocabulary that `convert` would copy.
    tensors_only : bool
        Compare names, dtypes, shapes and values of tensors, but neither metadata nor vocabulary.
    by_value : bool
        Compare numbers, not bits: tensors of one shape with equal values do not differ, whatever their dtypes; the
        decoded values of quantised tensors count. 0 equals -0, and NaN equals NaN.
    rtol, atol : float, optional
        Compare by value, and let an element differ by up to ``atol + rtol * abs(b)``, as `numpy.isclose` does; if only
        one is given, the other is 0. An infinity equals only itself.

    Returns
    -------
    DiffReport

    Raises
    ------
    ValueError
        For a tolerance that is negative or not finite.
    UnsupportedError
        By value, for codes of a quantised checkpoint beside a tensor of another type: ``f.weights`` has the parameters.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("a.weights", {"w": np.zeros(3, np.float32)})
    >>> wm.save("b.safetensors", {"w": np.array([0, 0, 2], np.float32)})
    >>> wm.diff("a.weights", "b.safetensors").changed[0].max_abs
    2.0
    """
    tolerance = Tolerance.of(rtol, atol)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(as_handle(source)) for source in (a, b)]
        for file in files:
            check_unchanged(file)
            detach_index(file)
        weights = any(isinstance(file, Weights) for file in files)
        by_value = by_value or weights or rtol is not None or atol is not None
        return _diff(*map(_Side, files), tensors_only=tensors_only, tolerance=tolerance if by_value else None)


class _Side:
    """One of the two models: its file, and its directory if it has one."""

    def __init__(self, file: TensorFile) -> None:
        self.file = file
        self.format = FORMATS.get(file.format)  # None for a model in files of several formats

    @functools.cached_property
    def directory(self) -> hub.ModelDirectory | None:
        """Configuration and vocabulary of the directory, read if the other side has some."""
        folder, trust = folder_opened(self.file), parts_of(self.file)[2].trust
        return None if folder is None else hub.read_directory(folder, self.file.path or "", trust)

    @functools.cached_property
    def stored_metadata(self) -> dict[str, Any]:
        """The metadata of the file, with types if it states them."""
        return file_metadata(self.file)

    def vocab_keys(self, other: _Side) -> list[str]:
        """Return the keys of metadata to compare as vocabulary, not as metadata."""
        keys = {} if self.format is None or self.file.vocab is None else self.format.vocab_keys
        both = self.stored_metadata.keys() & other.stored_metadata.keys()
        return [key for key, name in keys.items() if name is None or (key not in both and other.has_id(name))]

    def has_id(self, name: str) -> bool:
        """Say whether the vocabulary has a place for a special id."""
        return self.file.vocab is None or self.format is None or name in self.format.special_ids

    def holds_tokens(self, other: _Side) -> bool:
        """Say whether the metadata hold the tokens of the other side's vocabulary, and the file has no vocabulary."""
        keys = vocab_keys(other.file) & other.stored_metadata.keys()
        return self.file.vocab is None and bool(keys) and keys <= self.stored_metadata.keys()

    def metadata(self, also: Iterable[str], without: Iterable[str]) -> dict[str, Any]:
        """Return the metadata without some keys, and `also` keys that `convert` would add from the directory."""
        metadata = self.stored_metadata.copy()
        for key in without:
            metadata.pop(key, None)
        lacking = [key for key in also if key not in metadata]
        if lacking and self.directory is not None:
            of_directory = self.directory.metadata | self.directory.about
            metadata |= {key: of_directory[key] for key in lacking if key in of_directory}
        return metadata

    def vocabulary(self, other: _Side) -> tuple[Sequence[str], Mapping[str, int]] | None:
        """Return the tokens of the file or its directory, and those special ids that the other side has a place for.

        The directory counts if the other side has a vocabulary.
        """
        vocab: Any = self.file.vocab
        ids = None if vocab is None else vocab.special_ids
        if vocab is None and other.file.vocab is not None and self.directory is not None:
            vocab, ids = self.directory.vocab, self.directory.special_ids
        return None if vocab is None else (vocab, {name: i for name, i in (ids or {}).items() if other.has_id(name)})

    def states(self, key: str) -> bool:
        """Whether the format has a fixed set of keys, with this one: every file states it."""
        return self.format is not None and self.format.metadata_keys is not None and key in self.format.metadata_keys

    def does_without(self, name: str, place: Row) -> str | None:
        """Return why `convert` leaves a tensor of another file out of a file of this format; None if it does not."""
        layout = self.file.layout
        if self.format is None or layout not in self.format.dtypes:
            return None
        return dropped_because(name, place, self.format, layout)


def _diff(a: _Side, b: _Side, *, tensors_only: bool, tolerance: Tolerance | None) -> DiffReport:
    notes: list[str] = []
    only_in_a, only_in_b = _only_in(a, b, "A", notes), _only_in(b, a, "B", notes)
    takes = functools.partial(differ_in_type, a.file, b.file)
    for side in (a, b) if tolerance is not None else ():
        check_computable(side.file, takes, "comparing by value")
    codes = {name for side in (a, b) if tolerance is None for name in codes_among(side.file, takes)[0]}
    if codes:
        what = f"values of {counted(len(codes), 'tensor')} of codes, such as {quoted(min(codes))}"
        notes.append(f"{what}: f.weights (--weights) compares the parameters")
    common = read_at_all(a.file, b.file, (name for name in a.file if name in b.file))
    changed = tuple(tensor_diffs(both(a.file, b.file, common), tolerance, codes))
    if tolerance is not None:
        changed = tuple(by_rows(d, row_of(a.file, d.name).dense, row_of(b.file, d.name).dense) for d in changed)
    metadata: tuple[tuple[str, Any, Any], ...] = ()
    vocab = None
    if not tensors_only:
        within = a.holds_tokens(b) or b.holds_tokens(a)
        vocab_keys = [] if within else [*a.vocab_keys(b), *b.vocab_keys(a)]
        metadata = tuple(_metadata(a, b, vocab_keys, notes))
        if not within:
            vocab = _vocabularies(a.vocabulary(b), b.vocabulary(a))
    return DiffReport(name_of(a.file), name_of(b.file), only_in_a, only_in_b, changed, metadata, vocab, tuple(notes))


def differ_in_type(a: TensorFile, b: TensorFile, name: str) -> bool:
    """Whether both models have a tensor, of different types."""
    return name in a and name in b and row_of(a, name).dtype != row_of(b, name).dtype


def _only_in(side: _Side, other: _Side, where: str, notes: list[str]) -> tuple[str, ...]:
    """Return the names of tensors on only one side; names that `convert` leaves out become notes."""
    names = []
    for name in side.file:
        if name in other.file:
            continue
        why = other.does_without(name, row_of(side.file, name).dense)
        if why is None:
            names.append(name)
        else:
            notes.append(f"tensor {quoted(name)} is in {where} only: {why}")
    return tuple(names)


def _metadata(a: _Side, b: _Side, without: Iterable[str], notes: list[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield differences of metadata; keys of only one side that its format always states become notes."""
    values_a, values_b = a.metadata(b.stored_metadata, without), b.metadata(a.stored_metadata, without)
    for key in values_a | values_b:
        one, other = values_a.get(key), values_b.get(key)
        if _equal_values(one, other):
            continue
        side, where = (a, "A") if key not in values_b else (b, "B")
        if (key not in values_a or key not in values_b) and side.format is not None and side.states(key):
            notes.append(f"metadata {quoted(key)} is in {where} only: every file of {side.format.title} states it")
        else:
            yield key, one, other


def _equal_values(a: Any, b: Any) -> bool:
    """Whether two values of metadata are equal. Formats with only texts hold numbers and truth values as JSON."""
    if isinstance(a, str) is isinstance(b, str):
        return equal(a, b)
    text, value = (a, b) if isinstance(a, str) else (b, a)
    return isinstance(value, (int, float)) and text == json.dumps(value)


def _vocabularies(
    a: tuple[Sequence[str], Mapping[str, int]] | None, b: tuple[Sequence[str], Mapping[str, int]] | None
) -> str | None:
    """Return how two vocabularies, tokens and special ids, differ; None if they are equal."""
    if a is None or b is None:
        return None if a is b else f"only {'B' if a is None else 'A'} has one"
    if len(a[0]) != len(b[0]):
        return f"{counted(len(a[0]), 'token')} and {counted(len(b[0]), 'token')}"
    for i, (token_a, token_b) in enumerate(zip(a[0], b[0], strict=True)):
        if token_a != token_b:
            return f"token {i} is {quoted(token_a)} and {quoted(token_b)}"
    if a[1] != b[1]:
        return f"special ids are {a[1]} and {b[1]}"
    return None
