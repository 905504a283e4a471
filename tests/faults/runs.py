"""Runs of a few passes, and what their processes say at their end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from paddlebox.serving.predictor import Predictor
from paddlebox.serving.source import RunSource
from tests.conftest import PATIENCE_S
from tests.faults.kill_run import Run

FIRST, ALL = "train-00[0-7]", "train-0[01]?"  # files of 4 and 10 passes


def ended(process: subprocess.Popen[str]) -> str:
    """What a process that has ended said; never a traceback."""
    _, log = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in log, log
    return log


def trained(run: Run, *more: str, **environment: str) -> None:
    process = run.start(*more, preexec=None, **environment)
    log = ended(process)
    assert process.returncode == 0, log


def refused(run: Run, code: int, *more: str) -> str:
    process = run.start(*more)
    log = ended(process)
    assert process.returncode == code, log
    return log.splitlines()[-1]


def feasigns_of(run_dir: Path) -> np.ndarray:
    chunks: list[np.ndarray] = []
    with RunSource(run_dir) as source:
        source.visit(lambda feasigns, _: chunks.append(feasigns.copy()))
    return np.concatenate(chunks)


def predictions(path: Path, feasigns: np.ndarray) -> bytes:
    """Of an export file, for 500 instances of one feasign a slot."""
    with Predictor(path, follow_s=0) as predictor:
        slots, width = predictor.generation.slots, predictor.generation.dense_width
        chosen = np.random.default_rng(1).choice(feasigns, 500 * slots)
        offsets = np.arange(len(chosen) + 1, dtype=np.int32)
        dense = np.ones((500, width), np.float32)
        return bytes(predictor.predict_feasigns(chosen, offsets, dense).tobytes())
