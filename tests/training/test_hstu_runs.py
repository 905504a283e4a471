"""Runs of hstu over sequences of users: killed, and in two phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.marks import long
from tests.training.test_sequences import MASK, PASSES, ROWS, folder, train

__all__ = ["folder"]

MODEL = {"type": "hstu", "width": 8, "heads": 2, "head_dim": 4, "hidden": [8], "max_length": 8,
         "use_cvm": False}  # fmt: skip


def rewritten(folder: Path, **sections: Any) -> None:
    """The config of the folder with other sections; None leaves one out."""
    path = folder / "config.yaml"
    config = {**yaml.safe_load(path.read_text()), **sections}
    path.write_text(yaml.safe_dump({n: v for n, v in config.items() if v is not None}))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_a_killed_run_ends_with_the_same_bits(folder: Path, program: str) -> None:
    rewritten(folder, model=MODEL)
    options = [f"trainer.program={program}", *MASK, "data.sequences.history={length: 4}"]
    options += ["data.shuffle=true"]
    unbroken = train(folder, "unbroken", *options)
    assert unbroken["error"] == ""
    assert unbroken["lines"][1]["sequences"]["carried"] > 0
    train(folder, "resumed", *options, kill_at=3)
    resumed = train(folder, "resumed", *options)
    for name in ("digests", "histories", "rows"):
        assert resumed[name] == unbroken[name]


@pytest.mark.slow
def test_join_reads_sequences_and_update_single_instances(folder: Path) -> None:
    """Two stages, as in GRAB: the sequences train first, then the same instances, shuffled."""
    dnn = {"type": "dnn", "hidden": [8], "use_cvm": False}
    rewritten(folder, model=None, optimizer=None,
              phases={"join": {"model": MODEL}, "update": {"model": dnn}})  # fmt: skip
    found = train(
        folder, "phases", *MASK, "data.sequences.history={length: 3}", "data.shuffle=true"
    )
    assert found["error"] == ""
    for number, line in enumerate(found["lines"]):
        for phase in ("join", "update"):
            assert line["phases"][phase]["samples"] == ROWS
        assert (line["sequences"]["carried"] > 0) == (number > 0)
    shows = sum(row[1] for row in found["rows"].values())
    assert shows == 2 * ROWS * PASSES  # two slots; each instance counts in one phase
    first, last = found["lines"][0]["phases"]["join"], found["lines"][-1]["phases"]["join"]
    assert last["loss"] < first["loss"]
