"""Programs that gpu_program.py starts: scripts and runs of DeepFM, and the shares of their time."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import ROOT

DIGESTS = ("sparse_digest", "dense_digest")
WARM_PASSES = 3

Figures = dict[str, Any]


class StepError(Exception):
    """A step failed; the message says why."""


class LateError(StepError):
    """A step ran out of its time."""


@dataclass(eq=False)
class Work:
    """What the steps share."""

    device: str
    folder: Path
    host_results: Path
    ends: float = 0.0  # of the step
    digests: list[str] = field(default_factory=list)  # of an unbroken run
    partial: Figures = field(default_factory=dict)  # of a step that may run out of its time

    @property
    def small(self) -> bool:
        """The device is the host, which is slow."""
        return self.device == "host"

    @functools.cached_property
    def env(self) -> dict[str, str]:
        """The environment of programs whose `hbm.place` is gpu."""
        built = "build/gpu/host" if self.small else "paddlebox/_gpu"
        root = os.environ.get("CUSTOM_DEVICE_ROOT") or str(ROOT / built)
        return {"CUSTOM_DEVICE_ROOT": root, **({"OMP_NUM_THREADS": "1"} if self.small else {})}

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, quiet: bool = False
    ) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        # Not for programs of the host: a device that Paddle loads is their default.
        own = {name: value for name, value in os.environ.items() if name != "CUSTOM_DEVICE_ROOT"}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**own, "PYTHONPATH": path, **(env or {})},
            text=True,
            stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """The output of a program, which ends with the step. Raises: StepError."""
        process = self.start(*command, env=env)
        try:
            out, errors = process.communicate(timeout=max(self.ends - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            end(process)
            raise LateError(f"{' '.join(command)[:200]}: did not end in time") from None
        if process.returncode != 0:
            tail = " | ".join(errors.strip().splitlines()[-4:])
            raise StepError(f"{' '.join(command)[:200]}: exit code {process.returncode}: {tail}")
        return out

    def script(self, path: Path, *arguments: str, on_device: bool = True) -> Any:
        """The last line of a script, as JSON."""
        env = self.env if on_device else {}
        return json.loads(self.run(sys.executable, str(path), *arguments, env=env).splitlines()[-1])

    @functools.cache  # noqa: B019  one object in a process
    def data(self, rows: int) -> Path:
        """A folder with three files of so many rows, and a small test.txt."""
        folder = self.folder / f"data-{rows}"
        counts = ("--passes", "3", "--rows-per-pass", str(rows), "--test-rows", "1000")
        prepare = str(ROOT / "datasets/synthetic/prepare.py")
        self.run(sys.executable, prepare, "--out", str(folder), *counts)
        return folder

    def training(
        self, name: str, place: str, rows: int, files: str = "train-*.txt", *more: str
    ) -> list[str]:
        """The command of a run of DeepFM."""
        data = self.data(rows)
        settings = [f"hbm.place={place}", f"data.train_files=[{data}/{files}]", *more]
        settings += [f"data.test_files=[{data}/test.txt]", "mem.budget_bytes=1GiB"]
        settings += ["model.hidden=[16,16]"] if self.small else []
        command = [sys.executable, "-m", "paddlebox", "train", "--run-dir", self.run_dir(name)]
        command += ["-c", "configs/deepfm_synthetic.yaml"]
        return command + [word for setting in settings for word in ("-o", setting)]

    def run_dir(self, name: str) -> str:
        return str(self.folder / name)

    def train(self, name: str, place: str, rows: int, *arguments: str) -> list[str]:
        """Train, and return the digests."""
        env = self.env if place == "gpu" else {}
        self.run(*self.training(name, place, rows, *arguments), env=env)
        summary = json.loads((self.folder / name / "summary.json").read_text())
        return [summary[digest] for digest in DIGESTS]

    def lines(self, name: str) -> list[Figures]:
        path = self.folder / name / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def few_rows(self) -> int:
        return 1000 if self.small else 20_000


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program with its children, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def busy_share(found: list[float]) -> Iterator[None]:
    """Appends the shares of the time with a kernel, as nvidia-smi samples them. Nothing without."""
    if shutil.which("nvidia-smi") is None:
        yield
        return
    asked = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
    process = subprocess.Popen(["nvidia-smi", *asked], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        found.extend(float(line) / 100 for line in process.stdout if line.strip().isdigit())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        reader.join()
        process.wait()


def of_run(lines: list[Figures], busy: list[float]) -> Figures:
    """The rate of the passes after the first ones, and the shares of the time of their steps."""
    later = lines[WARM_PASSES:] or lines[-1:]
    stages = [line["stages"]["train"] for line in later]
    steps = sum(stage["work_s"] for stage in stages)
    waited = sum(stage["before_s"] for stage in stages)
    whole = steps + waited
    shares = {
        name: sum(line["kernel_s"][name] for line in later) / whole
        for name in ("pull", "push", "plan")
    }
    working = [share for share in busy if share > 0]  # not while the process starts
    shares["feed"] = waited / whole
    shares["idle"] = 1.0 - statistics.fmean(working) if working else shares["feed"]
    shares["dense"] = 1.0 - shares["idle"] - sum(shares[n] for n in ("pull", "push", "plan"))
    samples = sum(line["samples"] for line in later)
    return {"samples_per_s": samples / whole, "in_steps": samples / steps, "shares": shares}
