"""The report of a warm start: init.json, and its lines in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox.config import Slots, TableConfig
from paddlebox.store.import_rows import Imported


def count_rows(imported: Sequence[Imported], slots: Slots) -> dict[str, Any]:
    """Counts of rows over all tables that were carried."""
    names = [slot.name for slot in slots.sparse]
    sums = [sum(of_slot) for of_slot in zip(*(one.dropped for one in imported), strict=True)]
    dropped = {name: rows for name, rows in zip(names, sums, strict=True) if rows > 0}
    return {
        "carried": sum(one.rows for one in imported),
        "with_embedx": sum(one.with_embedx for one in imported),
        "dropped": sum(dropped.values()),
        "dropped_by_slot": dropped,
    }


def parts_of_rows(old: TableConfig, new: TableConfig) -> dict[str, str]:
    """What happened to each part of a row."""

    def state(name: str) -> str:
        rule = "embedx" if name == "expand" else name
        rules = [getattr(config, rule).rule.value for config in (old, new)]
        return "carried" if rules[0] == rules[1] else f"reset ({rules[0]} -> {rules[1]})"

    parts = {"show, click, embed_w": "carried", "embed state": state("embed")}
    for name, widths in (
        ("embedx", (old.embedx_dim, new.embedx_dim)),
        ("expand", (old.expand_dim, new.expand_dim)),
    ):
        if widths == (0, 0):
            continue
        if widths[0] == widths[1]:
            parts[f"{name}_w"], parts[f"{name} state"] = "carried", state(name)
        elif widths[1] == 0:
            parts[f"{name}_w"] = "dropped"
        else:
            parts[f"{name}_w"] = f"reinitialised ({widths[0]} -> {widths[1]} floats)"
    for name in {**dict.fromkeys(old.counts), **dict.fromkeys(new.counts)}:
        gone = "dropped" if name not in new.counts else "0"
        parts[f"count {name}"] = "carried" if name in old.counts and gone == "0" else gone
    return parts


def format_report(report: Mapping[str, Any]) -> list[str]:
    """The report in init.json as lines of text."""
    rows, slots, dense = report["rows"], report["slots"], report["dense"]

    def listed(names: Sequence[str]) -> str:
        return ", ".join(names) if names else "none"

    lines = [
        f"rows: {rows['carried']} carried, {rows['dropped']} dropped",
        f"slots: {len(slots['kept'])} kept; added: {listed(slots['added'])}; "
        f"dropped: {listed(slots['dropped'])}",
        *(f"{part}: {what}" for part, what in report["parts"].items()),
        f"admission counts: {report['admission_counts']}",
        *_lines_of_tables(report.get("tables", {})),
        f"dense: {len(dense['carried'])} tensors carried",
    ]
    for kind in ("fresh", "dropped"):
        lines += [f"dense, {kind}: {t['name']} {t['shape']} ({t['why']})" for t in dense[kind]]
    return lines


def _lines_of_tables(tables: Mapping[str, Any]) -> list[str]:
    if not tables:
        return []
    lines = [
        f"table {name}: {of['rows']} rows carried; {part}: {what}"
        for name, of in tables["carried"].items()
        for part, what in of["parts"].items()
    ]
    lines += [f"table {name}: new, without rows" for name in tables["new"]]
    lines += [f"table {name}: dropped, {rows} rows" for name, rows in tables["dropped"].items()]
    moved = tables["slots_moved"]
    return lines + (
        [f"slots of another table, without their rows: {', '.join(moved)}"] * bool(moved)
    )
