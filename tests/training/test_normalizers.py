"""zscore, minmax and quantile have the constants of the first rows, in training, a resumed run and
serving alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paddlebox.config import Slots, load_slots
from paddlebox.data.normalizers import constants_of
from paddlebox.errors import ConfigError
from paddlebox.store.group import ONE_RANK
from paddlebox.store.run_config import of_newest
from paddlebox.training.plan import plan_passes
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.settled_slots import settled_slots
from tests.conftest import tool
from tests.support.configs import make_config, make_slots, write_config, write_slots

SLOTS: dict[str, Any] = {
    "click": "label",
    "z": {"type": "dense", "expr": "zscore(price)", "default": 0},
    "range": {"type": "dense", "expr": "minmax(price * 2)", "default": 0, "clip": [0, 1]},
    "rank": {"type": "dense", "expr": "quantile(price)", "default": 0.5},
    "user": {"hash": True},
}


def fit(path: Path, lines: list[str], slots: Slots) -> list[tuple[float, ...]]:
    path.write_text("\n".join(["click,user,price", *lines]))
    return constants_of(make_config(data={"train_files": [str(path)]}), slots, [str(path)])


def test_constants_are_those_of_the_rows_with_a_value(tmp_path: Path) -> None:
    lines = ["0,u,1", "1,u,3", "0,u,", "1,v,5", "0,v,5", "1,v,6"]
    zscore, minmax, quantile = fit(tmp_path / "a.csv", lines, make_slots(**SLOTS))
    assert np.allclose(zscore, (4.0, float(np.std([1, 3, 5, 5, 6]))))
    assert minmax == (2, 12)
    assert quantile[::2] == (1, 3, 5, 6)
    assert np.all(np.diff(quantile[1::2]) > 0)
    assert abs(quantile[5] - 0.6) < 1 / 32  # the middle of the shares at which 5 is


def test_an_equal_value_everywhere_becomes_0(tmp_path: Path) -> None:
    zscore, minmax, quantile = fit(tmp_path / "a.csv", ["0,u,7"] * 3, make_slots(**SLOTS))
    assert zscore == (7, 1)
    assert minmax == (14, 28)
    assert quantile == (7, 0.5)


def test_a_column_without_values_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slot 'z': expr zscore\(price\): .* give the slot"):
        fit(tmp_path / "a.csv", ["0,u,"] * 3, make_slots(**SLOTS))


def test_constants_that_a_slot_names_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,user,price\n0,u,1\n1,u,3\n")
    named = {**SLOTS, "z": {**SLOTS["z"], "constants": [10, 2]}}
    own = make_config(data={"train_files": [str(tmp_path / "a.csv")]})
    request = ResumeRequest(tmp_path / "run", own, make_slots(**named))
    made = settled_slots(request, plan_passes(own), ONE_RANK)
    assert [slot.constants for slot in made.slots][1:3] == [(10, 2), (2, 6)]
    source = make_slots(**{**named, "rank": {**SLOTS["rank"], "expr": "quantile(age)"}})
    again = settled_slots(ResumeRequest(tmp_path / "run", own, make_slots(**SLOTS)),
                          plan_passes(own), ONE_RANK, source)  # fmt: skip
    assert again.slots[1].constants == (10, 2)
    assert again.slots[3].constants is not None
    assert len(again.slots[3].constants) == 4  # another expression: of the first rows
    with pytest.raises(ConfigError, match="first rows, which cannot be read in advance"):
        settled_slots(request, [], ONE_RANK)


def test_constants_need_a_normalizer() -> None:
    with pytest.raises(ValueError, match="expected an expr that is zscore, minmax or quantile"):
        make_slots(click="label", x={"type": "dense", "expr": "price", "constants": [1, 2]})


@pytest.mark.slow
def test_a_data_frame_is_trained_and_predicted(tmp_path: Path) -> None:
    import paddlebox

    rng = np.random.default_rng(1)
    data = pd.DataFrame({"click": rng.integers(2, size=300), "price": rng.random(300)})
    slots = [
        {"name": "click", "type": "label"},
        {"name": "z", "type": "dense", "expr": "zscore(price)"},
        {"name": "side", "type": "sparse", "hash": True, "expr": "lookup('t', price > 0.5)"},
    ]
    own = {"slots": slots, "lookups": {"t": {"true": "much"}}}
    config = {"name": "frame", "model": {"type": "dnn", "hidden": [4]}}
    run = paddlebox.train(config, tmp_path / "run", data=data, slots=own)
    assert run.summary["samples"] >= 300
    constants = of_newest(tmp_path / "run")[1].slots[1].constants
    assert constants == pytest.approx([data["price"].mean(), data["price"].std(ddof=0)])


@pytest.mark.slow
def test_a_resumed_run_and_a_server_have_the_constants_of_the_first_start(tmp_path: Path) -> None:
    from paddlebox.serving import Predictor

    rng = np.random.default_rng(1)
    for number, scale in enumerate((1.0, 50.0)):
        rows = [f"{rng.integers(2)},u{rng.integers(9)},{rng.random() * scale}" for _ in range(300)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["click,user,price", *rows]) + "\n")
    write_slots(tmp_path, **SLOTS)
    files = [str(tmp_path / f"{number}.csv") for number in range(2)]

    def train(*files: str) -> Slots:
        data = {"train_files": files, "files_per_pass": 1, "test_files": [*files], "batch_size": 32}
        run = write_config(tmp_path, data=data, save={"out": str(tmp_path / "saves")})
        done = tool("train", "-c", run, "--run-dir", tmp_path / "run")
        assert done.returncode == 0, done.stderr
        return of_newest(tmp_path / "run")[1]

    first, second = train(files[0]), train(*files)
    assert first == second
    constants = [slot.constants for slot in second.slots]
    assert constants[1] is not None
    assert 0.4 < constants[1][0] < 0.6
    for path in (tmp_path / "saves").glob("*/*/slots.yaml"):
        assert load_slots(path) == second, path
    dump = tmp_path / "dump.parquet"
    done = tool("evaluate", tmp_path / "run", "--dump", dump)
    assert done.returncode == 0, done.stderr
    import pyarrow.parquet as pq

    done = tool("export", tmp_path / "run", "--out", tmp_path / "m.export")
    assert done.returncode == 0, done.stderr
    with Predictor(tmp_path / "m.export") as predictor:
        lines = [line.split(",") for line in (tmp_path / "0.csv").read_text().splitlines()[1:]]
        served = predictor.predict([{"user": u, "price": float(p)} for _, u, p in lines])
    evaluated = np.asarray(pq.read_table(dump)["prediction"])[:300]
    np.testing.assert_allclose(served, evaluated, atol=1e-6)
    assert len({*evaluated.round(5)}) > 100
    stored = json.loads((tmp_path / "run" / "slots.json").read_text())
    assert stored["slots"][1]["constants"] == list(constants[1])
