"""Section `data.sequences`: instances as sequences of users (docs/sequences.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, Section, Text
from paddlebox.config.units import MIB, Bytes


class Split(StrEnum):
    """How the list of a user is cut. The numbers are the methods of `set_merge_by_uid`."""

    NONE = "none"  # 0
    DIRECT = "direct"  # 1
    MASK = "mask"  # 2


class HistoryConfig(Section):
    """The last instances of each user, which later passes read as context."""

    length: int = Field(
        default=0,
        ge=0,
        le=1 << 20,
        description="instances of a user that later passes read as context; 0: none",
    )
    budget_bytes: Bytes = Field(
        default=256 * MIB,
        ge=1,
        description="memory for all histories, and their size in each version; over it, users are "
        "dropped",
    )


def check_cut(split: Split, max_length: int, context: int, history: int) -> None:
    """Raises: ValueError for lengths that contradict each other. context: as in `SequencesConfig`.
    history: its length."""
    if split is Split.NONE and max_length and history:
        raise ValueError(
            "history with split none and max_length: a history would make a list too long: "
            "choose split direct or mask, or take max_length out"
        )
    if split is not Split.NONE and not max_length:
        raise ValueError(f"split {split.value} needs max_length, the length of a piece")
    if split is Split.MASK and context >= max_length:
        raise ValueError(f"overlap: expected less than max_length {max_length}, found {context}")


class SequencesConfig(Section):
    """Trains the instances of a user as one sequence, in the order of time."""

    user: str = Field(
        default="", description="sparse slot whose first feasign is the user; empty: no sequences"
    )
    time: Text = Field(
        default="time",
        description="column with the time of an instance, an integer in any unit; in multislot "
        "text the time is at the beginning of a line",
    )
    max_length: int = Field(
        default=0, ge=0, le=1 << 24, description="instances in a sequence; 0: no limit"
    )
    split: Choice[Split] = Field(
        default=Split.NONE,
        description="how the list of a user is cut: none (a longer list than max_length is an "
        "error), direct (pieces of max_length) or mask (pieces that overlap)",
    )
    overlap: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        default="auto",
        description="with split mask: instances at the start of a piece that are only context; "
        "auto: half of max_length",
    )
    history: HistoryConfig = Field(default_factory=HistoryConfig)

    @property
    def context(self) -> int:
        """The context instances of a piece."""
        if self.split is not Split.MASK:
            return 0
        return self.max_length - self.max_length // 2 if self.overlap == "auto" else self.overlap

    @model_validator(mode="after")
    def _the_cuts_make_sense(self) -> SequencesConfig:
        if not self.user:
            usual = type(self).model_construct()
            given = [n for n in type(self).model_fields if getattr(self, n) != getattr(usual, n)]
            if given:
                raise ValueError(f"{given[0]} is given, but user, the slot of the user, is not")
            return self
        if self.overlap != "auto" and self.split is not Split.MASK:
            raise ValueError(
                f"overlap is for split mask, found split {self.split.value}: take overlap out"
            )
        check_cut(self.split, self.max_length, self.context, self.history.length)
        return self
