"""A run whose slot `a` decides the click, slot `b` says nothing and slot `c` is often empty."""

from __future__ import annotations

import random
from pathlib import Path

from tests.conftest import tool

SAMPLES = 3000  # of each file


def write_file(path: Path, seed: int) -> None:
    """MultiSlot text: ins_id, click, x, a, b, c."""
    rng = random.Random(seed)
    lines = []
    for number in range(SAMPLES):
        a, b = rng.randrange(1, 11), rng.randrange(101, 201)
        click = int(rng.random() < (0.7 if a <= 3 else 0.1))
        c = f"2 {rng.randrange(301, 311)} {rng.randrange(301, 311)}" if number % 4 == 0 else "1 0"
        lines.append(f"1 id-{number} 1 {click} 1 {rng.random():.3f} 1 {a} 1 {b} {c}\n")
    path.write_text("".join(lines))


def trained(data: Path, folder: Path, *overrides: str) -> Path:
    done = tool(
        "train", "-c", data / "config.yaml", "--run-dir", folder,
        "--trace", folder / "trace.json", "-o", "trainer.evaluate_passes=after", *overrides,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder
