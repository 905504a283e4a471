"""Trains a config, breaks off in a pass if asked to, and prints what a run ends with: python
sequences_small.py OPTIONS

OPTIONS is JSON: config, overrides, folder, fail_in (the pass whose second batch raises), kill_at
(the pass whose commit kills the process, after its files are written).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from paddlebox.config import Phase, load_config
from paddlebox.errors import PaddleBoxError
from paddlebox.launch import cpu

options = json.loads(sys.argv[1])
config = load_config(options["config"], options["overrides"])
cpu.apply(config.trainer.program, 1)

import numpy as np  # noqa: E402  # Paddle comes after the settings

from paddlebox.store.record import VersionRecord  # noqa: E402
from paddlebox.store.version_store import VersionStore  # noqa: E402
from paddlebox.training import run  # noqa: E402
from paddlebox.training.opening import open_table, read_slots  # noqa: E402
from paddlebox.training.pass_loop import PassLoop  # noqa: E402
from paddlebox.training.plan import PlannedPass  # noqa: E402

run_dir = Path(options["folder"])
train_pass = PassLoop._train


class BrokenOffError(Exception):
    pass


def failing(loop: PassLoop, planned: PlannedPass, *rest: Any) -> dict[str, Any]:
    if planned.number == options.get("fail_in"):
        runner = loop._training.runners.of(Phase.UPDATE)
        step, feeds = runner.train_step, []

        def broken(feed: Any) -> Any:
            feeds.append(feed)
            if len(feeds) == 2:
                raise BrokenOffError
            return step(feed)

        runner.train_step = broken  # type: ignore[method-assign]
    return train_pass(loop, planned, *rest)


commit = VersionStore.append


def killed(manifest: VersionStore, record: VersionRecord) -> None:
    if record.pass_number == options.get("kill_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(manifest, record)


VersionStore.append = killed  # type: ignore[assignment, method-assign]
PassLoop._train = failing  # type: ignore[assignment, method-assign]
error = ""
summary: dict[str, Any] = {}
try:
    summary = run.train(config, run_dir)
except (BrokenOffError, PaddleBoxError) as raised:
    error = f"{type(raised).__name__}: {raised}"
file = run_dir / "metrics.jsonl"
lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
rows: dict[str, Any] = {}
held = hashlib.sha256()
if summary:
    with open_table(config, run_dir / "store", slots=read_slots(config), read_only=True) as table:
        feasigns, values = table.first.read_all()
        for name, array in sorted(table.histories.items()):
            held.update(name.encode() + np.ascontiguousarray(array).tobytes())
    rows = dict(zip(map(str, feasigns.tolist()), values.tolist(), strict=True))
print(
    json.dumps(
        {
            "error": error,
            "digests": [summary.get(f"{kind}_digest") for kind in ("sparse", "dense")],
            "lines": lines,
            "rows": rows,
            "histories": held.hexdigest(),
        }
    )
)
