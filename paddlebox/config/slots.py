"""slots.yaml: the columns of the input, in the order of a line, and the slot that each becomes.

slots:
  - {name: click, type: label}
  - {name: age, type: dense, dim: 1}
  - {name: movie, type: sparse}
  - {name: history, type: sparse, max_length: 20, shares: movie}
  - {name: user, type: sparse, table: wide}
  - {name: hour, type: sparse, hash: true, expr: "hour(time, 'UTC')"}
  - {name: age_bucket, type: sparse, bucket: {of: age, boundaries: [18, 30, 50]}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from paddlebox.config.check import nearest, refuse_twice, validate
from paddlebox.config.data import Format
from paddlebox.config.load import read_yaml
from paddlebox.config.lookup_tables import check_size, with_files
from paddlebox.config.section import Choice, ListOf, Section, Text
from paddlebox.config.zones import zones_of
from paddlebox.errors import ConfigError

_NORMALIZER = re.compile(r"\s*(zscore|minmax|quantile)\s*\((.*)\)\s*", re.DOTALL)
VALUES = ".values"  # end of the name of a slot that data.exact_values adds
INTERCEPT = "_intercept"  # name of the sparse slot that is added if the data has none
_CRITEO_COLUMN = re.compile(r"label|I([1-9]|1[0-3])|C([1-9]|1[0-9]|2[0-6])")


class SlotType(StrEnum):
    LABEL = "label"  # one number in [0, 1]; each label is a task, and the first is the click
    DENSE = "dense"  # dim floats
    SPARSE = "sparse"  # any number of feasigns
    WEIGHT = "weight"  # one number in [0, 2^32]; the instance counts as that many
    COUNT = "count"  # one number in [0, 2^32], which pushes add to rows (table.counts)
    LATE = "late"  # one number; above 0: the line repeats an instance whose label `of` came late


# The types of slots that the feeder holds as floats but that are not features.
_BESIDE = (SlotType.WEIGHT, SlotType.COUNT, SlotType.LATE)


class Pooling(StrEnum):
    """How the rows of the ids of a list become one: Σ f * row, with the weights w of the ids."""

    SUM = "sum"  # f = w
    MEAN = "mean"  # f = w / Σ w
    SQRTN = "sqrtn"  # f = w / sqrt(Σ w²)


class Bucket(Section):
    """Maps the ranges of a dense slot to feasigns. N boundaries make N + 1 ranges."""

    of: Text  # a dense slot before this one, of dim 1 if there are boundaries
    boundaries: ListOf[int | float]  # integers are exact; empty for the intercept only


class Csv(Section):
    """The CSV dialect, for `data.format: csv`."""

    delimiter: str = ","
    header: bool = True  # the first line names the columns; else `columns` or the slots do
    list_separator: str = "|"  # between the values of a cell
    columns: ListOf[Text] = ()  # names of the columns of files without a header, in order
    skip: int = Field(default=0, ge=0)  # lines to skip at the beginning of each file
    null: ListOf[Text] = ()  # texts that, as a whole cell, count as empty

    @model_validator(mode="before")
    @classmethod
    def _columns_are_in_place_of_a_header(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        # YAML reads the key `null` as None.
        values = {"null" if key is None else key: value for key, value in values.items()}
        if isinstance(values.get("null"), list) and None in values["null"]:
            raise ValueError('null: YAML reads an unquoted NULL as nothing: quote it, ["NULL"]')
        if not values.get("columns"):
            return values
        if values.get("header"):
            raise ValueError(
                "columns names the columns of files without a header: take out header: true; "
                "to replace a header, skip it with skip: 1"
            )
        return {**values, "header": False}

    @model_validator(mode="after")
    def _two_marks_and_no_column_twice(self) -> Csv:
        refuse_twice(self.columns, "columns")
        marks = {"delimiter": self.delimiter, "list_separator": self.list_separator}
        for name, mark in marks.items():
            if len(mark) != 1 or mark in '\n\r"\0' or not mark.isascii():
                step = 'a tab is "\\t", in double quotes' if "\\t" in mark else 'such as ";"'
                raise ValueError(
                    f"{name}: expected one character, no quote or line break, found {mark!r}: "
                    f"{step}"
                )
        if self.delimiter == self.list_separator:
            raise ValueError(
                f"found {self.delimiter!r} as delimiter and as list_separator, expected two "
                'different characters: set another list_separator, such as ";"'
            )
        return self


class Tags(Section):
    """Names of the columns of instance ids, contents, log keys and times, if a dataset parses them,
    for `data.format: csv`, parquet, arrow and orc."""

    ins_id: Text = "ins_id"
    content: Text = "content"
    logkey: Text = "logkey"
    time: Text = "time"  # integers in any unit


# Fields that only slots of one type may have.
_OF_TYPE = {
    **dict.fromkeys(("dim", "clip", "log1p", "constants"), SlotType.DENSE),
    **dict.fromkeys(("hash", "max_length", "bucket", "cross", "table", "shares"), SlotType.SPARSE),
    **dict.fromkeys(("learning_rate_factor", "weighted", "weight_column"), SlotType.SPARSE),
    "pooling": SlotType.SPARSE,
    "of": SlotType.LATE,
}


class Slot(Section):
    """A column of the input, or a feature that is computed from other slots."""

    name: Text
    type: Choice[SlotType]
    dim: int = Field(default=1, ge=1, le=1 << 20)
    column: Text | None = None
    expr: Text | None = None  # computes the values from columns: docs/expressions.md
    constants: ListOf[float] | None = None  # of zscore, minmax or quantile; None: a run chooses
    hash: bool = False
    max_length: int | None = Field(default=None, ge=1, le=(1 << 32) - 1)
    default: int | float | str | None = None
    clip: ListOf[float] | None = None
    log1p: bool = False
    bucket: Bucket | None = None
    cross: ListOf[Text] | None = None
    table: Text | None = None  # a key of extra_tables in the config; None: the default table
    shares: Text | None = None  # with key_space per_slot: equal ids of that slot are one feature
    learning_rate_factor: float = Field(default=1.0, gt=0)  # on the rates of the slot's rows
    weighted: bool = False  # each id has a weight
    weight_column: Text | None = None  # of the weights, in parquet, arrow and orc
    pooling: Choice[Pooling] = Pooling.SUM
    of: Text | None = None  # type late: the label that comes late

    @property
    def made(self) -> bool:
        """Whether it is computed from other slots, not read."""
        return self.bucket is not None or self.cross is not None

    @property
    def read(self) -> bool:
        """Whether its values are those of a column of its own."""
        return not self.made and self.expr is None

    @property
    def normalizer(self) -> tuple[str, str] | None:
        """The name and the argument of the zscore, minmax or quantile that `expr` is."""
        match = _NORMALIZER.fullmatch(self.expr or "")
        return (match[1], match[2]) if match else None

    @property
    def factored(self) -> bool:
        """Whether the rows of its ids have factors in the sum."""
        return self.weighted or self.pooling is not Pooling.SUM

    def fields(self, tables: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Any]:
        """The slot as the native FeedSchema takes it. `Slots.fields` does this for all slots.
        tables: of slots.yaml."""
        bucket = self.bucket
        return {
            **self.model_dump(exclude={"bucket", "table", "learning_rate_factor", "pooling", "of"}),
            "type": SlotType.DENSE.value if self.type in _BESIDE else self.type.value,
            "weight": self.type in _BESIDE,
            "column": self.column or "",
            "zones": zones_of(self.expr or ""),
            "tables": tables if tables and "lookup" in (self.expr or "") else {},
            "bucket_of": bucket.of if bucket else None,
            "boundaries": list(bucket.boundaries) if bucket else None,
        }

    @model_validator(mode="after")
    def _fields_are_for_the_type(self) -> Slot:
        if any(character.isspace() or character == ":" for character in self.name):
            raise ValueError(
                f"slot name: expected no space and no colon, found {self.name!r}: give the slot "
                f"another name, and `column: {self.name!r}`"
            )
        for field, kind in _OF_TYPE.items():
            given = getattr(self, field) != type(self).model_fields[field].default
            if given and self.type is not kind:
                raise ValueError(
                    f"slot {self.name!r} has {field}, which is for {kind.value} slots; found "
                    f"type {self.type.value}: take {field} out, or correct the type"
                )
        bucket, cross, clip = self.bucket, self.cross, self.clip
        boundaries = bucket.boundaries if bucket is not None else ()
        read = self.hash or self.column is not None or self.shares is not None or self.weighted
        column = self.column is not None or self.weighted or self.made or self.dim != 1
        for wrong, text in (
            (
                self.expr is not None and self.type not in (SlotType.DENSE, SlotType.SPARSE),
                f" has expr, which is for dense and sparse slots; found type {self.type.value}: "
                "take expr out, or correct the type",
            ),
            (
                self.expr is not None and column,
                " has expr; expected no column, bucket, cross, weighted or dim",
            ),
            (
                self.constants is not None and self.normalizer is None,
                " has constants; expected an expr that is zscore, minmax or quantile",
            ),
            (
                self.weight_column is not None and not self.weighted,
                " has weight_column but no weights: give it `weighted: true`, or take "
                "weight_column out",
            ),
            (bucket is not None and cross is not None, " has bucket and cross; expected one"),
            (
                self.made and read,
                " is made of other slots; expected no hash, column, shares or weighted",
            ),
            (
                clip is not None and (len(clip) != 2 or clip[0] > clip[1]),
                f": clip: expected [low, high], found {clip}",
            ),
            (
                any(low >= high for low, high in pairwise(boundaries)),
                f": bucket.boundaries: expected ascending numbers, found {list(boundaries)}: sort "
                "them, and give each only once",
            ),
            (
                cross is not None and len(cross) != 2,
                f": cross: expected two slots, found {len(cross or ())}: write [one, other]",
            ),
        ):
            if wrong:
                raise ValueError(f"slot {self.name!r}{text}")
        self._check_default()
        return self

    def _check_default(self) -> None:
        value = self.default
        if value is None:
            return
        if self.type in (SlotType.LABEL, *_BESIDE) or self.bucket is not None:
            raise ValueError(f"slot {self.name!r} has a default, but its value is never missing")
        if self.type is SlotType.DENSE:
            fits, expected = not isinstance(value, str), "a number"
        elif self.hash:
            fits, expected = isinstance(value, str) and value != "", "a string, because of hash"
        else:
            fits = isinstance(value, int) and 0 < value < 1 << 64
            expected = "a feasign in [1, 2^64 - 1] (a slot of strings needs hash: true)"
        if not fits:
            raise ValueError(f"slot {self.name!r}: default: expected {expected}, found {value!r}")


class Slots(Section):
    """The slots of a data set. S = sparse slots, whose order is the same everywhere; T = tasks."""

    slots: ListOf[Slot]
    csv: Csv = Field(default_factory=Csv)
    tags: Tags = Field(default_factory=Tags)
    lookups: dict[Text, dict[Text, str]] = Field(default_factory=dict)  # what `lookup` reads

    @model_validator(mode="after")
    def _no_name_twice(self) -> Slots:
        check_size(self.lookups)
        refuse_twice([slot.name for slot in self.slots], "slots")
        if len(self.sparse) > 65535:
            raise ValueError(f"expected at most 65535 sparse slots, found {len(self.sparse)}")
        for kind in (SlotType.WEIGHT, SlotType.LATE):
            found = [slot.name for slot in self.slots if slot.type is kind]
            if len(found) > 1:
                raise ValueError(
                    f"expected at most one slot of type {kind.value}, found {', '.join(found)}: "
                    "make the others dense"
                )
        return self

    @model_validator(mode="after")
    def _late_lines_name_their_label(self) -> Slots:
        if self.late is not None:
            _known(f"slot {self.late.name!r}: of:", self.late.of or "", self.tasks, "a label")
        return self

    @model_validator(mode="after")
    def _made_slots_come_last_and_know_what_of(self) -> Slots:
        before: list[Slot] = []
        for slot in self.slots:
            if not slot.made and before and before[-1].made:
                raise ValueError(
                    f"slot {slot.name!r} is read from a column, but follows {before[-1].name!r}, "
                    "which is made of other slots; put slots with bucket or cross last"
                )
            if slot.bucket is not None:
                dense = [s for s in before if s.type is SlotType.DENSE]
                usable = [s.name for s in dense if s.dim == 1 or not slot.bucket.boundaries]
                first = f"slot {slot.name!r}: bucket.of:"
                _known(first, slot.bucket.of, usable, "a dense slot of dim 1 above it")
            for name in slot.cross or ():
                usable = [s.name for s in before if s.type is SlotType.SPARSE]
                first = f"slot {slot.name!r}: cross:"
                _known(first, name, usable, "a sparse slot above it")
            before.append(slot)
        return self

    @model_validator(mode="after")
    def _shared_ids_are_those_of_a_slot_like_it(self) -> Slots:
        read = {slot.name: slot for slot in self.sparse if not slot.made}
        for slot in self.sparse:
            if slot.shares is None:
                continue
            usable = [name for name, one in read.items() if one.shares is None]
            usable = [name for name in usable if name != slot.name]
            first = f"slot {slot.name!r}: shares:"
            chain = read.get(slot.shares)
            if chain is not None and chain.shares is not None and chain is not slot:
                raise ValueError(
                    f"{first} {chain.name!r} itself shares {chain.shares!r}; expected a slot "
                    f"without shares: give {slot.name!r} `shares: {chain.shares}`"
                )
            _known(first, slot.shares, usable, "a sparse slot that is read")
            other = read[slot.shares]
            if slot.hash != other.hash:
                without = slot if other.hash else other
                raise ValueError(
                    f"{first} only one of {slot.name!r} and {other.name!r} has `hash: true`, so "
                    f"that their ids differ: give `hash: true` to {without.name!r} too, or take it "
                    "out of the other slot"
                )
            if slot.table != other.table:
                raise ValueError(
                    f"{first} {slot.name!r} belongs to table {slot.table or 'default'!r} and "
                    f"{other.name!r} to {other.table or 'default'!r}; expected the same table"
                )
        return self

    def key_slots(self) -> tuple[int, ...]:
        """(S) the number that key_space per_slot mixes into the ids of each sparse slot."""
        names = [slot.name for slot in self.sparse]
        return tuple(names.index(slot.shares or slot.name) for slot in self.sparse)

    @property
    def label(self) -> Slot:
        """The label of the first task, the click."""
        return self.labels[0]

    @property
    def labels(self) -> tuple[Slot, ...]:
        """(T) the labels, one per task. T is 0 only for a program that makes its own targets."""
        return tuple(slot for slot in self.slots if slot.type is SlotType.LABEL)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.labels)

    @property
    def dense(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.type is SlotType.DENSE)

    @property
    def weight(self) -> Slot | None:
        """The slot with the weight of the instance; None: each instance counts once."""
        return next((slot for slot in self.slots if slot.type is SlotType.WEIGHT), None)

    @property
    def late(self) -> Slot | None:
        """The slot that marks late lines; None: there are none."""
        return next((slot for slot in self.slots if slot.type is SlotType.LATE), None)

    @property
    def beside(self) -> tuple[Slot, ...]:
        """The slots that are neither features nor labels: the weight, counts, and the mark of late
        lines."""
        return tuple(slot for slot in self.slots if slot.type in _BESIDE)

    @property
    def sparse(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.type is SlotType.SPARSE)

    @property
    def weighted(self) -> tuple[str, ...]:
        """Names of the slots whose ids have weights."""
        return tuple(slot.name for slot in self.sparse if slot.weighted)

    @property
    def factored(self) -> tuple[str, ...]:
        """Names of the slots whose rows have factors: weighted, or pooled by mean or sqrtn."""
        return tuple(slot.name for slot in self.sparse if slot.factored)

    def poolings(self) -> list[str]:
        """(S) the pooling of each sparse slot as the native code takes it; empty: no factors."""
        names = [slot.pooling.value if slot.factored else "plain" for slot in self.sparse]
        return names if self.factored else []

    @property
    def dense_width(self) -> int:
        """W, the total number of floats of all dense slots."""
        return sum(slot.dim for slot in self.dense)

    @property
    def feed_dense(self) -> tuple[Slot, ...]:
        """The slots that the native feeder holds as floats, in the order of the line: dense slots,
        all labels except the first, and the slots `beside`."""
        first = self.labels[:1]
        return tuple(s for s in self.slots if s.type is not SlotType.SPARSE and s not in first)

    @property
    def feed_dense_width(self) -> int:
        """The total number of floats of `feed_dense`."""
        return sum(slot.dim for slot in self.feed_dense)

    def fields(self) -> list[dict[str, Any]]:
        """The slots as the native FeedSchema takes them. Labels after the first are dense there."""
        more = self.labels[1:]
        return [
            {**slot.fields(self.lookups), **({"type": "dense"} if slot in more else {})}
            for slot in self.slots
        ]

    def without_normalizers(self) -> Slots:
        """The slots with the arguments of zscore, minmax and quantile in place of them: they read
        the same columns, and need no constants."""

        def plain(slot: Slot) -> Slot:
            if slot.normalizer is None:
                return slot
            return slot.having({"expr": slot.normalizer[1], "constants": None})

        return self.having({"slots": tuple(map(plain, self.slots))})

    def with_exact_values(self, values: Mapping[str, Sequence[float]] | str) -> Slots:
        """The slots and those that `data.exact_values` adds to them. Raises: ConfigError if a name
        is no dense slot of dim 1, or the name of an added slot is that of another one."""
        if isinstance(values, str):  # auto, which adds none
            return self
        key = "data.exact_values"
        usable = [slot.name for slot in self.dense if slot.dim == 1]
        for name, boundaries in values.items():
            if name not in usable:
                raise ConfigError(
                    f"{key}: expected a dense slot of dim 1, found {name!r}{nearest(name, usable)}"
                )
            if not boundaries:
                raise ConfigError(f"{key}.{name}: expected at least one boundary, found none")
        there, more = {slot.name: slot for slot in self.slots}, []
        for name in (name for name in usable if name in values):  # in the order of slots.yaml
            bucket = Bucket(of=name, boundaries=tuple(values[name]))
            slot = Slot(name=name + VALUES, type=SlotType.SPARSE, bucket=bucket)
            if there.get(slot.name, slot) != slot:
                raise ConfigError(
                    f"{key} adds a slot {slot.name!r} with other boundaries than the one that "
                    "slots.yaml has: give that one another name"
                )
            more += [slot] if slot.name not in there else []
        return self.having({"slots": (*self.slots, *more)})

    def without_intercept(self) -> Slots:
        """The slots without the one that `complete` adds."""
        own = tuple(s for s in self.slots if s.bucket is None or s.bucket.boundaries)
        return self.having({"slots": own})

    def as_yaml(self) -> str:
        """The text of a slots.yaml that `load_slots` reads as these slots. Values are JSON, which
        YAML reads as they are."""
        fields = self.without_intercept().model_dump(mode="json", exclude_defaults=True)
        lines = [f"  - {json.dumps(slot, ensure_ascii=False)}" for slot in fields.pop("slots")]
        more = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
        return "\n".join(["slots:", *lines, *more, ""])

    def of_serving(self) -> Slots:
        """The slots for serving: without the labels after the first and the slots `beside`."""
        left_out = (*self.labels[1:], *self.beside)
        kept = [slot for slot in self.slots if slot not in left_out]
        return self.having({"slots": tuple(s.having({"learning_rate_factor": 1.0}) for s in kept)})

    def positions(self, sequences: Sequence[str]) -> tuple[int, ...]:
        """(S) the number of cells of each sparse slot: max_length for sequences, whose ids are fed
        one by one, and 1 for others. Raises: ConfigError if a sequence is no sparse slot, has no
        max_length or has factors."""
        names = [slot.name for slot in self.sparse]
        for name in sequences:
            if name not in names:
                raise ConfigError(f"sequence {name!r} is no sparse slot{nearest(name, names)}")
            if name in self.factored:
                raise ConfigError(
                    f"sequence {name!r}: expected a slot without weighted and pooling, which the "
                    f"model does not use: it reads the ids of slot {name!r} one by one; take them "
                    "out of slots.yaml"
                )
            if self.sparse[names.index(name)].max_length is None:
                raise ConfigError(
                    f"sequence {name!r}: expected a slot with max_length, found none: the model "
                    f"reads its ids one by one; give slot {name!r} a max_length, such as 20, in "
                    "slots.yaml"
                )
        return tuple((s.max_length or 1) if s.name in sequences else 1 for s in self.sparse)

    def tables(self, names: Sequence[str]) -> tuple[int, ...]:
        """(S) the index in `names`, the default table first, of the table of each sparse slot.
        Raises: ConfigError if a slot names a table that does not exist, or a table has no slots."""
        for slot in self.sparse:
            if slot.table is not None and slot.table not in names:
                raise ConfigError(
                    f"slot {slot.name!r}: no table {slot.table!r}{nearest(slot.table, names)}"
                )
        chosen = tuple(names.index(slot.table or names[0]) for slot in self.sparse)
        for number, name in enumerate(names):
            if len(names) > 1 and number not in chosen:
                raise ConfigError(
                    f"table {name!r} has no sparse slot: give a sparse slot `table: {name}`"
                    if number
                    else f"the default table {name!r} has no sparse slot: each slot has a `table`"
                )
        return chosen

    def check_counts(self, names: Sequence[str]) -> None:
        """Raises: ConfigError if a count of `table.counts` is neither a label nor a slot of type
        count."""
        fed = [s.name for s in self.slots if s.type in (SlotType.LABEL, SlotType.COUNT)]
        for name in names:
            if name not in fed:
                raise ConfigError(
                    f"table.counts: no label and no slot of type count {name!r} in slots.yaml"
                    f"{nearest(name, fed)}"
                )

    def check_format(self, data_format: Format) -> None:
        """Raises: ConfigError if a slot, `csv` or `tags` does not fit a data format."""
        of = data_format.value
        named = data_format is Format.CSV or data_format.is_columnar
        if data_format is not Format.CSV and self.csv != Csv():
            raise ConfigError(f"csv is given, but data.format is {of}")
        if not named and self.tags != Tags():
            raise ConfigError(
                f"tags has columns, which only csv, parquet, arrow and orc use; data.format is {of}"
            )
        for slot in self.slots:
            if slot.expr is not None:
                self._check_expr(slot, data_format, named)
        for slot in self.slots:
            if not slot.read:
                continue
            column = slot.column or slot.name
            if self.csv.columns and column not in self.csv.columns:
                raise ConfigError(
                    f"slot {slot.name!r}: no column {column!r} in csv.columns"
                    f"{nearest(column, self.csv.columns)}"
                )
            for wrong, text in _misfits(slot, column, data_format, named):
                if wrong:
                    raise ConfigError(f"slot {slot.name!r}{text}")
        marks = {"delimiter": self.csv.delimiter, "list_separator": self.csv.list_separator}
        for name, mark in marks.items():
            if self.weighted and data_format is Format.CSV and mark == ":":
                raise ConfigError(
                    f"csv.{name} is ':', which divides the ids of slot {self.weighted[0]!r} "
                    "from their weights: set another one"
                )

    def _check_expr(self, slot: Slot, data_format: Format, named: bool) -> None:
        first = f"slot {slot.name!r} has expr, which reads columns by name"
        if not named:
            raise ConfigError(
                f"{first}; data.format {data_format.value} has none: write csv, parquet, arrow or "
                "orc, or compute the values before they are written"
            )
        if not (self.csv.header or self.csv.columns):
            raise ConfigError(f"{first}; the file has no header: set csv.columns")


def _misfits(
    slot: Slot, column: str, data_format: Format, named: bool
) -> Iterable[tuple[object, str]]:
    """Whether a slot breaks each rule of a format, and the rest of the error. named: whether
    columns have names."""
    of = data_format.value
    criteo = data_format is Format.CRITEO_TSV
    absent = named or data_format in (Format.FEASIGN_SLOT, Format.SLOT_VALUE)
    types = {"l": {SlotType.LABEL}, "I": {SlotType.DENSE, SlotType.SPARSE}}
    wanted = types.get(column[0], {SlotType.SPARSE})
    return (
        (
            slot.weighted and criteo,
            f" is weighted, but {of} has no weights: take weighted out, or correct data.format",
        ),
        (
            slot.weight_column is not None and not data_format.is_columnar,
            " has weight_column, which only parquet, arrow and orc use; in data.format "
            f"{of} an id and its weight are one value, such as 7:0.5: take weight_column out",
        ),
        (
            slot.weighted and slot.weight_column is None and data_format.is_columnar,
            " is weighted: expected weight_column, the name of the column of its weights in "
            f"{of}, found none",
        ),
        (
            slot.type is SlotType.DENSE and slot.default is not None and not absent,
            f" has a default, but in {of} no dense value is ever absent: take the default out, "
            "or correct data.format",
        ),
        (
            slot.column is not None and not (named or criteo),
            " has a column, which only formats criteo_tsv, csv, parquet, arrow and orc use; found "
            f"data.format {of}: take column out, or correct data.format",
        ),
        (criteo and slot.hash, " has hash; the tokens of criteo_tsv are numbers already"),
        (
            criteo and not _CRITEO_COLUMN.fullmatch(column),
            f": no column {column!r} in criteo_tsv; expected label, I1 to I13 or C1 to C26 as "
            "its column, or as its name",
        ),
        (
            criteo and (slot.type not in wanted or slot.dim != 1),
            f": column {column} cannot be a {slot.type.value} slot of dim {slot.dim}; expected "
            f"{' or '.join(sorted(wanted))}, dim 1",
        ),
    )


def _known(first: str, name: str, usable: Iterable[str], kind: str) -> None:
    """Check that a name is usable. first: beginning of the error; kind: what is expected."""
    usable = list(usable)
    if name not in usable:
        raise ValueError(f"{first} expected {kind}, found {name!r}{nearest(name, usable)}")


def load_slots(path: str | Path, *, labelled: bool = True) -> Slots:
    """Load slots.yaml. If it has no sparse slot, an intercept is added. Raises: ConfigError, also
    if `labelled` and there is no label."""
    values = with_files(read_yaml(path), Path(path))
    return complete(validate(Slots, values, str(path)), str(path), labelled=labelled)


def complete(slots: Slots, source: str, *, labelled: bool = True) -> Slots:
    """`load_slots` for the content of a file. source: its origin for messages."""
    if labelled and not slots.labels:
        raise ConfigError(
            f"{source}: slots: expected a slot of type label, found none: add the column of 0 and "
            "1 to predict, such as {name: click, type: label}"
        )
    for slot in slots.sparse:
        if slot.bucket is not None and not slot.bucket.boundaries:
            raise ConfigError(
                f"{source}: slot {slot.name!r}: bucket.boundaries: expected at least one, found "
                "none"
            )
    return slots if slots.sparse else _with_intercept(slots, source)


def _with_intercept(slots: Slots, source: str) -> Slots:
    """Add a sparse slot with one feature that is the same in every instance. Then S = 0 needs no
    special case, with shapes such as (B, 0, D). The cost is one row, which acts as a bias."""
    if not slots.dense:
        raise ConfigError(
            f"{source}: slots: expected one of type sparse or dense, found only labels: add the "
            "columns that the model predicts from"
        )
    name = INTERCEPT
    while name in [slot.name for slot in slots.slots]:
        name = f"_{name}"
    bucket = Bucket(of=slots.dense[0].name, boundaries=())
    intercept = Slot(name=name, type=SlotType.SPARSE, bucket=bucket)
    return slots.model_copy(update={"slots": (*slots.slots, intercept)})
