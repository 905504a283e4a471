"""Keys of `hbm`, `mem` and `ssd`, the tiers that hold rows, and of `store`, common to all."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

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
        description="where the program runs and the rows of the open pass are: on the CPU, or on a "
        "GPU for each rank (docs/gpu.md)",
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
    disk_budget_bytes: Bytes = Field(
        default=0, ge=0, description="limit for the store's files; 0: the space on the disk"
    )


class StoreConfig(Section):
    """Threads of the store."""

    threads: int = Field(
        default=0, ge=0, le=1024, description="threads of the store; 0: all cores, at most 8"
    )
