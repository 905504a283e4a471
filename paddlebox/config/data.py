"""Keys of `data`, what to read and how, and of `feeder`, memory and disk for loaded passes."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from paddlebox.config.dates import DigitText, day_of
from paddlebox.config.section import Choice, ListOf, Section, Text, Unit
from paddlebox.config.sequences import SequencesConfig
from paddlebox.config.stream import StreamConfig
from paddlebox.config.units import GIB, MIB, Bytes


class Format(StrEnum):
    MULTISLOT = "multislot"
    FEASIGN_SLOT = "feasign_slot"
    SLOT_VALUE = "slot_value"
    CRITEO_TSV = "criteo_tsv"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def is_columnar(self) -> bool:
        """Whether files hold typed columns, not lines of text."""
        return self in (Format.PARQUET, Format.ARROW)


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


class DataConfig(StreamConfig):
    """Files, their format, and how passes and batches are made of them."""

    format: Choice[Format] = Field(
        description="format of the files; text is plain, gzip, zstd, bz2 or xz"
    )
    slots: Text = Field(
        description="path of slots.yaml, which describes the columns and their transforms"
    )
    train_files: ListOf[Text] = Field(
        default=(),
        description="files, folders, globs or URIs, in the order of training; or use path_template",
    )
    test_files: ListOf[Text] = Field(
        default=(), description="files, folders, globs or URIs to evaluate on"
    )
    files_per_pass: int = Field(
        default=0, ge=0, description="files that make up one pass; 0: all files are one pass"
    )
    date: DigitText = Field(
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
    max_bad_line_ratio: Unit = Field(
        default=0.001, description="a pass fails if a larger share of its lines is malformed"
    )
    max_line_bytes: Bytes = Field(
        default=MIB, ge=1, le=GIB, description="a longer line is malformed"
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
        description="threads that read and parse files; 1: also only one thread that packs "
        "batches; 0: tuned during the run, at most 8",
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

    @property
    def logit_shift(self) -> float:
        """What is added to a logit that was learned with `negative_rate`, so that the odds are
        those of all instances."""
        return math.log(self.negative_rate)

    @model_validator(mode="after")
    def _files_are_named_once(self) -> DataConfig:
        if bool(self.train_files) == bool(self.path_template):
            raise ValueError(
                "expected either train_files, or path_template with from_hour, found "
                + (
                    "both: take one out"
                    if self.train_files
                    else "neither: name files, as in train_files: [train-*.csv]"
                )
            )
        for name in ("files_per_pass", "date", "files_per_day"):
            if self.path_template and getattr(self, name):
                raise ValueError(
                    f"{name} works with train_files only: leave it out, because path_template "
                    "defines passes and dates"
                )
        return self

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
        return self

    @model_validator(mode="after")
    def _sequences_are_whole(self) -> DataConfig:
        if self.sequences.user and self.drop_last:
            raise ValueError(
                "drop_last with sequences: batches of sequences differ in size, so none is "
                "incomplete: take drop_last out"
            )
        if self.sequences.user and self.negative_rate < 1:
            raise ValueError(
                f"negative_rate {self.negative_rate} with sequences: the sequence of a user would "
                "lack instances that it has when the model is served: leave one of them out"
            )
        if self.sequences.user and self.share_by != (ShareBy.SLOT, self.sequences.user):
            raise ValueError(
                f"share: expected auto or `slot {self.sequences.user}`, found {self.share!r}: with "
                "sequences, one rank trains all instances of a user"
            )
        return self

    @model_validator(mode="after")
    def _dates_make_sense(self) -> DataConfig:
        if self.date:
            try:
                day_of(self.date)
            except ValueError as error:
                raise ValueError(f"date: {error}") from None
        elif self.files_per_day:
            raise ValueError("files_per_day is set, but date, the day of the first files, is not")
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
