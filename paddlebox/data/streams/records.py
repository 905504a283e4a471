"""Records: what a pass reads of a stream, and the records of it that cannot be parsed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox import _native
from paddlebox.config import Format
from paddlebox.config.stream import StreamConfig
from paddlebox.data.columnar import as_read, check_types, uses_of
from paddlebox.data.streams.stream import Batch, Range, open_stream

core = _native.core
_NO_ROW = b"\0"  # a line that no text format takes
_BREAK = "a line break inside the record"


@dataclass
class Events:
    """What a pass found in its records besides instances."""

    newest: float = 0.0  # Unix time of the newest event; 0: no record has a time
    ahead: int = 0  # records with an event time in the future
    dead: list[dict[str, Any]] = field(default_factory=list)  # records that cannot be parsed

    def add(self, records: Records, parsed: Any, schema: Any) -> None:
        """parsed: the native ParsedChunk of the records."""
        self.newest = max(self.newest, records.batch.newest)
        self.ahead += records.batch.ahead
        if parsed.bad_lines:
            self.dead += records.dead(parsed, schema)


@dataclass(frozen=True)
class Records:
    """Successive records of a range. Any thread may parse them.

    Args:
        path: name of the range.
    """

    path: str
    batch: Batch
    format: Format

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk, with at least one line for each record."""
        return self._parsed(schema, 0)

    def dead(self, parsed: Any, schema: Any) -> list[dict[str, Any]]:
        """The records that cannot be parsed, for the file of dead letters. parsed: what `parse` has
        returned, which names only the first few."""
        found: dict[int, str] = {}
        begin = 0
        while True:
            record_of = self._record_of_line(begin)
            for line, reason, _ in parsed.first_bad:
                found.setdefault(record_of(line), reason)
            if parsed.bad_lines <= len(parsed.first_bad):
                break
            begin = max(found) + 1
            parsed = self._parsed(schema, begin)
        own = self._reasons(schema)
        partition, batch = Range.of(self.path).partition, self.batch
        return [
            {
                "partition": partition,
                "offset": batch.offsets[record],
                "reason": own.get(record, reason),
                "record": batch.values[record].decode(errors="backslashreplace"),
            }
            for record, reason in sorted(found.items())
        ]

    def _parsed(self, schema: Any, begin: int) -> Any:
        values = self.batch.values[begin:]
        if not self.format.is_columnar:
            lines = [_line(value) for value in values]
            return core.parse_chunk(schema, b"\n".join([*lines, b""]))
        if not values:
            return core.parse_columns(schema, [])
        return core.parse_columns(schema, self._batches(schema, values)[0])

    def _batches(self, schema: Any, values: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
        """The rows of records, and why some records have only a row of nulls."""
        if self.format is Format.JSON:
            batch, reasons = json_rows(values, schema)
            return [batch], reasons
        return arrow_rows(values, schema)

    def _reasons(self, schema: Any) -> Mapping[int, str]:
        """Reasons that are not those of a single value, by record."""
        if self.format.is_columnar:
            return self._batches(schema, self.batch.values)[1]
        return {at: _BREAK for at, one in enumerate(self.batch.values) if _line(one) == _NO_ROW}

    def _record_of_line(self, begin: int) -> Any:
        """Maps a line of the records from `begin` on to its record."""
        if self.format is not Format.ARROW:
            return lambda line: begin + line
        rows = [_rows_of(value) for value in self.batch.values[begin:]]
        ends = np.cumsum(rows)
        return lambda line: begin + int(np.searchsorted(ends, line, side="right"))


def read_records(name: str, config: StreamConfig, data_format: Format) -> Iterator[Records]:
    """The records of a range. Raises: as `Stream.read`."""
    for batch in open_stream(config).read(Range.of(name)):
        yield Records(name, batch, data_format)


def _line(value: bytes) -> bytes:
    value = value.removesuffix(b"\n")
    return _NO_ROW if b"\n" in value else value


# ---- JSON


def json_rows(values: Sequence[bytes], schema: Any) -> tuple[Any, dict[int, str]]:
    """A record batch with a row for each JSON object, and why some rows are nulls."""
    uses = uses_of(schema)
    made = [name for name, *_ in schema.expression_columns]
    columns: dict[str, list[Any]] = {name: [] for name in (*schema.column_names, *made)}
    casts = {name: _CASTS.get(uses.get(name, frozenset()), _as_is) for name in columns}
    reasons: dict[int, str] = {}
    for number, value in enumerate(values):
        row = {}
        try:
            found = json.loads(value)
            if not isinstance(found, dict):
                raise ValueError(f"expected an object, found {type(found).__name__}")
            for name, cast in casts.items():
                row[name] = _each(cast, found.get(name))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            at = f"{name!r}: " if row or isinstance(error, TypeError) else ""
            reasons[number], row = f"not a JSON object of the slots: {at}{error}", {}
        for name, column in columns.items():
            column.append(row.get(name))
    arrays = [_array(columns[name], uses.get(name, frozenset())) for name in columns]
    return as_read(pa.RecordBatch.from_arrays(arrays, names=[*columns]), schema), reasons


def _each(cast: Any, value: Any) -> Any:
    if value is None:
        return None
    return [cast(one) for one in value] if isinstance(value, list) else cast(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise TypeError(f"expected a text or a number, found {type(value).__name__}")


def _number(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"expected a number, found {type(value).__name__}")


def _id(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return value if value >= 0 else value + 2**64
    raise TypeError(f"expected an integer of 64 bits, found {value!r}")


def _as_is(value: Any) -> Any:
    return value


_CASTS = {frozenset({"text"}): _text, frozenset({"number"}): _number, frozenset({"id"}): _id}
_TYPES = {
    frozenset({"text"}): pa.string(),
    frozenset({"number"}): pa.float64(),
    frozenset({"id"}): pa.uint64(),
}


def _array(values: list[Any], use: frozenset[str]) -> Any:
    if use not in _TYPES:
        return pa.array(values)
    if not any(isinstance(value, list) for value in values):
        return pa.array(values, _TYPES[use])
    lists = [value if isinstance(value, list) or value is None else [value] for value in values]
    return pa.array(lists, pa.list_(_TYPES[use]))


# ---- Arrow


def arrow_rows(values: Sequence[bytes], schema: Any) -> tuple[list[Any], dict[int, str]]:
    """The record batches of Arrow IPC streams, and why some of them have only a row of nulls."""
    found: list[Any] = []
    reasons: dict[int, str] = {}
    checked: Any = None
    for number, value in enumerate(values):
        try:
            table = pa.ipc.open_stream(value).read_all()
            if not table.schema.equals(checked) if checked is not None else True:
                check_types(table.schema, schema)
                checked = table.schema
            table.validate(full=True)
            found += [as_read(batch, schema) for batch in table.to_batches()]
        except (pa.ArrowException, OSError, ValueError) as error:
            reasons[number] = f"not an Arrow IPC stream of the slots: {error}"
            found.append(json_rows([b"{}"], schema)[0])
    return found, reasons


def _rows_of(value: bytes) -> int:
    try:
        return int(pa.ipc.open_stream(value).read_all().num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return 1
