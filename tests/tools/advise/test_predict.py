"""The model of costs, with numbers that can be worked out by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config
from paddlebox.errors import ConfigError
from paddlebox.tools.advise.calibrate import Sizes, busy_cores, weights_of
from paddlebox.tools.advise.predict import Prediction, predict
from paddlebox.tools.advise.rates import Rates
from paddlebox.tools.advise.workload import Workload, growth
from tests.support.configs import make_config

GIB = 1 << 30
FREE = Rates(
    format="csv",
    parse_byte_s=0.0,
    key_id_s=0.0,
    pack_id_s=0.0,
    stage_row_s=0.0,
    commit_row_s=0.0,
    commit_s=0.0,
    pull_id_s=0.0,
    push_id_s=0.0,
    step_s=0.0,
    flops_per_s=1e30,
    dense_cores=1.0,
    metric_s=0.0,
    first_step_s=0.0,
    end_s=0.0,
    cores=4.0,
    disk_read_bytes_per_s=1e30,
)
SIZES = Sizes(pass_row_bytes=100, stored_row_bytes=72, max_pass_rows=10**9, weights=1000)
# 1000 instances a pass, of 100 bytes and 10 ids, every id a new one.
WORK = Workload((1000, 1000), 2, 100.0, 10.0, 10.0, 1.0)


def config(**sections: object) -> Config:
    return make_config(**{"data": {"batch_size": 100}, **sections})


def told(rates: dict[str, Any], work: Workload = WORK, **sections: object) -> Prediction:
    return predict(config(**sections), work, dataclasses.replace(FREE, **rates), SIZES)


@pytest.mark.parametrize(
    ("rates", "part", "seconds", "regime"),
    [
        # 6 * 1000 weights * 2000 instances = 12 M floating point operations.
        ({"flops_per_s": 6e6}, "dense", 2.0, "dense"),
        ({"step_s": 0.1}, "step", 2.0, "dense"),  # 20 batches
        ({"first_step_s": 3.0}, "step", 3.0, "dense"),  # once
        ({"end_s": 0.5}, "step", 1.0, "dense"),  # of each pass
        ({"metric_s": 0.001}, "metrics", 2.0, "dense"),
        ({"pull_id_s": 1e-4}, "pull", 2.0, "sparse"),  # 20,000 ids
        ({"push_id_s": 2e-4}, "push", 4.0, "sparse"),
        # 100,000 bytes a pass on 4 threads; nothing trains that would hide them.
        ({"parse_byte_s": 1e-4}, "load", 5.0, "feeder"),
        ({"key_id_s": 1e-4}, "load", 2.0, "feeder"),  # one thread
        ({"stage_row_s": 1e-4}, "stage", 2.0, "ssd"),
        ({"commit_s": 2.0}, "commit", 2.0, "ssd"),  # the last is not waited for
        ({"commit_row_s": 1e-4}, "commit", 1.0, "ssd"),
    ],
)
def test_each_cost_takes_its_time(
    rates: dict[str, Any], part: str, seconds: float, regime: str
) -> None:
    found = told(rates)
    assert found.parts[part] == pytest.approx(seconds)
    # What is beside it, if anything, is that threads want more cores than there are.
    assert found.seconds == pytest.approx(seconds + found.parts["crowding"])
    assert found.samples_per_s == pytest.approx(2000 / found.seconds)
    assert found.bottleneck == regime


def test_the_load_of_the_next_pass_is_hidden_behind_training_and_the_first_is_not() -> None:
    # A pass is loaded in 1 s (key on one thread) and trained in 3 s.
    found = told({"key_id_s": 1e-4, "pull_id_s": 3e-4})
    assert found.parts["load"] == pytest.approx(1.0)
    # Loaded in 3 s and trained in 1 s: 3 s first, then 2 s that training does not hide.
    found = told({"key_id_s": 3e-4, "pull_id_s": 1e-4})
    assert found.parts["load"] == pytest.approx(5.0)
    assert found.bottleneck == "feeder"


def test_a_commit_is_hidden_behind_the_training_of_the_next_pass() -> None:
    # 1.5 s of syncing and 1 s of writing rows beside a pass of 2 s, 0.5 s of which it waits for.
    rates = {"commit_s": 1.5, "commit_row_s": 1e-4, "pull_id_s": 2e-4}
    assert told(rates).parts["commit"] == pytest.approx(0.5)
    assert told(rates).parts["crowding"] == 0
    # On one processor the rows' second is one more that the pass takes.
    assert told({**rates, "cores": 1.0}).parts["crowding"] == pytest.approx(1.0)


def test_threads_that_want_more_than_the_cores_take_longer() -> None:
    # Training 2 s a pass on one core; beside the first, parsing the second takes 8 s of threads.
    rates = {"pull_id_s": 2e-4, "parse_byte_s": 8e-5}
    assert told({**rates, "cores": 8.0}).parts["crowding"] == 0
    # (2 + 8) / 4 processors = 2.5 s, 0.5 more than the training takes.
    assert told({**rates, "cores": 4.0}).parts["crowding"] == pytest.approx(0.5)


def test_rows_that_memory_does_not_hold_are_read_from_the_disk_and_new_ones_are_not() -> None:
    rates = {"disk_read_bytes_per_s": 80_000.0}  # 1000 rows of 72 + 8 bytes a second
    work = Workload((1000, 1000), 1, 100.0, 10.0, 10.0, 1.0)  # two epochs over 10,000 rows
    assert told(rates, work, mem={"budget_bytes": GIB}).parts["stage"] == 0
    assert told(rates, WORK, mem={"budget_bytes": 1 << 20}).parts["stage"] == 0  # all are new
    # All of the rows of the pass before are at hand; of passes before that MEM has its share.
    three = Workload((1000, 1000, 1000), 3, 100.0, 10.0, 10.0 * 1000**0.5, 0.5)
    found = told(rates, three, mem={"budget_bytes": 1 << 20})
    unique, rows = three.unique(1000), three.unique(2000)
    known = unique - (three.unique(3000) - rows)
    share = 1 - min(1.0, ((1 << 20) // 80 + unique) / rows)
    assert found.parts["stage"] == pytest.approx(known * share / 1000)


def test_sizes_of_the_tiers() -> None:
    found = told({}, hbm={"budget_bytes": GIB}, mem={"budget_bytes": 1 << 20})
    assert found.rows == 20_000
    # Two passes of 10,000 rows; MEM's budget, less than 20,000 rows of 80 bytes.
    assert found.memory_bytes["hbm"] == 2 * 10_000 * 100
    assert found.memory_bytes["mem"] == 1 << 20
    assert found.memory_bytes["feeder"] == 2 * 1000 * (16 + 12 * 10)
    # Rows times space_target, and weights with their two moments.
    assert found.disk_bytes == int(20_000 * 80 * 1.28) + 12 * 1000
    assert any("mem.budget_bytes" in note for note in found.notes)


def test_a_pass_over_the_budget_is_predicted_to_be_split() -> None:
    sizes = dataclasses.replace(SIZES, max_pass_rows=4_000)
    found = predict(config(), WORK, FREE, sizes)
    assert found.parts_a_pass == 3
    assert any("split into 3 parts" in note for note in found.notes)


def test_unique_ids_grow_as_the_sample_did() -> None:
    assert growth(500, 1000, 1000, 2000) == pytest.approx(1.0)
    assert growth(500, 1000, 2000, 2000) == pytest.approx(0.5)
    assert growth(500, 1000, 1000, 1000) == 0.0
    assert Workload((4,), 1, 1.0, 2.0, 3.0, 0.5).unique(4) == 6
    assert Workload((4,), 1, 1.0, 1.0, 3.0, 0.5).unique(4) == 4  # no more than there are ids


def test_the_state_of_an_optimizer_is_not_a_weight() -> None:
    state = {
        "linear_0.w_0": np.zeros((3, 4)),
        "linear_0.b_0": np.zeros(4),
        "linear_0.w_0_moment1_0": np.zeros((3, 4)),
        "linear_1.w_0": np.zeros((4, 5)),
    }
    assert weights_of(state) == 3 * 4 + 4 * 5


def test_one_busy_thread_gets_one_processor_at_most() -> None:
    assert 0 < busy_cores(1, 0.05) < 1.2


def test_rates_are_kept_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    FREE.save(path)
    assert Rates.load(path) == FREE
    text = path.read_text()
    for wrong, words in (
        ("nonsense", "is not JSON"),
        ("[]", "keys of this version"),
        (text.replace("pull_id_s", "pull"), "missing or unknown: pull, pull_id_s"),
        (text.replace('"cores": 4.0', '"cores": "4"'), "cores is '4', expected a number"),
        (text.replace('"cores": 4.0', '"cores": -1'), "cores is -1"),
        (text.replace('"cores": 4.0', '"cores": 0'), "cores is 0, expected a number above 0"),
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=words):
            Rates.load(path)
    with pytest.raises(ConfigError, match="No such file"):
        Rates.load(tmp_path / "absent")
