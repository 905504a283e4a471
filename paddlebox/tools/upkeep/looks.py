"""The commands of tools/store.py that only read a store. Each returns an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlebox._native import core
from paddlebox.config.dates import date_of
from paddlebox.config.table import LifeConfig
from paddlebox.errors import ConfigError
from paddlebox.store.coordinator import ALL_KEYS
from paddlebox.store.rank_stores import rank_versions
from paddlebox.tools.columns import aligned
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.life import life
from paddlebox.tools.upkeep.output import DAMAGED, SOUND, show
from paddlebox.tools.upkeep.store_files import newest, reading
from paddlebox.tools.upkeep.values import feasigns_of, index_of
from paddlebox.tools.upkeep.verify import verify

#: Settings that `show_life` can try. The settings of the store do not change.
LIFE_SETTINGS: dict[str, Callable[[str], int | float]] = {
    name: int if field.annotation is int else float
    for name, field in LifeConfig.model_fields.items()
    if field.annotation in (int, float)
}


def stat(folder: Path, arguments: argparse.Namespace) -> int:
    s = report.stat(folder)
    rows = [
        (
            "live rows",
            f"{s['live_rows']:,}",
            f"includes deleted ones until compaction; {s['stored_rows']:,} stored, with old copies",
        ),
        ("segments", f"{s['segments']:,}", f"at most {s['depth']} over one key"),
        (
            "stored bytes",
            f"{s['stored_bytes']:,}",
            f"{s['space_ratio']:.2f} times the live rows",
        ),
        ("memory bytes", f"{s['memory_bytes']:,}", "filters and fences of the open store"),
        ("store bytes", f"{s['used_bytes']:,}", "all files, with every kept version"),
        ("free bytes", f"{s['free_bytes']:,}", "on the disk"),
        *(
            (f"written, {kind}", f"{count:,}", "bytes of segments since the start")
            for kind, count in s["bytes_written"].items()
        ),
        *(
            (f"written {day}", f"{count:,}", "bytes on that day (UTC)")
            for day, count in list(s["bytes_written_by_day"].items())[-7:]
        ),
        ("life events", f"{s['life_events']:,}", "decays, shrinks and delta resets so far"),
    ]
    width = max(len(row[1]) for row in rows)
    lines = [
        f"{s['store']}: version {s['version']}, pass {s['pass_number']}, "
        f"{date_of(s['day']) if s['day'] else 'no date'}, committed {s['created_at']}",
        "",
        *(f"{name:<20} {value:>{width}}  {meaning}" for name, value, meaning in rows),
        "",
        *aligned(
            [
                ("version", "kind", "pass", "live rows", "segments", "bytes alone", "committed"),
                *(
                    (
                        v["version"],
                        v["kind"],
                        v["pass_number"],
                        f"{v['live_rows']:,}",
                        v["segments"],
                        f"{v['bytes_kept_alone']:,}",
                        v["created_at"],
                    )
                    for v in s["versions"]
                ),
            ]
        ),
        "",
        *(f"version {c['version']} is named {c['name']}" for c in s["names"]),
        *(f"process {h['pid']} reads version {h['version']}" for h in s["leases"]),
    ]
    show(arguments, s, lines)
    return SOUND


def digest(folder: Path, arguments: argparse.Namespace) -> int:
    value = report.digest(folder, arguments.version)
    show(arguments, value, [f"{name} {text}" for name, text in value.items()])
    return SOUND


def verify_store(folder: Path, arguments: argparse.Namespace) -> int:
    with tqdm(unit=" segments", leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = verify(folder, progress)
    lines = [
        *(f"damaged: {damage.message}" for damage in found.damage),
        *(f"unreferenced: {name}" for name in found.unreferenced),
        *([f"unprotected: {found.unprotected}"] if found.unprotected else []),
        f"{len(found.versions)} versions, {found.segments} segments, {found.bytes:,} bytes read: "
        + (f"{len(found.damage)} damaged" if found.damage else "no damage"),
    ]
    show(arguments, found.as_dict(), lines)
    return DAMAGED if found.damage else SOUND


def lookup(folder: Path, arguments: argparse.Namespace) -> int:
    if arguments.slot is None:
        feasigns = [_feasign(text) for text in arguments.values]
    else:
        with reading(folder) as manifest:
            feasigns = feasigns_of(newest(manifest), arguments.slot, arguments.values)
    low, high = getattr(arguments, "key_range", ALL_KEYS)
    feasigns = [one for one in feasigns if low <= core.mix(one) <= high]
    found = report.lookup(folder, feasigns, arguments.version)
    lines = []
    for entry in found:
        lines.append(f"feasign {entry['feasign']} (key {entry['key']})")
        if entry["row"] is None:
            deleted = " (deleted by a life event; copies remain)" * bool(entry["copies"])
            lines.append(f"  no row{deleted}")
        else:
            lines += [f"  {name:<14} {value}" for name, value in entry["row"].items()]
        lines += [f"  copy in {c['file']}, block {c['block']}" for c in entry["copies"]]
    show(arguments, found, lines)
    return SOUND


def _feasign(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = 0
    if -(1 << 63) <= value < 0:  # as columns of signed integers hold a feasign
        return value + (1 << 64)
    if not 0 < value < 1 << 64:
        raise ConfigError(
            f"{text}: a feasign is 1 to 2^64 - 1; to look up a value of the data, add --slot NAME"
        )
    return value


def dump(folder: Path, arguments: argparse.Namespace) -> int:
    others: list[tuple[Path, int]] = []
    version = arguments.version
    if arguments.store != folder:
        (_, first), *of_ranks = rank_versions(folder, version)
        version = first.version
        others = [(store, record.version) for store, record in of_ranks]
    slot = None
    if arguments.slot is not None:
        with reading(folder) as manifest:
            record = newest(manifest) if version is None else manifest.version(version)
        slot = index_of(record, arguments.slot)
    rows = report.dump(folder, arguments.out, version, slot, others)
    show(
        arguments, {"rows": rows, "file": str(arguments.out)}, [f"{rows:,} rows in {arguments.out}"]
    )
    return SOUND


def show_life(folder: Path, arguments: argparse.Namespace) -> int:
    tried = {name: getattr(arguments, name) for name in LIFE_SETTINGS}
    found = life(
        folder,
        version=arguments.version,
        day=arguments.date,
        settings={name: value for name, value in tried.items() if value is not None},
    )
    rows, s, gone = found["rows"], found["settings"], found["deleted_by_day_end"]

    def share(count: int) -> str:
        return f"{count:,} of {rows:,} rows ({count / max(rows, 1):.1%})"

    lines = [
        f"{found['store']}: version {found['version']}, {found['date'] or 'no date'}",
        "",
        f"a day's end would delete {share(gone['rows'])}: {gone['by_score']:,} with a score below "
        f"{s['delete_threshold']:g} after a decay of {s['show_click_decay_rate']:g}, "
        f"{gone['by_unseen_days']:,} unseen for more than {s['delete_after_unseen_days']} days",
        f"a base would hold        {share(found['kept_by']['base'])}: score at least "
        f"{s['base_threshold']:g}, unseen for at most {s['delta_keep_days']} days",
        f"a delta would hold       {share(found['kept_by']['delta'])}: also delta_score at least "
        f"{s['delta_threshold']:g}",
    ]
    for name, bins in found["histograms"].items():
        table: list[Sequence[Any]] = [(f"{name} from", "rows", "rows below")]
        below = 0
        for entry in bins:
            table.append((f"{entry['from']:g}", f"{entry['rows']:,}", f"{below:,}"))
            below += entry["rows"]
        lines += ["", *aligned(table)]
    events = [("event", "kind", "date", "what"), *(_event(event) for event in found["events"])]
    lines += ["", *(aligned(events) if found["events"] else ["no life events yet"])]
    show(arguments, found, lines)
    return SOUND


def _event(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["seq"], event["kind"], event["date"], _WHAT[event["kind"]].format(**event)


_LIMITS = "score {min_score:g}, unseen days {max_unseen_days}"
_WHAT = {
    "decay": "by {decay:g}",
    "shrink": _LIMITS,
    "delta_reset": f"{_LIMITS}, delta_score {{min_delta_score:g}}",
    "reset_rows": "weights of new rows",
    "weight_decay": "embed_w by {embed_decay:g}, embedx by {embedx_decay:g}",
}
