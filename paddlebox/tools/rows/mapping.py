"""The mapping file of an import: which arrays of which files become the rows of which slot
(docs/rows.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from paddlebox.config.check import did_you_mean, validate
from paddlebox.config.load import read_yaml
from paddlebox.config.section import Choice, ListOf, Section, Text
from paddlebox.errors import ConfigError, DataError
from paddlebox.tools.rows.arrays import Arrays
from paddlebox.tools.rows.columns import (
    FEASIGN,
    SLOT,
    STATE,
    VALUES,
    check_weights,
    dtype_of,
    is_shaped,
)

POSITIONS = "positions"  # value of `keys`: the number of the line is the key


class KeysAre(StrEnum):
    """What the keys of a file mean."""

    VALUES = "values"  # of the slot, as in the data: hashed if the slot has `hash`
    IDS = "ids"  # of the slot, after its hash
    FEASIGNS = "feasigns"  # as the store has them


class TextFormat(StrEnum):
    """Text tables of Paddle 2.x's parameter server."""

    PADDLE_CTR = "paddle_ctr"  # CtrCommonAccessor and its relatives
    PADDLE_GPUPS = "paddle_gpups"  # CtrDymfAccessor


class Fbgemm(Section):
    """A table of FBGEMM's SplitTableBatchedEmbeddingBags: `columns` then names families, such as
    weights and momentum1."""

    prefix: str = ""  # of the names of the module's arrays
    table: int = Field(default=0, ge=0)


# Key of rows -> keys that it replaces.
_WITHOUT_EFFECT = {
    "format": ("columns", "keys", "first", "vocabulary", "fbgemm"),
    "vocabulary": ("keys", "first", "keys_are"),
    "keys": ("first",),
}


class RowsOf(Section):
    """The rows of one slot, or those of several slots in a text table."""

    file: Text  # relative to the mapping file; with format, a pattern of files
    slot: Text | None = None
    keys: Text = POSITIONS  # name of the array of integers
    keys_are: Choice[KeysAre] = KeysAre.VALUES
    first: int = Field(default=0, ge=0)  # with positions: the key of line 0
    vocabulary: Text | None = None  # with positions: a text file; line i has the value of line i
    #: Column of docs/formats/rows.md -> array, or some of its columns: array[:, a:b].
    columns: dict[str, Text] = Field(default_factory=dict)
    fbgemm: Fbgemm | None = None
    format: Choice[TextFormat] | None = None
    slots: dict[str, int] = Field(default_factory=dict)  # with format, for `slot`: name -> number

    @model_validator(mode="after")
    def _columns_are_known(self) -> RowsOf:
        known = [name for name in (*VALUES, *STATE) if name not in (FEASIGN, SLOT)]
        for name in self.columns:
            if name not in known:
                hint = did_you_mean([name], known) or f"; there are {', '.join(known)}"
                raise ValueError(f"columns: expected columns of rows, found {name!r}{hint}")
        check_weights(self.columns)
        if not self.columns and self.format is None:
            raise ValueError("columns: expected at least one, such as embedx_w: NAME, found none")
        given = self.model_dump(exclude_defaults=True)
        for name, others in _WITHOUT_EFFECT.items():
            for other in others if name in given else ():
                if other in given:
                    raise ValueError(f"{other} has no effect with {name}: take one of them out")
        if self.slots and self.format is None:
            raise ValueError("slots have numbers in text tables alone: give slot, or add format")
        if (self.slot is None) != bool(self.slots):
            found = "neither" if self.slot is None else "both"
            raise ValueError(f"expected one of slot and slots, found {found}")
        return self

    @property
    def names(self) -> Sequence[str]:
        """The slots of its rows."""
        return tuple(self.slots) if self.slot is None else (self.slot,)


class DenseParameter(Section):
    """A dense parameter from an array."""

    array: Text
    transpose: bool = False  # of two dimensions, as torch.nn.Linear has them


class DenseOf(Section):
    """Dense parameters of the model."""

    file: Text
    parameters: dict[str, Text | DenseParameter]  # name in the run -> array


class Mapping(Section):
    """What to import."""

    rows: ListOf[RowsOf] = ()
    dense: DenseOf | None = None

    @model_validator(mode="after")
    def _something_is_named(self) -> Mapping:
        if not self.rows and self.dense is None:
            raise ValueError("expected rows or dense, found neither")
        return self


def read_mapping(path: Path) -> Mapping:
    """Raises: ConfigError."""
    return validate(Mapping, read_yaml(path), str(path))


@dataclass(frozen=True)
class Cut:
    """An array, or some of its columns."""

    array: str
    columns: slice

    @classmethod
    def parse(cls, text: str) -> Cut:
        """text: NAME, NAME[:, 3] or NAME[:, 1:9]. Raises: ConfigError."""
        match = re.fullmatch(r"(.+?)(?:\[:, ?(\d+)(?::(\d+))?\])?", text)
        assert match is not None
        if match[2] is None:
            return cls(match[1], slice(None))
        begin = int(match[2])
        return cls(match[1], slice(begin, int(match[3]) if match[3] else begin + 1))

    def lines(self, arrays: Arrays, where: str) -> int:
        """Raises: ConfigError if there is no such array."""
        shapes = arrays.shapes()
        if self.array not in shapes:
            hint = did_you_mean([self.array], list(shapes)) or f"; there are {_some(list(shapes))}"
            raise ConfigError(f"{where}: expected an array {self.array!r}, found none{hint}")
        shape = shapes[self.array]
        if not shape:
            raise ConfigError(f"{where}: array {self.array!r}: expected lines, found a number")
        return shape[0]

    def read(self, arrays: Arrays, begin: int, end: int) -> np.ndarray:
        part = arrays.read(self.array, begin, end)
        return part if self.columns == slice(None) else part.reshape(len(part), -1)[:, self.columns]


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + ", ..." * (len(names) > 8)


def as_column(name: str, values: np.ndarray, width: int, where: str) -> np.ndarray:
    """Values as the column of a batch. Raises: ConfigError for another width, DataError for another
    type."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] != width:
        raise ConfigError(
            f"{where}: column {name}: expected a width of {width}, as in the table, found "
            f"{flat.shape[1]}"
        )
    if flat.dtype.kind not in "fiub":
        raise DataError(f"{where}: column {name}: expected numbers, found {flat.dtype}")
    typed = flat.astype(dtype_of(name), copy=False)
    return typed if is_shaped(name) else typed[:, 0]
