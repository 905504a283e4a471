"""Trains a config and prints what a run ends with: python weights_small.py OPTIONS

OPTIONS is JSON: config, overrides, folder, and optionally served (instances to predict with an
export), packed (feasigns, offsets and weights to predict with it), evaluated (overrides of a config
to evaluate with), source (a run to start from) and dump (the file of a dump of predictions).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paddlebox.config import load_config
from paddlebox.errors import PaddleBoxError
from paddlebox.launch import cpu

options = json.loads(sys.argv[1])
config = load_config(options["config"], options["overrides"])
cpu.apply(config.trainer.program, 1)

import numpy as np  # noqa: E402  # Paddle comes after the settings

from paddlebox.serving.predictor import Predictor  # noqa: E402
from paddlebox.serving.source import RunSource  # noqa: E402
from paddlebox.serving.writer import export  # noqa: E402
from paddlebox.training import evaluation, run  # noqa: E402
from paddlebox.training.opening import open_table, read_slots  # noqa: E402

run_dir = Path(options["folder"])
found: dict[str, Any] = {"error": ""}
try:
    summary = run.train(config, run_dir, source=options.get("source", ""))
    found["digests"] = [summary[f"{kind}_digest"] for kind in ("sparse", "dense")]
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    found["lines"] = [json.loads(line) for line in lines]
    with open_table(config, run_dir / "store", slots=read_slots(config), read_only=True) as table:
        feasigns, values = table.first.read_all()
        found["dense"] = {
            name: np.asarray(array).reshape(-1).tolist()
            for name, array in table.load_dense().items()
        }
    found["rows"] = dict(zip(map(str, feasigns.tolist()), values.tolist(), strict=True))
    if config.data.test_files:
        found["test"] = evaluation.evaluate(config, run_dir)
    if "evaluated" in options:
        other = load_config(options["config"], options["evaluated"])
        found["evaluated"] = evaluation.evaluate(other, run_dir)
    if "dump" in options:
        evaluation.evaluate(config, run_dir, dump=Path(options["dump"]), dump_ins_id=True)
    if "served" in options:
        with RunSource(run_dir) as source:
            export(source, run_dir / "export")
        with Predictor(run_dir / "export", follow_s=0) as predictor:
            found["served"] = predictor.predict(options["served"]).tolist()
            if "packed" in options:
                feasigns, offsets, weights = map(np.array, options["packed"])
                found["served_packed"] = predictor.predict_feasigns(
                    feasigns.astype(np.uint64), offsets, None, weights
                ).tolist()
except PaddleBoxError as raised:
    found["error"] = f"{type(raised).__name__}: {raised}"
print(json.dumps(found))
