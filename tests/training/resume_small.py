"""Trains a small model, breaks off in a pass if asked to, and prints what a run ends with:
python resume_small.py OPTIONS

OPTIONS is JSON: folder, overrides (of the config), fail_in (the pass whose third batch raises),
keyword arguments of run.train as "train".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paddlebox.config import Phase, load_config
from paddlebox.errors import PaddleBoxError
from paddlebox.launch import cpu

options = json.loads(sys.argv[1])
config = load_config("configs/deepfm_synthetic.yaml", options["overrides"])
cpu.apply(config.trainer.program, config.trainer.dense_threads)

from paddlebox.training import run  # noqa: E402  # Paddle comes after the settings
from paddlebox.training.pass_loop import PassLoop  # noqa: E402
from paddlebox.training.plan import PlannedPass  # noqa: E402

run_dir = Path(options["folder"])
train_pass = PassLoop._train


class BrokenOffError(Exception):
    pass


def failing(loop: PassLoop, planned: PlannedPass, *rest: Any) -> dict[str, Any]:
    if planned.number == options.get("fail_in"):
        runner = loop._training.runners.of(Phase.UPDATE)  # the only one
        step, feeds = runner.train_step, []

        def broken(feed: Any) -> Any:
            feeds.append(feed)
            if len(feeds) == 3:
                raise BrokenOffError
            return step(feed)

        runner.train_step = broken  # type: ignore[method-assign]
    return train_pass(loop, planned, *rest)


PassLoop._train = failing  # type: ignore[assignment, method-assign]
error = ""
try:
    run.train(config, run_dir, **options.get("train", {}))
except (BrokenOffError, PaddleBoxError) as raised:
    error = f"{type(raised).__name__}: {raised}"
lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
summary = run_dir / "summary.json"
print(
    json.dumps(
        {
            "error": error,
            "summary": json.loads(summary.read_text()) if summary.exists() else None,
            "lines": [[line[n] for n in ("pass", "loss", "samples", "metrics")] for line in lines],
            "parts": max((line.get("parts", 0) for line in lines), default=0),
            "tests": [line.get("test", {}).get("auc") for line in lines],
        }
    )
)
