"""Keys of `data`: what to read and how, hourly logs (docs/hours.md) and sequences of users
(docs/sequences.md); and of `feeder`, memory and disk for loaded passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from paddlebox.config.dates import DigitText, check_template, day_of, is_hourly, moment, zone_of
from paddlebox.config.section import MIB, Bytes, Choice, ListOf, Section, Text, Unit
from paddlebox.config.stream import StreamConfig

#: A longer line is malformed: 50,000 feasigns fit into it.
MAX_LINE_BYTES = MIB


class MissingHour(StrEnum):
    WAIT = "wait"
    SKIP = "skip"
    STOP = "stop"


def _that(check: Callable[[str], object]) -> AfterValidator:
    """Checks a text that is not empty. check: raises ValueError."""

    def checked(text: str) -> str:
        if text:
            check(text)
        return text

    return AfterValidator(checked)


_Template = Annotated[str, _that(check_template)]


class HoursConfig(Section):
    """Hourly logs in place of `train_files`; each hour is a pass."""

    path_template: _Template = Field(
        default="",
        description="instead of train_files: path of the log of an hour, with {date} and {hour}; "
        "without {hour} a pass is a day (docs/hours.md)",
    )
    from_hour: DigitText = Field(
        default="", description="the first hour of path_template, YYYYMMDD or YYYYMMDDHH"
    )
    until_hour: DigitText = Field(
        default="",
        description="the last hour of path_template, or its day; empty: no end (--until)",
    )
    time_zone: Annotated[Text, _that(zone_of)] = Field(
        default="UTC", description="time zone of {date} and {hour}"
    )
    ready_marker: _Template = Field(
        default="",
        description="template of a file whose presence says that an hour is complete; empty: an "
        "hour is complete when it is over and has files",
    )
    missing_hour: Choice[MissingHour] = Field(
        default=MissingHour.WAIT,
        description="if an hour is still missing late_s after its end: wait for it, skip it (at "
        "most 24 in a row), or stop",
    )
    late_s: float = Field(
        default=3600.0,
        ge=0,
        description="seconds after the end of an hour in which its log may still arrive",
    )

    @model_validator(mode="after")
    def _hours_make_sense(self) -> HoursConfig:
        if not self.path_template:
            for name in ("from_hour", "until_hour", "ready_marker"):
                if getattr(self, name):
                    raise ValueError(f"{name} is set, but path_template is not")
            return self
        if not self.from_hour:
            raise ValueError("path_template is set, but from_hour, the first hour, is not")
        for name in ("from_hour", "until_hour"):
            text = getattr(self, name)
            try:
                if text:
                    moment(text, zone_of(self.time_zone))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if len(text) == 10 and not is_hourly(self.path_template):
                raise ValueError(
                    f"{name}: expected YYYYMMDD, because path_template has no {{hour}}, found "
                    f"{text!r}"
                )
        return self


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
        raise ValueError("split needs max_length, the length of a piece")
    if split is Split.MASK and context >= max_length:
        raise ValueError(
            f"split: expected an overlap of less than max_length {max_length}, found {context}"
        )


class SequencesConfig(Section):
    """Trains the instances of a user as one sequence, in the order of time."""

    user: str = Field(
        default="", description="sparse slot whose first feasign is the user; empty: no sequences"
    )
    max_length: int = Field(
        default=0, ge=0, le=1 << 24, description="instances in a sequence; 0: no limit"
    )
    split: Literal["none", "direct", "mask"] | Annotated[int, Field(ge=0)] = Field(
        default="none",
        description="how the list of a user is cut: none (a longer list than max_length is an "
        "error), direct (pieces of max_length), mask (pieces that overlap by half of max_length) "
        "or N (pieces that overlap by N instances, which are only context)",
    )
    history: HistoryConfig = Field(default_factory=HistoryConfig)

    @property
    def method(self) -> Split:
        return Split.MASK if isinstance(self.split, int) else Split(self.split)

    @property
    def context(self) -> int:
        """The context instances of a piece."""
        if isinstance(self.split, int):
            return self.split
        return self.max_length - self.max_length // 2 if self.split == "mask" else 0

    @model_validator(mode="after")
    def _the_cuts_make_sense(self) -> SequencesConfig:
        if not self.user:
            usual = type(self).model_construct()
            given = [n for n in type(self).model_fields if getattr(self, n) != getattr(usual, n)]
            if given:
                raise ValueError(f"{given[0]} is given, but user, the slot of the user, is not")
            return self
        check_cut(self.method, self.max_length, self.context, self.history.length)
        return self


def _as_text(value: Any) -> Any:
    """A number or a bool as the text of a cell, because YAML does not read all cells as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_Cell = Annotated[str, BeforeValidator(_as_text)]


