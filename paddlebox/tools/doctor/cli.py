"""The command line of tools/doctor.py."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paddlebox.config import Program
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import PaddleBoxError
from paddlebox.launch import cpu
from paddlebox.tools.doctor.budgets import as_yaml, budgets
from paddlebox.tools.doctor.disk import measure_disk
from paddlebox.tools.doctor.facts import Facts, read_facts
from paddlebox.tools.doctor.findings import Level, findings


def doctor_main(argv: Sequence[str] | None = None) -> int:
    """Run tools/doctor.py. Returns the exit code: 0, or 1 if something will not work."""
    parser = argparse.ArgumentParser(
        description="Examines the environment, the processor, memory and a disk. Reports what "
        "will not work, what will be slow and why, and which budgets fit. The exit code is 1 if "
        "something will not work."
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()),
        help="a folder on the disk of the run dirs; default: the folder for temporary files",
    )  # fmt: skip
    parser.add_argument(
        "--disk-mib", type=int, default=256, metavar="N",
        help="write at most N MiB to measure the disk, and remove them; 0: do not measure (256)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    arguments = parser.parse_args(argv)
    if arguments.disk_mib < 0:
        parser.error(f"--disk-mib: expected 0 or more, found {arguments.disk_mib}")
    try:
        told = examine(arguments.folder, arguments.disk_mib << 20)
    except PaddleBoxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=1) if arguments.json else as_text(told))
    return 0 if told["works"] else 1


def examine(folder: AnyPath, disk_bytes: int) -> dict[str, Any]:
    """Examine this machine.

    Args:
        folder: a folder on the disk of the run dirs.
        disk_bytes: the most bytes to write in it; 0: do not measure the disk.

    Returns: `works`, `facts`, `findings`, `settings` (the environment variables that a run sets)
        and `budgets`.

    Raises: StoreError if the disk cannot be measured.
    """
    folder = as_path(folder, "folder")
    disk = measure_disk(folder, disk_bytes) if disk_bytes else None
    info = cpu.CpuInfo.read()
    facts = read_facts(folder, disk, vendor=info.vendor, flags=info.flags, cores=info.cores)
    return told_of(facts, cpu.choose(info, {}, Program.PIR))


def told_of(facts: Facts, settings: dict[str, cpu.Setting]) -> dict[str, Any]:
    """The result of `examine` for these facts."""
    found = findings(facts)
    plain = asdict(facts) | {"cpu_flags": sorted(facts.cpu_flags & {"avx2", "avx512f"})}
    return {
        "works": all(one.level is not Level.FAILS for one in found),
        "facts": plain | {"usable_bytes": facts.usable_bytes},
        "findings": [asdict(one) for one in found],
        "settings": {name: setting._asdict() for name, setting in settings.items()},
        "budgets": budgets(facts),
    }


def as_text(told: dict[str, Any]) -> str:
    """The result of `examine` as text."""
    facts = told["facts"]
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
    for one in told["findings"]:
        lines += [f"{one['level']:6}{one['topic']}: {one['what']}", f"      -> {one['do']}"]
    if not told["findings"]:
        lines.append("no problems found")
    lines += ["", "a run sets these variables, unless the environment does:"]
    lines += [f"  {name}={one['value']} ({one['why']})" for name, one in told["settings"].items()]
    lines += ["", "budgets that fit, to paste into a config:", as_yaml(told["budgets"])]
    return "\n".join(lines)
