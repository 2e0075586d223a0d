"""The manifest of a run over many shards: it records finished ones, so that the next run resumes there."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from weightmap.errors import FormatError, TargetError, TensorFileError, UnsupportedError, quoted
from weightmap.io import strict_json
from weightmap.io.atomic import remove_leftovers, write_plan
from weightmap.io.open_source import from_path
from weightmap.io.sink import WritePlan
from weightmap.model.sharding import plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightmap.options import Limits

_VERSION = 1
_MARK = "weightmap_manifest"


def digest(*values: Any) -> str:
    """Return a fingerprint of plain values."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Manifest:
    """Records of finished shards, kept in a file that each `write` replaces as a whole.

    Parameters
    ----------
    path : str
    work, run : str
        What the run does, "convert" or "verify", and the `digest` of everything that holds for all its shards.
    fields : mapping of str to type
        The fields of a record, besides "key".
    limits : Limits

    Raises
    ------
    FormatError
        When the file is damaged, or longer than `limits` allow; `UnsupportedError` for another version.
    TargetError
        When it is the manifest of another run.
    """

    def __init__(self, path: str, work: str, run: str, fields: Mapping[str, type], limits: Limits) -> None:
        self.path = path
        self._head: dict[str, Any] = {_MARK: _VERSION, "work": work, "run": run}
        self._fields = {"key": str, **fields}
        self._records: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, bytes] = {}
        try:
            for name, record in self._read(limits).items():
                self._add(name, record)
        except TensorFileError as error:
            raise error.located(path=path) from None

    def _read(self, limits: Limits) -> dict[str, Any]:
        """Return the records of the file; none if it is not there."""
        try:
            source = from_path(self.path, "copy")
        except FileNotFoundError:
            return {}
        try:
            limits.check("max_header_bytes", source.size, "size of the manifest")
            content = strict_json.loads(source.pread(0, source.size), "manifest")
        finally:
            source.close()
        version, records = content.get(_MARK), content.get("shards")
        if type(version) is not int or not isinstance(records, dict):
            raise FormatError(
                f"this is no manifest: it has no {_MARK}, a number, or no shards, an object", field="manifest"
            )
        if version != _VERSION:
            raise UnsupportedError("version of the manifest", field=_MARK, actual=version, expected=_VERSION)
        if {key: content.get(key) for key in self._head} != self._head:
            msg = "this is the manifest of a run with another target or other arguments: give another one, or remove it"
            raise TargetError(msg, field="run")
        for name, record in records.items():
            self._check(name, record)
        return records

    def _check(self, name: str, record: Any) -> None:
        plain_name(name, "shards")
        expected = ", ".join(self._fields)
        if not isinstance(record, dict) or record.keys() != self._fields.keys():
            actual = ", ".join(record) if isinstance(record, dict) else strict_json.kind_of(record)
            what = f"record of shard {quoted(name)} in the manifest"
            raise FormatError(what, field="shards", actual=actual[:200], expected=expected)
        for field, kind in self._fields.items():
            value: Any = record[field]
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 1 << 63):
                what = f"{field} of shard {quoted(name)} in the manifest"
                raise FormatError(what, field=field, actual=strict_json.kind_of(value), expected=kind.__name__)

    def _add(self, name: str, record: dict[str, Any]) -> None:
        self._records[name] = record
        self._lines[name] = f"{json.dumps(name)}: {json.dumps(record)}".encode()

    def find(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a shard if it has this key, which changes with the source of the shard."""
        record = self._records.get(name)
        return record if record is not None and record["key"] == key else None

    def add(self, name: str, key: str, **values: Any) -> None:
        """Record a finished shard; `write` makes it last."""
        self._add(name, {"key": key, **values})

    def write(self) -> None:
        """Write all records. Not flushed to the disk: after a power cut, shards are only done over."""
        head = json.dumps(self._head)[:-1].encode()
        data = b'%s, "shards": {\n%s\n}}\n' % (head, b",\n".join(self._lines.values()))
        write_plan(self.path, WritePlan(len(data), lambda sink: sink.write(data)), durable=False)

    def clean(self) -> None:
        """Remove temporary files of a run that was killed while it wrote this manifest."""
        folder, name = os.path.split(self.path)
        remove_leftovers(folder, [name])
