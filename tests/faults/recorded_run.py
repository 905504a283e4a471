"""tools/train.py below recorder.c: writes a mark into the journal after each commit and save.

    python -m tests.faults.recorded_run ARGUMENTS OF tools/train.py

The marks are "committed <version>" and "saved <name>": from then on, no crash may lose it.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from paddlebox.launch import cpu
from paddlebox.launch.cli import train_main

apply = cpu.apply


def apply_and_mark(*arguments: Any) -> list[str]:
    """Marks later commits and saves. Their modules import Paddle, after the settings of the CPU."""
    lines = apply(*arguments)
    from paddlebox.saves import donefile
    from paddlebox.store.record import VersionRecord
    from paddlebox.store.version_store import VersionStore

    mark: Any = ctypes.CDLL(None).pbx_mark
    commit, append = VersionStore.append, donefile.append

    def commit_marked(manifest: VersionStore, record: VersionRecord) -> None:
        commit(manifest, record)
        mark(f"committed {record.version}".encode())

    def append_marked(out: Path, meta: dict[str, Any]) -> None:
        append(out, meta)
        mark(f"saved {meta['name']}".encode())

    mock.patch.object(VersionStore, "append", commit_marked).start()
    mock.patch.object(donefile, "append", append_marked).start()
    return lines


if __name__ == "__main__":
    with mock.patch.object(cpu, "apply", apply_and_mark):
        sys.exit(train_main())
