"""The tools under `python -m paddle.distributed.launch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import processes

CONFIG = "configs/dnn_synthetic.yaml"


def command(ranks: int, name: str, run_dir: Path, config: Path | str, *more: str) -> list[str]:
    """Arguments of Python. `more`: overrides, then other arguments."""
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    launcher += ["--log_dir", str(run_dir.parent / "log")]
    return [
        *(launcher if ranks > 1 else []),
        *(f"tools/{name}.py", "-c", str(config), "--run-dir", str(run_dir), "-o", *more),
    ]


def run_launched(*arguments: Any) -> Any:
    """Runs a `command` to its end."""
    return processes.run(command(*arguments))


def overrides(data: Path, beside: Path) -> tuple[str, ...]:
    """Four passes of two files; saves and copies go beside the run dir. A base holds every row, so
    that a chain of saves serves what the table has."""
    return (
        f"data.train_files=[{data}/train-*.txt]",
        f"data.test_files=[{data}/test.txt]",
        "data.files_per_pass=2",
        "model.hidden=[16]",
        "table.life.base_threshold=0",
        "table.life.delta_threshold=0",
        f"save.out={beside}/out",
        f"checkpoint.copy_to={beside}/copies",
    )


def launch(name: str, run_dir: Path, data: Path, *more: str, ranks: int = 2) -> Any:
    return run_launched(ranks, name, run_dir, CONFIG, *overrides(data, run_dir.parent), *more)


def summary(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return found
