"""Budgets that fit a machine, as lines for a config."""

from __future__ import annotations

from paddlebox.config.units import GIB, MIB
from paddlebox.tools.doctor.facts import Facts

# Shares of the usable memory. Paddle, batches, filters and the page cache use the rest.
_HBM, _MEM, _FEEDER = 0.25, 0.35, 0.15
_DISK = 0.8  # share of the free disk space; compaction needs the rest


def budgets(facts: Facts) -> dict[str, int]:
    """Config key -> bytes."""
    usable = facts.usable_bytes
    shares = {
        "hbm.budget_bytes": _HBM * usable,
        "mem.budget_bytes": _MEM * usable,
        "feeder.budget_bytes": _FEEDER * usable,
    }
    if facts.disk is not None:
        shares["ssd.disk_budget_bytes"] = _DISK * facts.disk.free_bytes
    return {key: _round(share) for key, share in shares.items()}


def _round(size: float) -> int:
    """Round down to whole GiB from 8 GiB on, else to multiples of 64 MiB or 1 MiB; at least 1
    MiB."""
    step = GIB if size >= 8 * GIB else 64 * MIB if size >= 64 * MIB else MIB
    return max(MIB, int(size) // step * step)


def as_yaml(chosen: dict[str, int]) -> str:
    """The budgets as YAML, to paste into a config."""
    lines = []
    for key, size in chosen.items():
        section, name = key.split(".")
        unit, of = ("GiB", GIB) if size % GIB == 0 else ("MiB", MIB)
        lines += [f"{section}:", f"  {name}: {size // of}{unit}"]
    return "\n".join(lines)
