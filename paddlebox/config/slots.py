"""slots.yaml: the columns of the input, in the order of the line, and what each becomes.

slots:
  - {name: click, type: label}
  - {name: age, type: dense, dim: 1}
  - {name: movie, type: sparse}
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from pydantic import Field, model_validator

from paddlebox.config.check import validate
from paddlebox.config.schema import Choice, Format, ListOf, Section, Text
from paddlebox.config.yaml_io import read_yaml
from paddlebox.errors import ConfigError

_CRITEO_COLUMN = re.compile(r"label|I([1-9]|1[0-3])|C([1-9]|1[0-9]|2[0-6])")


class SlotType(StrEnum):
    LABEL = "label"  # one number in [0, 1]: the click
    DENSE = "dense"  # dim floats
    SPARSE = "sparse"  # any number of feasigns


class Slot(Section):
    name: Text
    type: Choice[SlotType]
    dim: int = Field(default=1, ge=1, le=1 << 20)
    column: Text | None = None

    @model_validator(mode="after")
    def _dim_is_for_dense(self) -> Slot:
        if self.dim != 1 and self.type is not SlotType.DENSE:
            raise ValueError(f"slot {self.name!r} has a dim, which only a dense slot may have")
        if any(character.isspace() or character == ":" for character in self.name):
            raise ValueError(f"slot name {self.name!r} holds a space or a colon")
        return self


class Slots(Section):
    """The slots of a data set. ``S`` sparse slots keep their order everywhere."""

    slots: ListOf[Slot]

    @model_validator(mode="after")
    def _one_label_and_no_name_twice(self) -> Slots:
        names = [slot.name for slot in self.slots]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"slot names are given twice: {', '.join(twice)}")
        labels = [slot.name for slot in self.slots if slot.type is SlotType.LABEL]
        if len(labels) != 1:
            found = ", ".join(labels) or "none"
            raise ValueError(f"expected exactly one slot of type label, found {found}")
        if len(self.sparse) > 65535:
            raise ValueError(f"expected at most 65535 sparse slots, found {len(self.sparse)}")
        return self

    @property
    def label(self) -> Slot:
        return next(slot for slot in self.slots if slot.type is SlotType.LABEL)

    @property
    def dense(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.type is SlotType.DENSE)

    @property
    def sparse(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.type is SlotType.SPARSE)

    @property
    def dense_width(self) -> int:
        """W: floats of all dense slots together."""
        return sum(slot.dim for slot in self.dense)

    def check_format(self, data_format: Format) -> None:
        """Raises ConfigError if a slot does not fit the format."""
        for slot in self.slots:
            if data_format is not Format.CRITEO_TSV:
                if slot.column is not None:
                    raise ConfigError(
                        f"slot {slot.name!r} has a column, which only format criteo_tsv uses; "
                        f"data.format is {data_format.value}"
                    )
                continue
            column = slot.column or slot.name
            if not _CRITEO_COLUMN.fullmatch(column):
                raise ConfigError(
                    f"slot {slot.name!r}: no column {column!r} in criteo_tsv; expected label, "
                    "I1 to I13 or C1 to C26 as its column, or as its name"
                )
            wanted = {"l": {SlotType.LABEL}, "I": {SlotType.DENSE, SlotType.SPARSE}}.get(
                column[0], {SlotType.SPARSE}
            )
            if slot.type not in wanted or slot.dim != 1:
                raise ConfigError(
                    f"slot {slot.name!r}: column {column} cannot be a {slot.type.value} slot of "
                    f"dim {slot.dim}; expected {' or '.join(sorted(wanted))}, dim 1"
                )


def load_slots(path: str | Path) -> Slots:
    """The slots in the file ``path``.

    Raises:
        ConfigError: the file cannot be read, a key or value is wrong, a name is given twice, or
            there is not exactly one label.
    """
    return validate(Slots, read_yaml(path), str(path))