class HoldoutConfig(Section):
    """The instances of `train_files` that training leaves out and evaluations read."""

    share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the instances of train_files that training leaves out, and that "
        "evaluations read if there are no test_files (docs/data.md)",
    )
    by: str = Field(
        default="",
        description="column, such as a user, whose equal values are on one side; share is then of "
        "its values",
    )
    column: str = Field(
        default="", description="instead of share: column that decides, with at_least or equals"
    )
    at_least: _Cell = Field(
        default="",
        description="lowest value that is held out: a number, or a text such as 2024-01-31",
    )
    equals: _Cell = Field(default="", description="value that is held out")

    @property
    def named(self) -> str:
        """The column that it reads; "": none."""
        return self.by or self.column

    @property
    def of_places(self) -> bool:
        """Whether the place of an instance decides, not a value."""
        return bool(self.share) and not self.by

    @model_validator(mode="after")
    def _one_rule_decides(self) -> HoldoutConfig:
        bounds = [name for name in ("at_least", "equals") if getattr(self, name)]
        if not (self.share or self.column or self.by or bounds):
            raise ValueError(
                "expected share, more than 0, or column with at_least or equals, found none of "
                "them: set share: 0.1, or take holdout out"
            )
        if self.share and (self.column or bounds):
            found = "column" if self.column else bounds[0]
            raise ValueError(
                f"found share and {found}, expected one of them: to hold out a share of the values "
                "of a column, name it in by"
            )
        if self.by and not self.share:
            raise ValueError(
                "by is given, but share is not: set share: 0.1, or to hold out instances by a "
                "value, write column in place of by"
            )
        if bounds and not self.column:
            raise ValueError(f"{bounds[0]} is given, but column, whose value it is, is not")
        if self.column and len(bounds) != 1:
            raise ValueError(
                f"column {self.column!r} needs at_least or equals, found "
                f"{'both: take one out' if bounds else 'neither: set one of them'}"
            )
        return self


class Format(StrEnum):
    MULTISLOT = "multislot"
    FEASIGN_SLOT = "feasign_slot"
    SLOT_VALUE = "slot_value"
    CRITEO_TSV = "criteo_tsv"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"
    ORC = "orc"

    @property
    def is_columnar(self) -> bool:
        """Whether files hold values with types, in columns with names, not lines of text."""
        return self in (Format.PARQUET, Format.ARROW, Format.ORC, Format.JSON)


class KeySpace(StrEnum):
    SHARED = "shared"
    PER_SLOT = "per_slot"


class ShareBy(StrEnum):
    AUTO = "auto"
    FILES = "files"
    BYTES = "bytes"
    INSTANCE = "instance"
    INS_ID = "ins_id"
    SEARCH_ID = "search_id"
    SLOT = "slot"


def _auto_is_0(value: Any) -> Any:
    return 0 if value == "auto" else value


_SOURCES = ("train_files", "path_template", "stream")


