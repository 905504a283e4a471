"""The arrays that a mapping file names, as what is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AnyMapping
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import KeySpace
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.slot_values import SlotValues, in_slot, known_slot, salt_of
from paddlebox.tools.rows.arrays import Arrays, SplitArrays, open_arrays
from paddlebox.tools.rows.columns import FEASIGN, SLOT, Columns, widths_of
from paddlebox.tools.rows.given import Given, given_of
from paddlebox.tools.rows.mapping import (
    POSITIONS,
    Cut,
    DenseParameter,
    KeysAre,
    RowsOf,
    as_column,
    read_mapping,
)
from paddlebox.tools.rows.paddle_text import text_batches
from paddlebox.tools.rows.receive import TableRows, Target

_BATCH_ROWS = 1 << 16


class MappedRows:
    """Raises: as `read_mapping` and `open_arrays`."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self.network: AnyMapping[str, Any] | None = None
        self._mapping = read_mapping(path)
        self._folder = path.parent
        self._opened: dict[str, Arrays] = {}

    def of_table(self, target: Target) -> TableRows:
        for rows in self._mapping.rows:
            for slot in rows.names:
                known_slot(target.names, slot, f"{self.place}: no sparse slot {slot!r}")
        return TableRows(self._batches(target), rows=None)

    def dense(self, fresh: AnyMapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        dense = self._mapping.dense
        given: dict[str, np.ndarray] = {}
        if dense is None:
            return given
        arrays = self._arrays(dense.file)
        for name, of in dense.parameters.items():
            where = f"{self.place}: dense.parameters.{name}"
            known_slot(list(fresh), name, f"{where}: no dense parameter {name!r} in the model")
            source = of if isinstance(of, DenseParameter) else DenseParameter(array=of)
            cut = Cut.parse(source.array)
            array = cut.read(arrays, 0, cut.lines(arrays, f"{self.place}: {dense.file}"))
            array = np.ascontiguousarray(array.T if source.transpose else array)
            expected = fresh[name]
            if array.shape != expected.shape:
                raise ConfigError(
                    f"{where}: expected shape {list(expected.shape)}, found {list(array.shape)} in "
                    f"{source.array!r} of {dense.file}"
                    + "; set transpose"
                    * _turned(array, expected)
                )
            given[name] = array.astype(expected.dtype)
        return given

    # ---- implementation

    def _batches(self, target: Target) -> Iterator[Given]:
        for rows in self._mapping.rows:
            own = {slot: _Feasigns(rows, slot, target, self._folder) for slot in rows.names}
            own = {slot: of for slot, of in own.items() if slot in target.own}
            read = self._columns if rows.format is None else self._text_columns
            for where, columns in read(rows, target, own) if own else ():
                yield given_of(columns, target.layout, target.counted, where)

    def _arrays(self, file: str) -> Arrays:
        if file not in self._opened:
            self._opened[file] = open_arrays(self._folder / file)
        return self._opened[file]

    def _arrays_of(self, rows: RowsOf) -> Arrays:
        arrays = self._arrays(rows.file)
        if rows.fbgemm is None:
            return arrays
        where = f"{self.place}: {rows.file}"
        return SplitArrays(arrays, rows.fbgemm.prefix, rows.fbgemm.table, where)

    def _lines(self, rows: RowsOf) -> int:
        """The lines of its arrays. Raises: ConfigError if they differ, or are not there."""
        arrays, where = self._arrays_of(rows), f"{self.place}: {rows.file}"
        cuts = [Cut.parse(text) for text in rows.columns.values()]
        if rows.keys != POSITIONS:
            cuts.append(Cut.parse(rows.keys))
        lines = {cut.array: cut.lines(arrays, where) for cut in cuts}
        if len(set(lines.values())) > 1:
            raise ConfigError(f"{where}: expected arrays of the same length, found {lines}")
        return next(iter(lines.values()))

    def _text_columns(
        self, rows: RowsOf, target: Target, own: AnyMapping[str, _Feasigns]
    ) -> Iterator[tuple[str, Columns]]:
        """File, and columns of its rows."""
        assert rows.format is not None
        pattern = str(self._folder / rows.file)
        for path in sorted(glob(pattern)) or [pattern]:
            for columns in text_batches(Path(path), rows.format, widths_of(target.layout, True)):
                numbers = columns[SLOT]
                if (
                    rows.slots and rows.names[0] in target.own
                ):  # once, if they are of several tables
                    unknown = int((~np.isin(numbers, list(rows.slots.values()))).sum())
                    target.counted.refuse("a slot number that the mapping does not name", unknown)
                    target.counted.read += unknown
                for slot, of in own.items():
                    here = numbers == rows.slots[slot] if rows.slots else slice(None)
                    of_slot = {name: column[here] for name, column in columns.items()}
                    yield path, {**of_slot, **of.of_keys(of_slot[FEASIGN])}

    def _columns(
        self, rows: RowsOf, target: Target, own: AnyMapping[str, _Feasigns]
    ) -> Iterator[tuple[str, Columns]]:
        """As `_text_columns`, of a file of arrays, which are of one slot."""
        (of,) = own.values()
        where, widths = str(self._folder / rows.file), widths_of(target.layout, True)
        arrays = self._arrays_of(rows)
        cuts = {name: Cut.parse(text) for name, text in rows.columns.items()}
        for name in cuts:
            if name not in widths:
                raise ConfigError(f"{self.place}: column {name}: the rows of the table have none")
        lines = self._lines(rows)
        for begin in range(0, lines, _BATCH_ROWS):
            end = min(begin + _BATCH_ROWS, lines)
            columns = {
                name: as_column(name, cut.read(arrays, begin, end), widths[name], where)
                for name, cut in cuts.items()
            }
            if rows.keys == POSITIONS:
                yield where, {**columns, **of.of_positions(begin, end)}
            else:
                keys = Cut.parse(rows.keys).read(arrays, begin, end)
                yield where, {**columns, **of.of_keys(keys)}


class _Feasigns:
    """The feasigns of the keys of a file, as the columns feasign and slot."""

    def __init__(self, rows: RowsOf, slot: str, target: Target, folder: Path) -> None:
        data = target.config.data
        self._rows, self._slot, self._where = rows, slot, str(folder / rows.file)
        self._place = target.names.index(slot)
        number = target.slots.key_slots()[self._place]
        self._salt = salt_of(number) if data.key_space is KeySpace.PER_SLOT else None
        self._values: SlotValues | None = None
        if target.slots.sparse[self._place].read:
            self._values = SlotValues(target.slots, slot, data.format, data.key_space, data.parser)
        self._vocabulary: list[str] | None = None
        if rows.vocabulary is not None:
            path = folder / rows.vocabulary
            try:
                self._vocabulary = path.read_text().splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path}: cannot be read: {error}") from error

    def of_positions(self, begin: int, end: int) -> dict[str, np.ndarray]:
        if self._vocabulary is not None:
            values = self._vocabulary[begin:end]
            if len(values) != end - begin:
                raise DataError(
                    f"{self._rows.vocabulary}: expected a line for each of the lines of "
                    f"{self._where}, found {len(self._vocabulary)}"
                )
            return self._columns(self._of_values(values))
        first = self._rows.first
        return self.of_keys(np.arange(first + begin, first + end, dtype=np.uint64))

    def of_keys(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """keys: (n) or (n, 1) integers; a negative one has the bits of a uint64. Raises:
        DataError."""
        if keys.dtype.kind not in "iu" or keys.size != len(keys):
            raise DataError(
                f"{self._where}: keys: expected a column of integers, found {keys.dtype} of shape "
                f"{keys.shape}"
            )
        flat = keys.reshape(-1)
        kind = self._rows.keys_are
        if kind is not KeysAre.FEASIGNS and flat.dtype.kind == "i" and (flat < 0).any():
            raise DataError(
                f"{self._where}: keys: expected ids of at least 0, found {int(flat.min())}"
            )
        unsigned = flat.astype(np.int64).view(np.uint64) if flat.dtype.kind == "i" else flat
        unsigned = unsigned.astype(np.uint64)
        if kind is KeysAre.FEASIGNS:
            return self._columns(unsigned)
        if kind is KeysAre.VALUES and self._values is not None and self._values.has_texts:
            return self._columns(self._of_values(unsigned.tolist()))
        present = unsigned != 0  # padding, which is refused later
        return self._columns(np.where(present, in_slot(unsigned, self._salt), np.uint64(0)))

    def _of_values(self, values: Sequence[Any]) -> np.ndarray:
        if self._values is None:
            raise ConfigError(
                f"{self._where}: slot {self._slot!r} is made of other slots, so its values "
                "are not in the data: set keys_are: ids or feasigns"
            )
        return self._values.feasigns(values)

    def _columns(self, feasigns: np.ndarray) -> dict[str, np.ndarray]:
        return {FEASIGN: feasigns, SLOT: np.full(len(feasigns), self._place, np.uint16)}


def _turned(array: np.ndarray, expected: np.ndarray) -> bool:
    return array.ndim == 2 and array.T.shape == expected.shape
