"""Trains a small model over several passes and prints its digests: python train_small.py OPTIONS

OPTIONS is JSON: folder, data, overrides (of the config), vector_path.
"""

import json
import os
import sys
from pathlib import Path

from paddlebox.config import load_config
from paddlebox.launch import cpu

options = json.loads(sys.argv[1])
config = load_config("configs/deepfm_synthetic.yaml", options["overrides"])
cpu.apply(config.trainer.program, config.trainer.dense_threads)

from paddlebox._native import core  # noqa: E402  # Paddle comes after the settings
from paddlebox.training import run  # noqa: E402

if "vector_path" in options:
    core.set_vector_path(options["vector_path"])
run_dir = Path(options["folder"])
summary = run.train(config, run_dir)
lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
print(
    json.dumps(
        {
            "omp_threads": int(os.environ["OMP_NUM_THREADS"]),
            "sparse": summary["sparse_digest"],
            "dense": summary["dense_digest"],
            "ssd_hits": sum(line["hits"]["ssd"] for line in lines),
            "mem_hits": sum(line["hits"]["mem"] for line in lines),
            "auc": [line["metrics"]["auc"] for line in lines],
        }
    )
)
