"""`Packed`, the tensors of a conversion as columns: payloads are made on demand, and not kept."""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, pairwise, starmap
from typing import TYPE_CHECKING, Any

from weightmap.core.bytes.source import BETWEEN, Source
from weightmap.core.formats import Payload, Tensors
from weightmap.core.ranges import Range
from weightmap.core.table.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightmap.core.bytes.sink import Sink

# Names kept as one text: each as an object would take twice its length and more.
_TOGETHER = 4096


class Packed(Tensors):
    """Tensors of few kinds, in some 40 bytes per tensor.

    A tensor is its name, the number of its kind, and the offset of its data in the source. Its payload with the place
    that it refers to would take 400 bytes.

    Parameters
    ----------
    renamed : mapping of str to str
        The new name of each renamed tensor.
    threads : int
        At most this many share the work of copying.

    Attributes
    ----------
    nbytes : int
        Bytes of the data of all tensors in the new file.
    """

    kinds: list[Payload]

    def __init__(self, renamed: Mapping[str, str], threads: int = 1) -> None:
        super().__init__([])
        self._renamed, self._threads = renamed, threads
        self.distinct: bool = not renamed  # as in the source, whose index was checked
        self.nbytes = 0
        self._places: list[Row] = []
        self._texts: list[tuple[str, array[int]]] = []  # names of many tensors, and where each of them ends
        self._last: list[str] = []
        self._numbers, self._offsets = array("I"), array("Q")

    def add_kind(self, payload: Payload, place: Row) -> int:
        """Return the number of a new kind, that of a tensor with this payload and place."""
        self.kinds.append(payload)
        self._places.append(place)
        return len(self.kinds) - 1

    def add(self, name: str, kind: int, offset: int) -> None:
        """Append a tensor by its name in the source."""
        last = self._last
        last.append(name)
        if len(last) == _TOGETHER:
            self._texts.append(("".join(last), array("Q", accumulate(map(len, last)))))
            last.clear()
        self._numbers.append(kind)
        self._offsets.append(offset)
        self.nbytes += self.kinds[kind].nbytes

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Payload]:
        over = self._over()
        for name, number, offset in zip(self.origins(), self._numbers, self._offsets, strict=True):
            yield self._payload(name, number, offset, over)

    def write(self, sink: Sink) -> None:
        """Append the bytes of all tensors: those of neighbours in a file that are only copied at once."""
        over = self._over()
        copied = [
            kind.is_made_by(copy) and _in_file(place) for kind, place in zip(self.kinds, self._places, strict=True)
        ]
        waiting, begin, end = None, 0, 0
        for name, number, offset in zip(self.origins(), self._numbers, self._offsets, strict=True):
            source = over[number] if copied[number] else None
            if source is not waiting or offset != end:
                if waiting is not None:
                    sink.read(waiting, begin, end - begin, self._threads)
                begin = offset
            if source is None:
                self._payload(name, number, offset, over).write(sink)
            waiting, end = source, offset + self._places[number].nbytes
        if waiting is not None:
            sink.read(waiting, begin, end - begin, self._threads)

    def _over(self) -> list[Source]:
        """Return for each kind the source that reads its data ahead."""
        files = {source for place in self._places for source, _, _ in place.reads()}
        ahead = {source: source.ahead(self._ranges(source), BETWEEN) for source in files}
        return [place.source.reading(ahead) for place in self._places]

    def _payload(self, name: str, number: int, offset: int, over: Sequence[Source]) -> Payload:
        dtype, shape, _, _, nbytes, geometry, quantized = self._places[number]
        place = tuple.__new__(Row, (dtype, shape, over[number], offset, nbytes, geometry, quantized))
        tensor = self.kinds[number].again(name, place)
        if self._renamed:
            tensor.name = self._renamed.get(name, name)
        return tensor

    def _ranges(self, file: Source) -> Iterator[Range]:
        """Yield the bytes of a file that tensors are made of, in order."""
        places = self._places
        for number, offset in zip(self._numbers, self._offsets, strict=True):
            place = places[number]
            for source, begin, end in place.source.reads(offset, offset + place.nbytes):
                if source is file:
                    yield Range(begin, end)

    def names(self) -> Iterator[str]:
        """Yield the names in the new file."""
        return (self._renamed.get(name, name) for name in self.origins()) if self._renamed else self.origins()

    def origins(self) -> Iterator[str]:
        """Yield the names in the source."""
        return chain(chain.from_iterable(starmap(_names_in, self._texts)), self._last)

    def arranged(self, rank: Callable[[Payload], Any]) -> Packed:
        """Return the tensors by the rank of their kind, and those of one rank by the bytes of their names."""
        names, numbers = list(self.origins()), self._numbers
        written = list(self.names()) if self._renamed else names
        # In the order of code points, which is that of the bytes of UTF-8.
        order = sorted(range(len(names)), key=written.__getitem__)
        ranks = list(map(rank, self.kinds))
        if any(other != ranks[0] for other in ranks):
            order.sort(key=lambda i: ranks[numbers[i]])
        found = Packed(self._renamed, self._threads)
        found.kinds, found._places = self.kinds, self._places
        for i in order:
            found.add(names[i], numbers[i], self._offsets[i])
        return found


def _names_in(text: str, ends: array[int]) -> list[str]:
    return [text[begin:end] for begin, end in pairwise(chain((0,), ends))]


def copy(sink: Sink, _: str, place: Row, threads: int) -> None:
    """Append the bytes of a dense tensor."""
    if _in_file(place):
        sink.read(place.source, place.offset, place.nbytes, threads)
    else:
        for chunk in place.chunks():
            sink.write(chunk)


def _in_file(place: Row) -> bool:
    """Whether a file here has these bytes as they are. Of a store, tensors are requested one by one."""
    return type(place.source) is Source and place.geometry is None and not place.dtype.swapped


def nothing(_name: str, _place: Row) -> tuple[()]:
    """Return the bytes of a tensor that the format refuses."""
    return ()
