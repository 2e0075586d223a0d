"""The tokenizer section: its type, the ids of special tokens, and the vocabulary, which is read on demand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, TensorFileError, UnsupportedError
from weightmap.formats._base import take
from weightmap.formats.amb.layout import TOKENIZER_LEAST, U16_MAX, U32_MAX

if TYPE_CHECKING:
    from weightmap.formats._writing import Reason
    from weightmap.io.source import Source
    from weightmap.options import Limits

KINDS = ("BPE", "SentencePiece", "WordPiece", "custom")
WORDPIECE = KINDS.index("WordPiece")
SPECIAL_NAMES = ("bos", "eos", "pad", "unk", "mask")
NO_ID: int = U16_MAX
_FIELDS = struct.Struct("<B5H")
_PARTS = frozenset({"type", "special_ids", "payload"})


class Tokenizer:
    """The tokenizer of a model file: returned by ``TensorFile.tokenizer``, taken by ``weightmap.save``.

    Attributes
    ----------
    type : int
        0 BPE, 1 SentencePiece, 2 WordPiece, 3 custom.
    special_ids : dict of str to int
        By the names bos, eos, pad, unk and mask; without the tokens that the file lacks.
    payload : bytes
        The vocabulary, read from the file at the first use.
    """

    __slots__ = ("_payload", "_place", "_source", "_special_ids", "type")

    def __init__(
        self,
        type: int,
        special_ids: Mapping[str, int],
        payload: bytes | None = None,
        *,
        source: Source | None = None,
        place: tuple[int, int, Limits] | None = None,
    ) -> None:
        self.type: int = type
        self._special_ids = dict(special_ids)
        self._payload = payload
        self._source = source
        self._place = place

    @property
    def kind(self) -> str:
        """Name of the type: "BPE", "SentencePiece", "WordPiece" or "custom"."""
        return KINDS[self.type]

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens that the file has, by name: bos, eos, pad, unk, mask."""
        return dict(self._special_ids)

    @property
    def payload(self) -> bytes:
        """The vocabulary; its form depends on the type.

        Raises
        ------
        LimitError
            When it has more bytes than ``Limits.max_header_bytes``.
        ClosedError
            When the file was closed before the first use.
        """
        payload = self._payload
        if payload is None:
            assert self._source is not None  # noqa: S101 - for the type checker
            assert self._place is not None  # noqa: S101
            offset, size, limits = self._place
            try:
                limits.check("max_header_bytes", size, "size of the tokenizer's vocabulary", offset=offset)
                payload = self._payload = self._source.pread(offset, size)
            except TensorFileError as error:
                raise error.located(path=self._source.name, format="amb") from None
        return payload

    def tokens(self) -> list[str]:
        """Return the tokens of a WordPiece tokenizer by id: its payload has one on each line (ours).

        Raises
        ------
        UnsupportedError
            For a tokenizer of another type.
        FormatError
            When the payload is not UTF-8.
        """
        if self.type != WORDPIECE:
            what = "type of the tokenizer"
            raise UnsupportedError(what, field="type", actual=KINDS[self.type], expected=KINDS[WORDPIECE])
        try:
            text = self.payload.decode()
        except UnicodeDecodeError as error:
            msg = f"the vocabulary of the tokenizer is not UTF-8 ({error.reason})"
            name = None if self._source is None else self._source.name
            raise FormatError(msg, path=name, format="amb", field="payload") from None
        return text.removesuffix("\n").split("\n") if text else []

    def __repr__(self) -> str:
        size = len(self._payload) if self._payload is not None else (self._place or (0, 0))[1]
        return f"<{KINDS[self.type]} Tokenizer: special ids {self._special_ids}, {size} bytes>"


def read_tokenizer(source: Source, head: bytes, start: int, end: int, limits: Limits) -> Tokenizer | None:
    """Return the tokenizer of the section [start, end) without reading its vocabulary; None for an empty section."""
    if start == end:
        return None
    kind, *ids = _FIELDS.unpack(take(source, head, start, TOKENIZER_LEAST))
    if kind >= len(KINDS):
        expected = ", ".join(f"{code} ({name})" for code, name in enumerate(KINDS))
        raise UnsupportedError("tokenizer type", field="type", offset=start, actual=kind, expected=expected)
    special = {name: i for name, i in zip(SPECIAL_NAMES, ids, strict=True) if i != NO_ID}
    place = (start + TOKENIZER_LEAST, end - start - TOKENIZER_LEAST, limits)
    return Tokenizer(kind, special, source=source, place=place)


def encode_tokenizer(tokenizer: Any, reasons: list[Reason]) -> bytes:
    """Return the section for a `Tokenizer`, a mapping, or an object with such attributes."""
    if tokenizer is None:
        return b""
    if isinstance(tokenizer, Mapping):
        unknown = [repr(key)[:80] for key in tokenizer if key not in _PARTS]
        if unknown:
            reasons.append(f"tokenizer: {', '.join(unknown[:10])} (expected {', '.join(sorted(_PARTS))})")
        parts = [tokenizer.get(name) for name in ("type", "special_ids", "payload")]
    else:
        parts = [getattr(tokenizer, name, None) for name in ("type", "special_ids", "payload")]
    kind, special, payload = parts
    if type(kind) is not int or not 0 <= kind < len(KINDS):
        reasons.append(f"tokenizer type: {repr(kind)[:80]} (an integer from 0 to {len(KINDS) - 1})")
        kind = 0
    ids = _encode_ids({} if special is None else special, reasons)
    try:
        vocabulary = b"" if payload is None else bytes(memoryview(payload))
    except (TypeError, ValueError):
        reasons.append(f"tokenizer payload: {type(payload).__name__} (bytes)")
        vocabulary = b""
    if len(vocabulary) > U32_MAX - TOKENIZER_LEAST:
        reasons.append(f"tokenizer payload: {len(vocabulary)} bytes (the section has fewer than 2**32)")
    return _FIELDS.pack(kind, *ids) + vocabulary


def _encode_ids(special: Any, reasons: list[Reason]) -> list[int]:
    if not isinstance(special, Mapping):
        reasons.append(f"tokenizer special_ids: {type(special).__name__} (a mapping)")
        return [NO_ID] * len(SPECIAL_NAMES)
    unknown = [repr(key)[:80] for key in special if key not in SPECIAL_NAMES]
    if unknown:
        reasons.append(f"tokenizer special ids {', '.join(unknown[:10])} (expected {', '.join(SPECIAL_NAMES)})")
    ids = []
    for name in SPECIAL_NAMES:
        value = special.get(name)
        if value is None:
            value = NO_ID
        elif isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value.__index__() < NO_ID:
            reasons.append(f"tokenizer special id {name!r}: {repr(value)[:80]} (an integer from 0 to {NO_ID - 1})")
            value = NO_ID
        ids.append(value.__index__())
    return ids
