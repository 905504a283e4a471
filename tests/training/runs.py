"""Small runs that begin with another one's rows, one after another in a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import processes
from tests.support.configs import write_config

SLOTS = ("user", "item", "query")

# Trains runs one after another: [config file, overrides, run dir, source, what to die of] each. An
# error is given back as its class and text.
SCRIPT = """
import json, os, pathlib, sys
from paddlebox.config import load_config
from paddlebox.errors import PaddleBoxError
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.launch import cpu
jobs = json.loads(sys.argv[1])
cpu.apply(load_config(jobs[0][0], jobs[0][1]).trainer.program, 1)
from paddlebox.store import import_rows
from paddlebox.training import run
from paddlebox.training.warm_start import start
answers = []
for file, overrides, run_dir, source, death in jobs:
    if death == "before the commit":
        import_rows._commit = lambda *args: os._exit(9)
    if death == "between the tables":
        commit = import_rows._commit
        import_rows._commit = lambda table, *args: (
            commit(table, *args) if table.name == "wide" else os._exit(9)
        )
    if death == "after the commit":
        start.format_report = lambda report: os._exit(9)
    try:
        done = run.train(load_config(file, overrides), pathlib.Path(run_dir), source=source)
        answers.append({k: done[k] for k in ("sparse_digest", "dense_digest", "version")})
    except PaddleBoxError as error:
        answers.append({"error": type(error).__name__, "text": str(error)})
print(json.dumps(answers))
"""


def write_slots(path: Path, names: tuple[str, ...]) -> Path:
    lines = ["slots:", "  - {name: click, type: label}", "  - {name: age, type: dense, dim: 2}"]
    path.write_text("\n".join([*lines, *(f"  - {{name: {n}, type: sparse}}" for n in names)]))
    return path


def write_data(path: Path, names: tuple[str, ...], seed: int) -> str:
    """600 instances; a slot's tokens are its own, whatever slots stand beside it."""
    rng = np.random.default_rng(seed)
    columns = {n: (i + 1) * 10_000 + rng.integers(1, 400, 600) for i, n in enumerate(SLOTS)}
    columns["city"] = 90_000 + rng.integers(1, 50, 600)
    clicks = (columns["user"] + columns["item"]) % 3 == 0
    with open(path, "w") as file:
        for row in range(600):
            values = " ".join(f"1 {columns[name][row]}" for name in names)
            file.write(f"1 {int(clicks[row])} 2 {row % 7} 0.5 {values}\n")
    return str(path)


class Runs:
    """Describes runs and trains them: runs.train(runs.job(...), ...)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_slots(folder / "slots.yaml", SLOTS)
        self.files = [write_data(folder / f"{n}.txt", SLOTS, n) for n in range(4)]
        data = {"format": "multislot", "files_per_pass": 1, "batch_size": 64}
        self.config = write_config(
            folder,
            table={
                "embedx_dim": 4,
                "embedx_threshold": 2.0,
                "embed": {"learning_rate": 0.05, "initial_g2sum": 3.0},
            },
            mem={"budget_bytes": "1MiB"},
            data={**data, "key_space": "shared"},
            model={"type": "deepfm", "hidden": [8, 8], "use_cvm": True},
            optimizer={"learning_rate": 0.01, "averaging": 0.0},
            trainer={"dense_threads": 1},
        )

    def job(
        self, name: str, files: list[str], *more: str, source: str = "", death: str = ""
    ) -> list[Any]:
        overrides = [f"data.train_files={json.dumps(files)}", *more]
        return [str(self.config), overrides, str(self.folder / name), source, death]

    def train(self, *jobs: list[Any], code: int = 0) -> Any:
        done = processes.run(["-c", SCRIPT, json.dumps(jobs)])
        assert done.returncode == code, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / name / "init.json").read_text())
        return found

    def lines(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]
