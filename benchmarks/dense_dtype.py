"""Does training in bfloat16 cost AUC or log loss?

    PADDLEBOX_DATA=../shared/data python benchmarks/dense_dtype.py
    PADDLEBOX_DATA=../shared/data python benchmarks/dense_dtype.py --models deepfm --seeds 2

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, which are in time order: the first 80 % for
training, the last 20 % for evaluation. A model is its config `configs/<model>_criteo.yaml`, once
per seed with `trainer.dense_dtype` float32 and once with bfloat16.

On a processor without AVX512_BF16 and AMX, the products are Paddle's in float32, and Paddle's casts
round the operands of the forward and the gradients. Sums are then added in another order than by
the operator, and the gradient of the MLP's input, which the operator leaves float32, is rounded.

end_to_end.py measures the speed.

Goals: the mean AUC changes by at most 0.0003, and the mean log loss by at most 0.0005.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import report
from quality_criteo import criteo_lines
from zoo_criteo import WORKER, run

from paddlebox import _native

MEASURES = (*report.TRAINING, "configs")
MODELS = ("deepfm", "dcn_v2", "finalmlp")
AUC, LOGLOSS = 0.0003, 0.0005

# Goes into the worker before this line. `straight` has the value of `rounded`, but its gradient is
# not rounded.
BUILDS = "from paddlebox.train import opening, run\n"
SIMULATED = """
from paddlebox._native import paddle
from paddlebox.nn import linear, mlp
from paddlebox.train import dense_products, program
def rounded(x):
    return paddle.cast(paddle.cast(x, "bfloat16"), "float32")
def straight(x):
    return x + (rounded(x) - x).detach()
def stacked(layers, x, activations, dropout=0.0):
    for layer, activation in zip(layers, activations):
        x = paddle.matmul(rounded(x), straight(layer.weight))
        x = x if layer.bias is None else x + layer.bias
        if activation == "relu":
            x = paddle.nn.functional.relu(x)
            x = paddle.nn.functional.dropout(x, dropout) if dropout else x
    return rounded(x) + (x - rounded(x)).detach()
linear.stacked = mlp.stacked = stacked
program.dense_products = lambda config: dense_products.DenseProducts("bfloat16", "simulated", "")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, with one thread each")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dense_dtype.json"))
    options = parser.parse_args()
    library, _, speeds = _native.core.dense_library()
    simulated = speeds["bfloat16"] == "none"
    narrow: dict[str, Any] = {"overrides": ["trainer.dense_dtype=bfloat16"]}
    if simulated:
        assert BUILDS in WORKER
        narrow = {"worker": WORKER.replace(BUILDS, SIMULATED + BUILDS)}
    ways: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": narrow}
    lines = criteo_lines()
    train, test = lines[: len(lines) * 4 // 5], lines[len(lines) * 4 // 5 :]
    labels = np.array([int(line[0]) for line in test])
    figures: dict[str, Any] = {"bfloat16": "simulated" if simulated else library}
    goals = []
    print(f"bfloat16: {figures['bfloat16']}")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        started = {
            (model, way): [
                pool.submit(run, folder, model, seed, labels, **how)
                for seed in range(1, options.seeds + 1)
            ]
            for model in options.models
            for way, how in ways.items()
        }
        for model in options.models:
            means = {}
            for way in ways:
                runs = [future.result() for future in started[model, way]]
                for one in runs:
                    one.pop("logits")
                found = {
                    what: statistics.fmean(one[what] for one in runs) for what in ("auc", "logloss")
                }
                means[way] = found
                figures.setdefault(model, {})[way] = {**found, "runs": runs}
                print(
                    f"{model:10} {way:10} AUC {found['auc']:.5f}  log loss {found['logloss']:.5f}"
                )
            for what, title, most in (("auc", "AUC", AUC), ("logloss", "log loss", LOGLOSS)):
                change = abs(means["bfloat16"][what] - means["float32"][what])
                goals.append(report.at_most(f"change of the {title} of {model}", change, most))
    settings = {"models": list(options.models), "seeds": options.seeds}
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
