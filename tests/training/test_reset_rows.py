"""`trainer.reset_rows`: what an epoch begins with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from paddlebox.training.pass_line import Lines
from paddlebox.training.pass_loop import PassLoop
from paddlebox.training.plan import PlannedPass
from tests.conftest import tool
from tests.support.configs import make_config, write_config, write_slots


def write_rows(path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    users = random.integers(0, 40, 300)
    clicks = random.random(300) < 0.1 + 0.02 * users
    lines = [f"{click:d},u{user}" for click, user in zip(clicks, users, strict=True)]
    path.write_text("\n".join(["click,user", *lines]) + "\n")


def rows_of(folder: Path, epochs: int, **trainer: Any) -> np.ndarray:
    """The rows after training of two files for some epochs."""
    from paddlebox.config import load_config
    from paddlebox.training.opening import open_table

    write_slots(folder, click="label", user={"hash": True})
    for number in range(2):
        write_rows(folder / f"train-{number}.csv", number)
    config = write_config(
        folder,
        data={"train_files": [f"{folder}/train-*.csv"], "files_per_pass": 1, "batch_size": 32},
        model={"type": "lr"},
        table={"embedx_dim": 1},
        trainer={"epochs": epochs, **trainer},
        optimizer={"learning_rate": 0.01},
    )
    run_dir = folder / f"run-{epochs}-{len(trainer)}"
    done = tool("train", "-c", config, "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    told = f"epoch {epochs}: the rows have the weights of new rows"
    assert (told in done.stderr) == bool(trainer)
    with open_table(load_config(config), run_dir / "store", read_only=True) as table:
        feasigns, rows = table.first.read_all()
    return np.asarray(rows)[np.argsort(feasigns)]


@pytest.mark.slow  # each run is a process that imports Paddle
def test_a_later_epoch_trains_from_new_rows_and_counts_on(tmp_path: Path) -> None:
    once, twice = rows_of(tmp_path, 1), rows_of(tmp_path, 2)
    reset = rows_of(tmp_path, 2, reset_rows=True)
    np.testing.assert_array_equal(reset[:, 1:3], 2 * once[:, 1:3])  # shows and clicks
    np.testing.assert_array_equal(reset[:, 1:3], twice[:, 1:3])
    # The squared gradients since the reset are those of one epoch.
    assert 0.7 < reset[:, 7].sum() / once[:, 7].sum() < 1.3
    assert twice[:, 7].sum() / once[:, 7].sum() > 1.5


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({}, r"reset_rows needs trainer\.epochs above 1"),
        ({"trainer": {"reset_rows": True, "epochs": 2}, "save": {"out": "saves"}}, "a delta"),
    ],
)
def test_reset_rows_without_epochs_or_with_saves_is_an_error(
    sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        make_config(**{"trainer": {"reset_rows": True}, **sections})


def test_an_epoch_resets_once_also_if_the_run_was_killed_before_its_first_commit() -> None:
    plan = [PlannedPass(1, 1, ["a"]), PlannedPass(2, 2, ["a"])]
    life = SimpleNamespace(resets=0)

    def reset_rows() -> None:
        life.resets += 1

    life.reset_rows = reset_rows
    table = SimpleNamespace(life=life)

    def begins(number: int, last: dict[str, Any]) -> int:
        """What a start that resumes after this line does before a pass. Returns its entry."""
        point = SimpleNamespace(plan=plan, lines=Lines(1, [last] if last else []))
        training = SimpleNamespace(config=None, world=None, table=table, dataset=None)
        loop = PassLoop(cast(Any, training), cast(Any, SimpleNamespace()), cast(Any, point), [])
        return loop._reset_rows(plan[number - 1])

    first = {"samples": 1, "resets": begins(1, {})}
    assert begins(2, first) == 1
    assert begins(2, first) == 1  # killed, and resumed after the first pass
    assert life.resets == 1
