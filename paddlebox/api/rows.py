"""Rows to predict or to evaluate, as a temporary file, which is read as the data of training was.

It is an Arrow file if the run was trained on Parquet or Arrow, and criteo_tsv for that format. For
other text it is CSV, in which the same texts have the same ids.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paddlebox.api.tables import Column, as_integers, as_table, columns_of, write_arrow
from paddlebox.config import Config, Format, Slots, SlotType
from paddlebox.config.slots import Csv
from paddlebox.data.columnar import is_list, leaf_of, uses_of, with_leaf
from paddlebox.errors import DataError
from paddlebox.serving.feed import CELL, CRITEO_COLUMNS, VALUE
from paddlebox.store.files import writing
from paddlebox.training.opening import load_options

# What slots that are no features hold if a row is only predicted.
_UNKNOWN = {SlotType.LABEL: 0, SlotType.WEIGHT: 1, SlotType.COUNT: 0, SlotType.LATE: 0}
_WRITTEN_ROWS = 1 << 16  # of text at a time
_MARKS = f"\n\r\0{CELL}{VALUE}"  # that no value of a text may have


@dataclass(frozen=True)
class WrittenRows:
    """A file of rows. config, slots: to read it with."""

    path: str
    count: int
    config: Config
    slots: Slots


@contextlib.contextmanager
def written(
    data: Any, name: str, config: Config, slots: Slots, *, labelled: bool
) -> Iterator[WrittenRows]:
    """Write rows into a file that lasts for the block.

    Args:
        data: a DataFrame, a Table, or a list of dicts.
        name: of the argument, for errors.
        config, slots: those of the run.
        labelled: False: labels, weights, counts and marks of late lines may be missing, and are
            ignored, except with sequences of users, which hold labels.

    Raises: DataError for data that the slots cannot read; StoreError.
    """
    data_format, constants = config.data.format, dict[str, int]()
    if data_format.is_columnar or config.data.parser:
        form = Format.ARROW
    else:
        form = Format.CRITEO_TSV if data_format is Format.CRITEO_TSV else Format.CSV
    if not labelled and not config.data.sequences.user:
        slots, constants = _without_labels(slots, form)
    keys = {"data.format": form, "data.pipe_command": "", "data.parser": "", "data.holdout": None}
    config = config.having({**keys, "feeder.cache_bytes": 0})
    with tempfile.TemporaryDirectory(prefix="paddlebox-") as folder:
        path = Path(folder) / "rows"
        if form is Format.ARROW:
            options = load_options(config, slots)
            table = as_table(data, name, options.schema(), options.time, constants)
            write_arrow(table, path)
            rows = table.num_rows
        else:
            separator = slots.csv.list_separator if data_format is Format.CSV else ""
            cells, slots = _cells(data, name, config, slots, constants, separator)
            rows = _write(path, cells, criteo=form is Format.CRITEO_TSV)
        try:
            yield WrittenRows(str(path), rows, config, slots)
        except DataError as error:
            raise DataError(_with_rows(str(error), str(path), name)) from None


def _with_rows(text: str, path: str, name: str) -> str:
    """The text of an error about the file, with rows in place of its lines."""
    place = re.compile(rf"{re.escape(path)}:(\d+)")
    return place.sub(lambda line: f"row {int(line[1]) - 1}", text).replace(path, name)


def _without_labels(slots: Slots, form: Format) -> tuple[Slots, dict[str, int]]:
    """The slots, of which those that are no features read columns of their own, and the values of
    these columns."""
    changed, constants = [], {}
    for slot in slots.slots:
        if slot.type in _UNKNOWN:
            column = "label" if form is Format.CRITEO_TSV else f"unknown {slot.name}"
            constants[column] = _UNKNOWN[slot.type]
            slot = slot.having({"column": column})
        changed.append(slot)
    return slots.having({"slots": tuple(changed)}), constants


def _cells(
    data: Any,
    name: str,
    config: Config,
    slots: Slots,
    constants: Mapping[str, int],
    separator: str,
) -> tuple[dict[str, Any], Slots]:
    """The columns of a text, as strings, and the slots to read it with. separator: of the values in
    a string; "": a string is one value."""
    criteo, null = config.data.format is Format.CRITEO_TSV, slots.csv.null
    slots = slots.having({"csv": Csv(null=null)})
    schema = load_options(config, slots).schema()
    wanted = [slot.column or slot.name for slot in slots.slots if slot.read]
    columns = columns_of(data, name, wanted if criteo else schema.column_names, constants)
    uses, cells = uses_of(schema), {}
    for column, one in columns.items():
        what, use = f"{name}: column {column!r} ({one.type})", uses.get(column, frozenset())
        if criteo:  # integers, and tokens, whose digits are hexadecimal
            token = column[0] == "C"
            cells[column] = _texts(one, frozenset({"text" if token else "id"}), what, not token)
        else:
            texts = _texts(one, use, what)
            cells[column] = _quoted(_split(texts, separator, null) if separator else texts)
    if criteo:
        return cells, slots
    names = tuple(cells)
    csv = Csv(delimiter=CELL, list_separator=VALUE, columns=names, header=False, null=null)
    return cells, slots.having({"csv": csv})


def _texts(column: Column, use: frozenset[str], what: str, integers: bool = True) -> Any:
    """The cells of a column as large strings, in which VALUE joins the values of a list. use: what
    slots read in it. integers: whether integers have texts. Raises: DataError for values whose text
    in the data of the run is not known, such as 7.0, or that no line can hold."""
    array = as_integers(column.array) if use == {"id"} else column.array
    leaf, types, number = leaf_of(array.type), pa.types, use == {"number"}
    if number and types.is_boolean(leaf):
        array = array.cast(with_leaf(array.type, pa.int8()))
    elif not (
        types.is_null(leaf)
        or any(is_(leaf) for is_ in _STRINGS)
        or (integers and types.is_integer(leaf))
        or (number and (types.is_floating(leaf) or types.is_decimal(leaf)))
    ):
        expected = "integers or strings" if integers else "strings"
        raise DataError(
            f"{what}: expected values as the data of the run has them, as {expected}, found "
            f"{leaf}: convert them, or read them as strings"
        )
    try:
        cells = array.cast(with_leaf(array.type, pa.large_string()))
    except pa.ArrowException as error:
        raise DataError(f"{what}: {error}") from None
    marks = f"{_MARKS}\t" if not integers else _MARKS
    values = pc.list_flatten(cells) if is_list(cells.type) else cells
    if pc.any(pc.match_substring_regex(values, f"[{marks}]")).as_py():
        raise DataError(f"{what}: expected texts of one line, found control characters in a value")
    if is_list(cells.type):
        lists = ([one for one in cell or () if one is not None] for cell in cells.to_pylist())
        cells = pa.chunked_array([pa.array(map(VALUE.join, lists), pa.large_string())])
    return cells.fill_null("")


_STRINGS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)


def _split(cells: Any, separator: str, null: tuple[str, ...]) -> Any:
    """Divide strings into values, except those that mean nothing as a whole."""
    whole = pc.is_in(cells, pa.array(null, cells.type))
    return pc.if_else(whole, cells, pc.replace_substring(cells, separator, VALUE))


def _quoted(cells: Any) -> Any:
    """CSV reads what begins with a quote up to the next quote."""
    starts = pc.starts_with(cells, '"')
    if not pc.any(starts).as_py():
        return cells
    doubled = pc.replace_substring(cells, '"', '""')
    quote = _text('"')
    return pc.if_else(starts, pc.binary_join_element_wise(quote, doubled, quote, _text("")), cells)


def _text(value: str) -> Any:
    return pa.scalar(value, pa.large_string())


def _write(path: Path, cells: Mapping[str, Any], *, criteo: bool) -> int:
    """Returns the number of rows."""
    rows = len(next(iter(cells.values())))
    unused = pa.chunked_array([pa.array([""] * rows, pa.large_string())])
    names = CRITEO_COLUMNS if criteo else tuple(cells)
    columns = [cells.get(name, unused) for name in names]
    lines = pc.binary_join_element_wise(*columns, _text("\t" if criteo else CELL))
    with writing(str(path)), open(path, "w", encoding="utf-8", newline="") as file:
        for begin in range(0, rows, _WRITTEN_ROWS):
            some = lines.slice(begin, _WRITTEN_ROWS).to_pylist()
            file.write("".join(f"{line}\n" for line in some))
    return rows
