"""Keys of `hbm`, `mem` and `ssd`, the tiers of rows, and of `store`, which has all of them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, Section
from paddlebox.config.units import GIB, KIB, MIB, Bytes


class HbmPlace(StrEnum):
    HOST = "host"
    GPU = "gpu"


class HbmConfig(Section):
    budget_bytes: Bytes = Field(
        default=2 * GIB, ge=MIB, description="all pass tables that live at once"
    )
    place: Choice[HbmPlace] = Field(
        default=HbmPlace.HOST,
        description="where the rows of the open pass are, and the program runs: in the host's "
        "memory on the CPU, or on a GPU (gpu: Paddle with CUDA, one GPU a rank; docs/gpu.md)",
    )


class MemConfig(Section):
    budget_bytes: Bytes = Field(
        default=GIB, ge=MIB, description="rows kept in memory between passes"
    )


class SsdConfig(Section):
    max_segment_bytes: Bytes = Field(
        default=256 * MIB, ge=64 * KIB, description="a segment file is cut at this size"
    )
    compaction: bool = Field(default=True, description="merge segments in the background")
    space_target: float = Field(
        default=1.28, gt=1, description="merge above so many stored bytes for a byte of live rows"
    )
    space_ceiling: float = Field(
        default=2.0, gt=1, description="training waits for merges above this ratio"
    )
    disk_budget_bytes: Bytes = Field(
        default=0, ge=0, description="most bytes of the store's files; 0: what the disk has"
    )
    drive_bytes_per_day: Bytes = Field(
        default=0, ge=0, description="writes a day that the drive is rated for; 0: unknown"
    )

    @model_validator(mode="after")
    def _ceiling_above_target(self) -> SsdConfig:
        if self.space_ceiling <= self.space_target:
            raise ValueError(
                f"space_ceiling {self.space_ceiling} is not above space_target {self.space_target}"
            )
        return self


class StoreConfig(Section):
    threads: int = Field(
        default=0, ge=0, le=1024, description="threads of the store; 0: all cores, at most 8"
    )
    parity: int = Field(
        default=0,
        ge=0,
        le=255,
        description="segments that one parity file protects against the loss of one; 0: none",
    )
