"""The command `paddlebox doctor`."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paddlebox.config import Program
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.section import GIB, MIB
from paddlebox.launch import cpu
from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded
from paddlebox.tools.doctor.facts import Facts, measure_disk, read_facts
from paddlebox.tools.doctor.findings import Level, findings
from paddlebox.tools.terminal import at_least

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


def doctor_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox doctor`. Returns the exit code: 0, or 1 if something will not work; after an
    error, see docs/running.md."""
    arguments = parse(doctor_parser(), argv)

    with guarded() as ended:
        report = examine(arguments.folder, arguments.disk_mib << 20)
        print(json.dumps(report, indent=1) if arguments.json else as_text(report))
        ended.code = 0 if report["works"] else 1
    return ended.code


def doctor_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Examines the environment, the processor, memory and a disk. Reports what will not work, "
        "what will be slow and why, and which budgets fit. The exit code is 1 if something will "
        "not work."
    )
    about = "a folder on the disk of the run dirs; default: the folder for temporary files"
    default = Path(tempfile.gettempdir())
    parser.add_argument("--folder", type=Path, default=default, metavar="DIR", help=about)
    about = "write at most N MiB to measure the disk, and remove them; 0: do not measure"
    parser.add_argument("--disk-mib", type=at_least(0), default=256, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    return parser


def examine(folder: AnyPath, disk_bytes: int) -> dict[str, Any]:
    """Examine this machine, with a folder on the disk of the run dirs. disk_bytes: the most bytes
    to write in it; 0: do not measure the disk.

    Returns: `works`, `facts`, `findings`, `settings` (the environment variables that a run sets)
        and `budgets`.

    Raises: StoreError if the disk cannot be measured.
    """
    folder = as_path(folder, "folder")
    disk = measure_disk(folder, disk_bytes) if disk_bytes else None
    info = cpu.CpuInfo.read()
    facts = read_facts(folder, disk, vendor=info.vendor, flags=info.flags, cores=info.cores)
    return report_of(facts, cpu.choose(info, {}, Program.PIR))


def report_of(facts: Facts, settings: dict[str, cpu.Setting]) -> dict[str, Any]:
    """The result of `examine` for these facts."""
    problems = findings(facts)
    plain = asdict(facts) | {"cpu_flags": sorted(facts.cpu_flags & {"avx2", "avx512f"})}
    return {
        "works": all(problem.level is not Level.FAILS for problem in problems),
        "facts": plain | {"usable_bytes": facts.usable_bytes},
        "findings": [asdict(problem) for problem in problems],
        "settings": {name: setting._asdict() for name, setting in settings.items()},
        "budgets": budgets(facts),
    }


def as_text(report: dict[str, Any]) -> str:
    """The result of `examine` as text."""
    facts = report["facts"]
    disk = facts["disk"]
    lines = [
        f"Python {'.'.join(map(str, facts['python']))}, {facts['paddle'] or 'no Paddle'}",
        f"{facts['cores']} cores, {facts['cpu_vendor'] or 'unknown maker'}, vector path "
        f"{facts['vector_path'] or 'unknown'}, memory nodes {facts['numa_nodes']}, huge pages "
        f"{facts['huge_pages'] or 'unknown'}, governor {facts['governor'] or 'unknown'}",
        f"memory: {facts['memory_bytes'] / 2**30:.1f} GiB, a run can use "
        f"{facts['usable_bytes'] / 2**30:.1f} now",
        f"disk: {facts['filesystem'] or 'unknown'}, io_uring "
        f"{'yes' if facts['io_uring'] else 'no'}, open files {facts['open_files'] or 'unlimited'}",
    ]
    if disk is not None:
        lines.append(
            f"disk: read {disk['read_bytes_per_s'] / 1e6:,.0f} MB/s, write "
            f"{disk['write_bytes_per_s'] / 1e6:,.0f} MB/s, {disk['random_reads_per_s']:,.0f} "
            f"random reads/s, a sync {disk['fsync_s'] * 1e3:.2f} ms, free "
            f"{disk['free_bytes'] / 2**30:,.0f} GiB"
        )
    lines.append("")
    for finding in report["findings"]:
        lines.append("{level:6}{topic}: {what}\n      -> {do}".format(**finding))
    if not report["findings"]:
        lines.append("no problems found")
    lines += ["", "a run sets these variables, unless the environment does:"]
    lines += [f"  {name}={s['value']} ({s['why']})" for name, s in report["settings"].items()]
    lines += ["", "budgets that fit, to paste into a config:", as_yaml(report["budgets"])]
    return "\n".join(lines)
