"""`Packed`, the tensors of a conversion as columns: a payload is made when it is asked for, and lives as long."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from weightmap.formats import Payload, Tensors
from weightmap.index.table import Row
from weightmap.quant import TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Packed", "nothing"]

# Names kept as one text: each as an object would take twice its length and more.
_TOGETHER = 4096


class Packed(Tensors):
    """Tensors of which few kinds exist, in some 40 bytes for each.

    A tensor is its name, the number of its kind, and the offset of its data in the source. Its payload with the place
    that it refers to would take 400 bytes.

    Attributes
    ----------
    nbytes : int
        Bytes of the data of all tensors in the new file.
    """

    kinds: list[Payload]

    def __init__(self) -> None:
        super().__init__([])
        self.nbytes = 0
        self._places: list[TensorRef] = []
        self._names = _Names()
        self._numbers, self._offsets = array("I"), array("Q")

    def add_kind(self, payload: Payload, place: TensorRef) -> int:
        """Return the number of a new kind, that of a tensor with this payload and place."""
        self.kinds.append(payload)
        self._places.append(place)
        return len(self.kinds) - 1

    def add(self, name: str, kind: int, offset: int) -> None:
        """Append a tensor."""
        self._names.append(name)
        self._numbers.append(kind)
        self._offsets.append(offset)
        self.nbytes += self.kinds[kind].nbytes

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Payload]:
        kinds, places, new = self.kinds, self._places, tuple.__new__
        for name, number, offset in zip(self._names, self._numbers, self._offsets, strict=True):
            source, (dtype, shape, _, nbytes), quantized = places[number]
            place = new(TensorRef, (source, new(Row, (dtype, shape, offset, nbytes)), quantized))
            yield kinds[number].again(name, place)

    def arranged(self, rank: Callable[[Payload], Any]) -> Packed:
        """Return the tensors by the rank of their kind, and those of one rank by the bytes of their names."""
        names, numbers = list(self._names), self._numbers
        # In the order of code points, which is that of the bytes of UTF-8.
        order = sorted(range(len(names)), key=names.__getitem__)
        ranks = list(map(rank, self.kinds))
        if any(other != ranks[0] for other in ranks):
            order.sort(key=lambda i: ranks[numbers[i]])
        found = Packed()
        found.kinds, found._places = self.kinds, self._places
        for i in order:
            found.add(names[i], numbers[i], self._offsets[i])
        return found


class _Names:
    """A growing list of names, as texts of many."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, array[int]]] = []
        self._last: list[str] = []

    def append(self, name: str) -> None:
        """Append a name."""
        last = self._last
        last.append(name)
        if len(last) == _TOGETHER:
            self._texts.append(("".join(last), array("Q", accumulate(map(len, last)))))
            last.clear()

    def __iter__(self) -> Iterator[str]:
        for text, ends in self._texts:
            begin = 0
            for end in ends:
                yield text[begin:end]
                begin = end
        yield from self._last


def nothing(_name: str, _place: TensorRef) -> tuple[()]:
    """Return the bytes of a tensor that the format refuses."""
    return ()
