"""Parser plugins: code of the user that parses text files, with `security.allow_commands`.

- ``module:function`` or ``path/to/file.py:function`` is a Python function. It takes whole lines as
  bytes, and returns a dict with a column for each slot: an argument for `pyarrow.array`, with a
  value or a list for each instance.
- ``path.so`` is a shared library with the C interface of ops/feed/text/plugin.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paddlebox import _native
from paddlebox.config import Slot, Slots, SlotType
from paddlebox.config.code import calling, check_callable, load_named
from paddlebox.data.columnar import as_read
from paddlebox.data.reader import Chunk
from paddlebox.errors import ConfigError, DataError

Parser = Callable[[bytes], Mapping[str, Any]]


def is_library(parser: str) -> bool:
    return parser.endswith(".so")


def load_function(parser: str) -> Parser:
    """Import `module:function` or `file.py:function`. Raises: ConfigError if there is none."""
    if ":" not in parser:
        raise ConfigError(f"parser {parser!r}: expected module:function, or the path of a .so")
    found = load_named(parser, "parser")
    check_callable(found, f"parser {parser!r}", "lines")
    function: Parser = found
    return function


@dataclass(frozen=True)
class PluginChunk:
    """Whole lines of one file, which a function of the user parses."""

    path: str
    data: bytes
    parser: str
    function: Parser
    slots: Slots
    left_out: int = 0  # lines of the other side of data.holdout

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk. Any thread may call it. Raises: DataError that names the file if
        the function raises an error, or returns columns that do not fit the slots."""
        where = f"{self.path}: parser {self.parser}"
        if not self.data:
            return self._counted(_native.core.parse_columns(schema, []))
        with calling(where, DataError):
            columns = self.function(self.data)
        if not hasattr(columns, "__getitem__") or isinstance(columns, list | tuple | str | bytes):
            found = "None" if columns is None else type(columns).__name__
            raise DataError(f"{where} returned {found}, expected a dict: slot -> column")
        try:
            names, arrays = [], []
            for slot in self.slots.slots:
                if slot.read and (slot.column or slot.name) not in names:
                    names.append(slot.column or slot.name)
                    arrays.append(_array(slot, columns[names[-1]]))
            for name, *_ in schema.expression_columns:
                if name not in names:
                    names.append(name)
                    arrays.append(pa.array(columns[name]))
            batch = as_read(pa.RecordBatch.from_arrays(arrays, names=names), schema)
            batch.validate(full=True)
            return self._counted(_native.core.parse_columns(schema, [batch]))
        except KeyError as error:
            found = ", ".join(map(str, columns)) or "none"
            raise DataError(f"{where} returned no column {error}; found {found}") from error
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DataError(f"{where} returned columns that do not fit: {error}") from error

    def _counted(self, parsed: Any) -> Any:
        parsed.left_out = self.left_out
        parsed.lines += self.left_out
        return parsed


def _array(slot: Slot, values: Any) -> Any:
    if isinstance(values, pa.Array):
        return values
    if slot.type is SlotType.SPARSE and not slot.hash:
        try:
            return pa.array(values, pa.list_(pa.uint64()))
        except (OverflowError, pa.ArrowException):  # negative integers
            return pa.array(values, pa.list_(pa.int64()))
    return pa.array(values)


def parsed_by(
    parser: str, chunks: Iterable[Chunk], slots: Slots, schema: Any
) -> Iterator[PluginChunk]:
    """schema: the native FeedSchema."""
    function = load_function(parser)
    for chunk in chunks:
        data, left_out = chunk.data, 0
        if chunk.side is not None:
            data, left_out = chunk.side.lines(data, chunk.end, schema, drop=True)
        data = data if data.strip() else b""
        if data or left_out:
            yield PluginChunk(chunk.path, data, parser, function, slots, left_out)
