"""The files of a sharded model as one: what its `TensorFile` reads from."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.errors import LayoutError, counted, quoted
from weightmap.formats._metadata import equal
from weightmap.index.strings import StringTable
from weightmap.index.table import Row
from weightmap.model.parts import SHARD, check_index, detach_index, located, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import NoReturn

    from numpy.typing import NDArray

    from weightmap.dtypes import Placement
    from weightmap.formats import Verification
    from weightmap.index.table import Place, Run
    from weightmap.io.source import Source
    from weightmap.model.file import TensorFile
    from weightmap.model.listing import Listing
    from weightmap.quant import TensorRef
    from weightmap.quant.blocks import QuantizedTensor

__all__ = ["Shards", "disagreements"]


class Shards:
    """The files of a sharded model as one: source, table and content of its `TensorFile`.

    Rows and offsets are those of a shard plus its number times 2**64; `info` and `locate` return them as the shard
    does. Shards are ordered by name, tensors as in their shard.

    Parameters
    ----------
    index : Source
        The index of shards.
    shards : mapping of str to TensorFile
        The shards by name.
    listing : Listing, optional
        What the index says; without one the model has all tensors of all shards.

    Attributes
    ----------
    names : StringTable
        The names of the tensors, in order.
    """

    # No sharded model has these.
    sealed = part = None
    is_mapped: bool = False
    layout: str = "sharded"
    closed: bool = False
    path: str | None
    name: str
    absolute: str | None
    identity: tuple[int, ...]

    def __init__(self, index: Source, shards: Mapping[str, TensorFile], listing: Listing | None = None) -> None:
        self.path, self.name, self.absolute, self.identity = index.path, index.name, index.absolute, index.identity
        self.fail_closed: Callable[[], NoReturn] = index.fail_closed
        self.size: int = sum(file.nbytes for file in shards.values())
        self.warnings: list[str] = []
        self.shards = shards
        self._metadata = {} if listing is None else listing.metadata
        self._parts = [parts_of(file)[:2] for file in shards.values()]
        self.vocab: Any = next((content.vocab for _, content in self._parts if content.vocab is not None), None)
        self._own_keys = frozenset(key for _, content in self._parts if content.part for key in content.part.keys)
        self._detached = False
        # Where the tensors of each shard begin, among those of all.
        self._first = list(itertools.accumulate(map(len, shards.values()), initial=0))
        for file in shards.values():
            check_index(file)
        self.names: StringTable = StringTable.joined(
            (content.table.read_names() for _, content in self._parts), "tensor name"
        )
        # The tensors that the index lists, by their numbers among all; None where it lists all.
        self._listed: NDArray[np.int64] | None = None
        if listing is not None:
            self._compare(listing)

    @property
    def config(self) -> Any:
        """The configuration, of the first shard that has one."""
        return next((content.config for _, content in self._parts if content.config is not None), None)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer section, of the first shard that has one."""
        return next((content.tokenizer for _, content in self._parts if content.tokenizer is not None), None)

    def _compare(self, listing: Listing) -> None:
        """Refuse a tensor of the index that is in another shard or in none; leave out those that it does not list."""
        repeated = self.names.duplicates()[0]
        found = listing.numbers_in(self.names)
        own = np.repeat(np.arange(len(self.shards)), np.diff(self._first))
        numbers = {name: number for number, name in enumerate(self.shards)}
        meant = np.array([numbers[name] for name in listing.shards], np.int64)[listing.shard]
        if repeated or bool((found < 0).any()) or bool((own[found] != meant).any()):
            self._refuse(dict(listing.pairs()))
        if len(found) < len(self.names):
            listed = np.zeros(len(self.names), np.bool_)
            listed[found] = True
            for number in np.flatnonzero(~listed).tolist():
                shard = quoted(list(self.shards)[own[number]])
                self.warnings.append(f"tensor {quoted(self.names[number])} is in shard {shard} but not in the index")
            self._listed = np.flatnonzero(listed)
            self.names = self.names.taken(self._listed)

    def _refuse(self, where: Mapping[str, str]) -> None:
        """Raise the error for the first tensor that is not where the index places it."""
        seen = set()
        for shard, file in self.shards.items():
            for name in file:
                wanted = where.get(name)
                if wanted == shard:
                    seen.add(name)
                elif wanted is not None:
                    found = f"tensor {quoted(name)} is in shard {quoted(shard)}"
                    msg = f"{found}, but the index places it in {quoted(wanted)}"
                    raise LayoutError(msg, field="weight_map")
        missing = [name for name in where if name not in seen]
        if missing:
            what = f"tensor {quoted(missing[0])} is not in shard {quoted(where[missing[0]])}, where the index places it"
            msg = f"{what} ({counted(len(missing), 'such tensor')})"
            raise LayoutError(msg, field="weight_map")

    def _place_of(self, number: int) -> int:
        """Return the row of a tensor, by its number in `names`."""
        among = number if self._listed is None else int(self._listed[number])
        shard = bisect_right(self._first, among) - 1
        return shard * SHARD + among - self._first[shard]

    def _rows_of(self, shard: int) -> range | list[int]:
        """Return the rows of a shard that the model has."""
        first, last = self._first[shard : shard + 2]
        if self._listed is None:
            return range(last - first)
        low, high = np.searchsorted(self._listed, [first, last]).tolist()
        rows: list[int] = (self._listed[low:high] - first).tolist()
        return rows

    def _at(self, place: int) -> tuple[Any, Any, int]:
        """Return source and content of the shard of a row or an offset, and the same row or offset in the shard."""
        number, within = divmod(place, SHARD)
        try:
            source, content = self._parts[number]
        except IndexError:  # closed by another thread
            self.fail_closed()
        return source, content, within

    # ------------------------------------------------------------------------------------------------- as a source
    def check_unchanged(self) -> None:
        """Do nothing: a look-up checks only its own shard, see `place`."""

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int) -> NDArray[Any]:
        """Return an array of a shard: see `Source.array`."""
        source, _, offset = self._at(offset)
        array: NDArray[Any] = source.array(dtype, shape, offset, nbytes)
        return array

    def array_of(self, count: int, step: int, dtype: Any, shape: Any, offset: int, nbytes: int) -> NDArray[Any]:
        """Return arrays of a shard as one: see `Source.array_of`."""
        source, _, offset = self._at(offset)
        array: NDArray[Any] = source.array_of(count, step, dtype, shape, offset, nbytes)
        return array

    def placed(
        self, placement: Placement, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, nbytes: int
    ) -> NDArray[Any]:
        """Return a tensor of a shard that does not lie row-major in it: see `Source.placed`."""
        source, _, offset = self._at(offset)
        array: NDArray[Any] = source.placed(placement, dtype, shape, offset, nbytes)
        return array

    def ahead(self, ranges: Iterable[tuple[int, int]]) -> Shards:  # noqa: ARG002 - each shard does it for itself
        """Return itself: see `Source.ahead`."""
        return self

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Bring in these ranges: see `Source.prefetch`."""
        wanted: dict[Any, list[tuple[int, int]]] = {}
        for offset, nbytes in ranges:
            source, _, within = self._at(offset)
            wanted.setdefault(source, []).append((within, nbytes))
        for source, parts in wanted.items():
            source.prefetch(parts)

    @property
    def is_stable(self) -> bool:
        """Whether all shards are."""
        return all(source.is_stable for source, _ in self._parts)

    def close(self) -> None:
        """Close every shard."""
        self.closed = True
        for file in self.shards.values():
            file.close()
        self._parts = []

    # ------------------------------------------------------------------------------------------------- as a table
    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: object) -> int:
        """Return the row of the tensor called `name`, or -1."""
        number = self.names.find(name)
        return number if number < 0 else self._place_of(number)

    def place(self, i: int) -> Place:
        """Return dtype, shape, offset and bytes of row i. Raises `FileChangedError` if its shard has changed."""
        source, content, row = self._at(i)
        source.check_unchanged()
        dtype, shape, offset, nbytes = content.table.place(row)
        return dtype, shape, offset + (i - row), nbytes

    def runs(self) -> Iterator[Run]:
        """Yield all rows in file order: see `Table.runs`."""
        for number, (source, content) in enumerate(self._parts):
            start = number * SHARD
            source.check_unchanged()
            if self._listed is None:
                for dtype, shape, offset, nbytes, count, step in content.table.runs():
                    yield dtype, shape, start + offset, nbytes, count, step
                continue
            for row in map(content.table.row, self._rows_of(number)):
                yield row.dtype, row.shape, start + row.offset, row.nbytes, 1, 0

    def row(self, i: int) -> Row:
        """Return row i in its shard."""
        source, content, row = self._at(i)
        if content.table.is_mapped:
            source.check_unchanged()
        found: Row = content.table.row(row)
        return found

    def rows(self) -> Iterator[Row]:
        """Yield every row in its shard, in file order."""
        for number, file in enumerate(self.shards.values()):
            table = parts_of(file)[1].table
            yield from table.rows() if self._listed is None else map(table.row, self._rows_of(number))

    def detach_index(self) -> None:
        """Copy the index of every shard into private memory."""
        if not self._detached:
            for file in self.shards.values():
                detach_index(file)
            self._detached = True

    def check(self) -> None:
        """Do nothing: verifying a shard checks its table."""

    def disorder(self) -> None:
        """Do nothing: verifying a shard reports its own."""

    # ------------------------------------------------------------------------------------------------- as a content
    @property
    def table(self) -> Shards:
        """Itself."""
        return self

    def ref(self, _: Any, i: int) -> TensorRef:
        """Return the place of row i in its shard."""
        source, content, row = self._at(i)
        if content.table.is_mapped:
            source.check_unchanged()
        ref: TensorRef = content.ref(source, row)
        return ref

    def refs(self, _: Any) -> Iterator[TensorRef]:
        """Yield `ref` of every row, in file order."""
        for number, file in enumerate(self.shards.values()):
            if self._listed is None:
                yield from located(file)
                continue
            source, content, _ = parts_of(file)
            yield from (content.ref(source, row) for row in self._rows_of(number))

    def tensor_bytes(self) -> int:
        """Return the bytes of all tensors."""
        sizes = (parts_of(file)[1].table.spans()[1] for file in self.shards.values())
        return sum(int(nbytes[self._rows_of(number)].sum()) for number, nbytes in enumerate(sizes))

    def quantized(self, row: Row, octets: NDArray[np.uint8]) -> QuantizedTensor:
        """Return a quantised tensor of a shard."""
        _, content, offset = self._at(row.offset)
        tensor: QuantizedTensor = content.quantized(Row(row.dtype, row.shape, offset, row.nbytes), octets)
        return tensor

    @property
    def has_metadata(self) -> bool:
        """Whether the index or a shard has metadata."""
        return bool(self._metadata) or any(file.has_metadata for file in self.shards.values())

    def load_metadata(self) -> dict[str, Any]:
        """Return the metadata of the index, and entries on which all shards that have them agree."""
        said: dict[str, list[Any]] = {}
        for file in self.shards.values():
            for key, value in file.metadata.items():
                said.setdefault(key, []).append(value)
        agreed = {key: values[0] for key, values in said.items() if all(equal(value, values[0]) for value in values)}
        # A copy of the first shard's metadata, whose class may know more than the values, such as their types.
        found: dict[str, Any] = next((file.metadata.copy() for file in self.shards.values()), {})  # type: ignore[attr-defined]
        for key in [key for key in found if key not in agreed or key in self._own_keys]:
            del found[key]
        found.update({key: value for key, value in agreed.items() if key not in found and key not in self._own_keys})
        found.update(self._metadata)
        return found

    def verify(self, run: Verification) -> None:
        """Verify every shard."""
        run.checked("index of shards")
        run.warnings += disagreements(self, self.load_metadata())
        for name, file in self.shards.items():
            report = file.verify(progress=run.onwards(), threads=run.threads)
            run.checks += [f"{name}: {check}" for check in report.checks]
            run.warnings += [f"{name}: {warning}" for warning in report.warnings]


def disagreements(file: Any, metadata: Mapping[str, Any]) -> list[str]:
    """Return a line for each entry that is missing in a model's `metadata` because its shards disagree on it."""
    found = []
    values: dict[str, list[tuple[str, Any]]] = {}
    for name, shard in file.shards.items():
        part = parts_of(shard)[1].part
        for key, value in shard.metadata.items():
            if part is None or key not in part.keys:
                values.setdefault(key, []).append((name, value))
    for key, (first, *others) in values.items():
        other = next((other for other in others if not equal(other[1], first[1])), None)
        if key not in metadata and other is not None:
            said = " and ".join(f"{quoted(value)} in {quoted(name)}" for name, value in (first, other))
            found.append(f"the shards disagree on the metadata entry {quoted(key)}: {said}")
    return found
