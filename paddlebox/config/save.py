"""Keys of `save` and `publish`: saves and export files that a run writes for serving."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from paddlebox.config.section import ListOf, Section, Text


class SaveConfig(Section):
    """Saves for serving that a run writes."""

    out: str = Field(
        default="",
        description="folder of saves: a base after the first pass of each date, and deltas; empty: "
        "no saves",
    )
    copy_to: str = Field(
        default="",
        description="folder or URI (hdfs://, s3://, gs://) to which saves are copied; empty: none",
    )
    delta_every: int = Field(
        default=1, ge=0, description="passes from one delta to the next; 0: no deltas"
    )

    @model_validator(mode="after")
    def _copies_need_saves(self) -> SaveConfig:
        if self.copy_to and not self.out:
            raise ValueError(
                f"copy_to: found {self.copy_to!r} without out: saves are written to the folder out "
                "before they are copied: set save.out"
            )
        return self


class PublishConfig(Section):
    """An export file that the run keeps up to date with its saves (docs/serving.md)."""

    file: str = Field(
        default="", description="export file to which each save is applied; empty: none"
    )
    precision: Literal["float32", "float16", "int8"] = Field(
        default="float32", description="format of embedx, when the file is created"
    )
    gate_files: ListOf[Text] = Field(
        default=(),
        description="labelled files; a save whose AUC or COPC on them breaks a bound of `alerts`, "
        "compared with the served version, is not served",
    )
