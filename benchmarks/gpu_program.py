"""Does the whole program train on a GPU as on the host, and how fast?

    python benchmarks/gpu_program.py                  on a machine with a GPU, at most 9 minutes
    python benchmarks/gpu_program.py --device host    a trial without a GPU, after `make gpu-host`

Needs `make gpu` and cuBLAS, or what `make gpu-bundle` packed (docs/gpu.md). The steps run one after
another, each in processes of its own and within its own time. Each prints one line of JSON. After a
step that fails, the next one follows.

  import     a model trains one step on the device
  kernels    each kernel, forward and backward, against Paddle on the CPU
  train      `paddlebox train` of DeepFM twice, with equal digests; the host continues the second
  zoo        all models of the zoo, six steps: the losses against those of the host
  speed      `paddlebox train` of DeepFM with batches of 4,096, 16,384 and 65,536, also on all cores
             of the host, and PyTorch: row-wise AdaGrad for as many ids, the same MLP, eager and as
             a CUDA graph. The shares of the time are pull, push and plan by the device's clock,
             idle, without a kernel as nvidia-smi reports, and dense, the rest. feed, the wait for
             the next batch, is a part of idle
  memcheck   the kernels under compute-sanitizer
  resume     a run that is killed after its first commit ends with the digests of an unbroken one
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
from peers.gpu_runs import Figures, LateError, StepError, Work, busy_share, end, of_run
from report import ROOT, at_least, at_most

sys.path.append(str(ROOT))
TESTS = ROOT / "tests/gpu"
#: The losses and logits of the zoo on the host. The step zoo makes the file if it is absent.
HOST_RESULTS = ROOT / "build/gpu/zoo_on_host.json"
ZOO_STEPS = "6"
KERNEL_BOUND, LOSS_BOUND = 2e-5, 1e-5
COLUMNS = 12  # of a slot: show, click, embed_w and 8 of embedx, rounded up


def zoo(work: Work, place: str, models: Mapping[str, Any], steps: str) -> Any:
    arguments = (place, "pir", json.dumps(models), steps)
    return work.script(TESTS / "zoo_on_device.py", *arguments, on_device=place == "gpu")


def all_models() -> dict[str, Any]:
    from tests.gpu.zoo import MODELS  # it imports pytest

    return MODELS


def host_results(work: Work) -> Any:
    path = work.host_results
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(zoo(work, "host", all_models(), ZOO_STEPS)))
    return json.loads(path.read_text())


def imported(work: Work) -> Figures:
    models = {"dnn": {"type": "dnn", "hidden": [16, 8]}}
    return {"loss": zoo(work, "gpu", models, "1")["dnn"]["losses"][0]}


def largest(values: Iterable[float]) -> float:
    """Infinite if a value is NaN, which max() may overlook."""
    return max(math.inf if math.isnan(value) else value for value in values)


def kernels(work: Work) -> Figures:
    of = work.script(TESTS / "kernels_on_device.py")
    found = {name: largest(values) for name, values in of.items()}
    worst = sorted(found, key=lambda name: found[name], reverse=True)[:5]
    figures: Figures = {"cases": len(found), "largest": found[worst[0]]}
    figures |= {"worst": {name: found[name] for name in worst}}
    return checked(figures, figures["largest"] <= KERNEL_BOUND, "a kernel differs from the CPU")


def train(work: Work) -> Figures:
    runs = [work.train(name, "gpu", work.few_rows) for name in ("one", "two")]
    figures: Figures = {"equal_digests": runs[0] == runs[1], "losses": _losses(work, "two")}
    work.digests = runs[0]
    more = ("train-*.txt", "trainer.epochs=2")
    work.train("two", "host", work.few_rows, *more)
    figures |= {"continued_on_host": _losses(work, "two")[3:]}
    return checked(figures, figures["equal_digests"], "two equal runs end with different digests")


def _losses(work: Work, name: str) -> list[float]:
    return [line["loss"] for line in work.lines(name)]


def models(work: Work) -> Figures:
    host = host_results(work)
    device = zoo(work, "gpu", all_models(), ZOO_STEPS)
    differences = {
        name: largest(abs(a - b) for a, b in zip(host[name]["losses"], of["losses"], strict=True))
        for name, of in device.items()
    }
    worst = largest(differences.values())
    figures = {"models": len(differences), "largest": worst, "differences": differences}
    return checked(figures, worst <= LOSS_BOUND, "a model trains otherwise than on the host")


def checked(figures: Figures, is_right: bool, why: str) -> Figures:
    return figures if is_right else {**figures, "why": why}


def speed(work: Work) -> Figures:
    rows, batches = (2048, (64, 256, 1024)) if work.small else (262_144, (4096, 16_384, 65_536))
    figures: Figures = {"cores": len(os.sched_getaffinity(0)), "rows_of_a_pass": rows}
    figures["of"] = {str(batch): {} for batch in batches}
    work.partial = figures
    for batch in batches:
        measure_run(work, "gpu", batch, rows, 2 if work.small else 4)
    measure_torch(work, batches)
    for batch in batches:
        measure_run(work, "host", batch, rows, 1 if work.small else 2)
    return figures


def measure_run(work: Work, place: str, batch: int, rows: int, epochs: int) -> None:
    name, busy = f"speed-{place}-{batch}", list[float]()
    settings = (f"data.batch_size={batch}", f"trainer.epochs={epochs}", "hbm.budget_bytes=2GiB")
    with busy_share(busy):
        work.train(name, place, rows, "train-*.txt", *settings)
    work.partial["of"][str(batch)][place] = of_run(work.lines(name), busy)


def measure_torch(work: Work, batches: Iterable[int]) -> None:
    if work.small or importlib.util.find_spec("torch") is None:
        work.partial["torch"] = "not measured: there is no PyTorch for a GPU"
        return
    lines = work.lines(f"speed-gpu-{max(batches)}")
    ids = statistics.fmean(line["rows_pulled"] / line["samples"] for line in lines)
    model = {"ids": round(ids), "hidden": [400, 400, 400], "slots": 10, "width": COLUMNS}
    arguments = json.dumps({**model, "batches": batches})
    try:
        found = work.script(ROOT / "benchmarks/peers/gpu_torch.py", arguments, on_device=False)
    except StepError as error:  # the host is still measured
        work.partial["torch"] = f"failed: {error}"
        return
    for batch, rates in found.items():
        work.partial["of"][batch]["torch"] = rates


def memcheck(work: Work) -> Figures:
    sanitizer = shutil.which("compute-sanitizer")
    if work.small or sanitizer is None:
        raise report.UnavailableError("compute-sanitizer and a GPU are needed")
    options = ("--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no")
    work.run(sanitizer, *options, sys.executable, str(TESTS / "kernels_on_device.py"), env=work.env)
    return {"errors": 0}


def resume(work: Work) -> Figures:
    unbroken = work.digests or work.train("unbroken", "gpu", work.few_rows)
    process = work.start(*work.training("killed", "gpu", work.few_rows), env=work.env, quiet=True)
    while not work.lines("killed") and process.poll() is None and time.monotonic() < work.ends:
        time.sleep(0.02)
    if process.poll() is not None or not work.lines("killed"):
        end(process)
        raise StepError("the run that was to be killed ended, or committed nothing in time")
    end(process)
    figures: Figures = {
        "passes_before": len(work.lines("killed")),
        "equal_digests": work.train("killed", "gpu", work.few_rows) == unbroken,
    }
    return checked(figures, figures["equal_digests"], "the killed run ends with other digests")


@dataclass(frozen=True)
class Step:
    name: str
    seconds: int  # most
    measure: Callable[[Work], Figures]


STEPS = (
    Step("import", 40, imported),
    Step("kernels", 50, kernels),
    Step("train", 80, train),
    Step("zoo", 110, models),
    Step("speed", 150, speed),
    Step("memcheck", 60, memcheck),
    Step("resume", 50, resume),
)


def take(step: Step, work: Work, slack: float) -> Figures:
    """The line of a step."""
    begun = time.monotonic()
    work.ends = begun + step.seconds * slack
    work.partial = {}
    line: Figures = {"step": step.name, "outcome": "ok"}
    try:
        line |= step.measure(work)
    except report.UnavailableError as error:
        line |= {"outcome": "not measured", "why": str(error)}
    except LateError as error:
        line |= {"outcome": "timeout", "why": str(error)}
    except Exception as error:  # the next step follows
        line |= {"outcome": "failed", "why": f"{type(error).__name__}: {error}"}
    if line["outcome"] == "ok" and "why" in line:
        line["outcome"] = "failed"
    return {**work.partial, **line} | {"seconds": round(time.monotonic() - begun, 1)}


def goals_of(lines: Mapping[str, Figures], missing: str) -> list[report.Goal]:
    """missing: why nothing counts; empty on a GPU."""

    def figure(step: str, *names: str) -> Any:
        value: Any = lines.get(step, {})
        for name in names:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return [] if value == {} else [float(value)]

    def of(own: list[float], others: list[float]) -> list[float]:
        return [one / max(others) for one in own] if others else []

    at = ("speed", "of", "65536")
    own, host = figure(*at, "gpu", "samples_per_s"), figure(*at, "host", "samples_per_s")
    steps = figure(*at, "gpu", "in_steps")
    peers = figure(*at, "torch", "eager") + figure(*at, "torch", "graph")
    goals = [
        at_most("difference of a kernel from the CPU", figure("kernels", "largest"), KERNEL_BOUND),
        at_least("two runs end with equal digests", figure("train", "equal_digests"), 1),
        at_most("difference of a loss from the host's", figure("zoo", "largest"), LOSS_BOUND),
        at_most("errors that memcheck reports", figure("memcheck", "errors"), 0),
        at_least("a killed run ends as an unbroken one", figure("resume", "equal_digests"), 1),
        at_least("samples/s at 65,536, of the host's", of(own, host), 1),
        at_least("steps at 65,536, of PyTorch's best", of(steps, peers), 1),
    ]
    return [
        goal
        if goal.turns and not missing
        else report.not_measured(goal, missing or "the step gave no figure")
        for goal in goals
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["gpu", "host"], default="gpu", help="host: a trial")
    names = [step.name for step in STEPS]
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument("--slack", type=float, default=1.0, help="factor of the steps' times")
    parser.add_argument("--host-results", type=Path, default=HOST_RESULTS)
    parser.add_argument("--only-host-results", action="store_true", help="make that file")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gpu_program.json"))
    options = parser.parse_args()
    no_gpu = options.device == "gpu" and report.gpu() is None
    missing = "nvidia-smi finds no GPU" if no_gpu else ""
    missing = "the host is the device" if options.device == "host" else missing
    lines: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Work(options.device, Path(folder), options.host_results)
        if options.only_host_results:
            work.ends = time.monotonic() + 3600
            host_results(work)
            return 0
        for step in STEPS if not no_gpu else ():
            if step.name in options.steps:
                lines[step.name] = take(step, work, options.slack)
                print(json.dumps(lines[step.name]), flush=True)
    settings = {"device": options.device, "slack": options.slack, "steps": options.steps}
    code = report.write(options.out, settings, lines, goals_of(lines, missing))
    failed = [name for name, line in lines.items() if line["outcome"] in ("failed", "timeout")]
    return max(code, int(bool(failed)))


if __name__ == "__main__":
    report.run(main)