class DataConfig(HoursConfig):
    """Files, their format, and how passes and batches are made of them."""

    format: Choice[Format] = Field(
        description="format of the files; text is plain, gzip, zstd, bz2 or xz"
    )
    slots: Text = Field(
        description="path of slots.yaml, which describes the columns and their transforms"
    )
    train_files: ListOf[Text] = Field(
        default=(),
        description="files, folders, globs or URIs, in the order of training; or use path_template "
        "or stream",
    )
    test_files: ListOf[Text] = Field(
        default=(), description="files, folders, globs or URIs to evaluate on"
    )
    files_per_pass: int = Field(
        default=0, ge=0, description="files that make up one pass; 0: all files are one pass"
    )
    date: Annotated[DigitText, _that(day_of)] = Field(
        default="", description="day of the first training files, YYYYMMDD; empty: no dates"
    )
    files_per_day: int = Field(
        default=0, ge=0, description="files that make up one day; 0: all files belong to data.date"
    )
    batch_size: Annotated[int, BeforeValidator(_auto_is_0)] = Field(
        default=0,
        ge=0,
        le=1 << 24,
        description="instances in a batch; auto (0): chosen when a run begins",
    )
    key_space: Choice[KeySpace] = Field(
        default=KeySpace.PER_SLOT,
        description="per_slot: a feasign is a different feature in each slot, except in slots "
        "with `shares` in slots.yaml; shared: it is the same feature in all slots",
    )
    exact_values: Literal["auto"] | dict[Text, ListOf[float]] = Field(
        default="auto",
        description="dense slots whose values are also ids: `NAME: [boundaries]` adds the sparse "
        "slot NAME.values, a `bucket` with these boundaries; {}: none; auto: chosen when a run "
        "begins",
    )
    max_bad_line_ratio: Unit = Field(
        default=0.001, description="a pass fails if a larger share of its lines is malformed"
    )
    dedup_slots: Literal["off", "auto"] | ListOf[Text] = Field(
        default="off",
        description="sparse slots in which successive instances repeat a list, or one that grows, "
        "which is then held and pulled only once: off, auto (if it saves memory) or slot names",
    )
    pipe_command: str = Field(
        default="",
        description="shell command that filters each text file; needs security.allow_commands",
    )
    parser: str = Field(
        default="",
        description="parser plugin for text: module:function, path/to/file.py:function or the "
        "path of a .so; needs security.allow_commands",
    )
    logkey: bool = Field(
        default=False, description="lines have log keys: cmatch, rank and search id (docs/data.md)"
    )
    pv_batch_size: int = Field(
        default=32, ge=1, le=1 << 20, description="with phases: page views in a batch of join"
    )
    shuffle: bool = Field(default=False, description="shuffle the instances of a pass, by seed")
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="threads that read and parse files, and threads of the store; 1: also only one "
        "thread that packs batches; 0: at most 8, those that read are tuned during the run",
    )
    keep_values: ListOf[Text] = Field(
        default=(),
        description="slots with `hash` whose texts are kept for exports (docs/rows.md)",
    )
    keep_values_bytes: Bytes = Field(
        default=256 * MIB,
        ge=1,
        description="memory for the kept texts, and their size in each version; over it, new ones "
        "are not kept",
    )
    share: Text = Field(
        default="auto",
        description="which of several ranks trains an instance: auto, files, bytes, instance, "
        "ins_id, search_id or `slot NAME` (docs/ranks.md)",
    )
    drop_last: bool = Field(
        default=False, description="drop the last batch of a training pass if it is incomplete"
    )
    negative_rate: Annotated[float, Field(ge=1e-6, le=1)] = Field(
        default=1.0,
        description="share of the training instances with label 0 that are kept; predictions are "
        "corrected for it (docs/data.md)",
    )
    sequences: SequencesConfig = Field(default_factory=SequencesConfig)
    holdout: HoldoutConfig | None = None
    stream: StreamConfig | None = None

    @property
    def logit_shift(self) -> float:
        """What is added to a logit that was learned with `negative_rate`, so that the odds are
        those of all instances."""
        return math.log(self.negative_rate)

    @model_validator(mode="after")
    def _files_are_named_once(self) -> DataConfig:
        found = [name for name in _SOURCES if getattr(self, name)]
        if len(found) != 1:
            raise ValueError(
                "expected one of train_files, path_template with from_hour, and stream, found "
                + (
                    f"{' and '.join(found)}: take one out"
                    if found
                    else "none: name files, as in train_files: [train-*.csv]"
                )
            )
        for name in ("files_per_pass", "date", "files_per_day"):
            if not self.train_files and getattr(self, name):
                raise ValueError(
                    f"{name} works with train_files only: leave it out, because {found[0]} "
                    "defines passes and dates"
                )
        if self.files_per_day and not self.date:
            raise ValueError("files_per_day is set, but date, the day of the first files, is not")
        return self

    @model_validator(mode="after")
    def _a_holdout_finds_its_column(self) -> DataConfig:
        if self.holdout is None or not self.holdout.named:
            return self
        key = "by" if self.holdout.by else "column"
        named = self.format is Format.CSV or self.format.is_columnar
        if not named or self.parser:
            found = f"parser {self.parser}" if self.parser else f"format {self.format.value}"
            raise ValueError(
                f"holdout.{key}: expected format csv, parquet, arrow or orc, whose columns have "
                f"names, found {found}: hold out a share of the instances, without {key}"
            )
        return self

    @property
    def has_tests(self) -> bool:
        """Whether evaluations have instances to read."""
        return bool(self.test_files or self.holdout)

    @property
    def share_by(self) -> tuple[ShareBy, str]:
        """The value of `share`, and the name of the slot. With sequences, auto is their user."""
        if self.share == ShareBy.AUTO and self.sequences.user:
            return ShareBy.SLOT, self.sequences.user
        by, _, slot = self.share.partition(" ")
        return ShareBy(by), slot.strip()

    @model_validator(mode="after")
    def _share_is_known(self) -> DataConfig:
        by, _, slot = self.share.partition(" ")
        if by not in list(ShareBy) or (by == ShareBy.SLOT) != bool(slot.strip()):
            known = [str(one) for one in ShareBy if one is not ShareBy.SLOT]
            raise ValueError(
                f"share: expected {', '.join(known)} or `slot NAME`, found {self.share!r}"
            )
        if by == ShareBy.SEARCH_ID and not self.logkey:
            raise ValueError(
                "share: search_id needs log keys: set data.logkey: true, if the data has them"
            )
        if by == ShareBy.INS_ID and not self.logkey:
            raise ValueError(
                "share: ins_id needs ids, which a config reads as log keys: set data.logkey: true, "
                "if the data has them"
            )
        if self.sequences.user and self.share_by != (ShareBy.SLOT, self.sequences.user):
            raise ValueError(
                f"share: expected auto or `slot {self.sequences.user}`, found {self.share!r}: with "
                "sequences, one rank trains all instances of a user"
            )
        return self


class FeederConfig(Section):
    """Memory, spill files and cache of loaded passes."""

    budget_bytes: Bytes = Field(
        default=0,
        ge=0,
        description="memory for the instances of passes; further instances go to disk, below "
        "TMPDIR; 0: no limit",
    )
    cache_bytes: Bytes = Field(
        default=0,
        ge=0,
        description="disk space for the parsed columns of files, in "
        "paddlebox/parsed of the user's cache folder (XDG_CACHE_HOME); 0: no cache",
    )
