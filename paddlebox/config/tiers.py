"""Keys of `hbm`, `mem` and `ssd`, the tiers that hold rows, and of `store`, common to all."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from paddlebox.config.section import Choice, Section
from paddlebox.config.units import GIB, KIB, MIB, Bytes


class HbmPlace(StrEnum):
    HOST = "host"
    GPU = "gpu"


class HbmConfig(Section):
    """The rows of open passes, where the program runs."""

    budget_bytes: Bytes = Field(
        default=2 * GIB, ge=MIB, description="memory of all pass tables that exist at once"
    )
    place: Choice[HbmPlace] = Field(
        default=HbmPlace.HOST,
        description="where the program runs and the rows of the open pass are: on the CPU in "
        "host memory, or on a GPU (gpu: needs Paddle with CUDA, one GPU for each rank; "
        "docs/gpu.md)",
    )


class MemConfig(Section):
    """The rows in host memory."""

    budget_bytes: Bytes = Field(
        default=GIB, ge=MIB, description="memory of the rows that are kept between passes"
    )


class SsdConfig(Section):
    """The rows on disk, and their compaction."""

    max_segment_bytes: Bytes = Field(
        default=256 * MIB, ge=64 * KIB, description="largest size of a segment file"
    )
    compaction: bool = Field(default=True, description="merge segments in the background")
    space_target: float = Field(
        default=1.28,
        gt=1,
        description="merge if more bytes than this are stored for each byte of live rows",
    )
    space_ceiling: float = Field(
        default=2.0, gt=1, description="above this ratio training waits for merges"
    )
    disk_budget_bytes: Bytes = Field(
        default=0, ge=0, description="limit for the store's files; 0: only the space on the disk"
    )
    drive_bytes_per_day: Bytes = Field(
        default=0,
        ge=0,
        description="bytes written per day for which the drive is rated; 0: unknown",
    )

    @model_validator(mode="after")
    def _ceiling_above_target(self) -> SsdConfig:
        if self.space_ceiling <= self.space_target:
            raise ValueError(
                f"space_ceiling {self.space_ceiling} is not above space_target {self.space_target}"
            )
        return self


class StoreConfig(Section):
    """Threads and parity of the store."""

    threads: int = Field(
        default=0, ge=0, le=1024, description="threads of the store; 0: all cores, at most 8"
    )
    parity: int = Field(
        default=0,
        ge=0,
        le=255,
        description="number of segments in a group with one parity file, from which one lost "
        "segment can be rebuilt; 0: no parity",
    )
