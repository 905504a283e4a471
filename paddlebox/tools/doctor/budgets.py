"""Budgets that fit a machine, as lines for a config."""

from __future__ import annotations

from paddlebox.config.units import GIB, MIB
from paddlebox.tools.doctor.facts import Facts

# Of the memory that may be taken. What is left is for Paddle, batches, filters and the page cache.
_HBM, _MEM, _FEEDER = 0.25, 0.35, 0.15
_DISK = 0.8  # of what is free: merges need room beside what is stored


def budgets(facts: Facts) -> dict[str, int]:
    """Bytes by key of a config."""
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
    """Down to whole GiB above 8 of them, else to 64 MiB, at least one MiB."""
    step = GIB if size >= 8 * GIB else 64 * MIB if size >= 64 * MIB else MIB
    return max(MIB, int(size) // step * step)


def as_yaml(chosen: dict[str, int]) -> str:
    """Sections with one key each, ready to paste."""
    lines = []
    for key, size in chosen.items():
        section, name = key.split(".")
        unit, of = ("GiB", GIB) if size % GIB == 0 else ("MiB", MIB)
        lines += [f"{section}:", f"  {name}: {size // of}{unit}"]
    return "\n".join(lines)
