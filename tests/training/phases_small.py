"""Trains a config and prints its dense state before and after, and its rows: python
phases_small.py CONFIG RUN_DIR OVERRIDES [PASS PHASE], OVERRIDES being a list as JSON. With a pass
and a phase the process is killed there, in the second batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import Phase, load_config
from paddlebox.launch import cpu

path, run_dir, overrides, *kill = sys.argv[1:]
config = load_config(path, json.loads(overrides))
cpu.apply(config.trainer.program, 1)

from paddlebox.training import run  # noqa: E402  # Paddle comes after the settings
from paddlebox.training.evaluation import evaluate  # noqa: E402
from paddlebox.training.opening import open_table, read_slots  # noqa: E402
from paddlebox.training.pass_loop import PassLoop  # noqa: E402
from paddlebox.training.plan import PlannedPass  # noqa: E402
from paddlebox.training.runner import Runners  # noqa: E402

train_pass = PassLoop._train


def killed(loop: PassLoop, planned: PlannedPass, *rest: Any) -> dict[str, Any]:
    if kill and planned.number == int(kill[0]):
        runner, steps = loop._training.runners.of(Phase(kill[1])), []
        step = runner.train_step

        def counted(feed: Any) -> Any:
            steps.append(feed)
            if len(steps) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(feed)

        runner.train_step = counted  # type: ignore[method-assign]
    return train_pass(loop, planned, *rest)


def numbers(state: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: [list(a.shape), a.reshape(-1).tolist()] for name, a in state.items()}


PassLoop._train = killed  # type: ignore[assignment, method-assign]
slots = read_slots(config)
before = numbers(Runners(config, slots).dense_state())
summary = run.train(config, Path(run_dir))
lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
tested = {}
if config.data.test_files:
    tested = {phase.value: evaluate(config, Path(run_dir), phase=phase) for phase in Phase}
with open_table(config, Path(run_dir) / "store", slots=slots, read_only=True) as table:
    feasigns, rows = table.first.read_all()
    after = numbers(table.load_dense())
print(
    json.dumps(
        {
            "before": before,
            "after": after,
            "rows": dict(zip(map(str, feasigns.tolist()), rows.tolist(), strict=True)),
            "summary": summary,
            "lines": lines,
            "tested": tested,
        }
    )
)
