"""Exact values of numbers have ids where they say more of the label than ranges, the same ids in
every start and in serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config, Slots
from paddlebox.config.stored import with_stored
from paddlebox.data.first_look import FirstLook
from paddlebox.data.prior_gain import exact_values_gain
from paddlebox.errors import ConfigError
from paddlebox.store.run_config import of_newest
from paddlebox.training.opening import read_slots
from paddlebox.training.plan import plan_passes
from paddlebox.training.settle import chosen
from tests.conftest import tool
from tests.ranks.threads import coordination
from tests.support.configs import make_config, make_slots, write_config, write_slots
from tests.training.test_settle import settle

ROWS = 4000
FIELDS: dict[str, Any] = {
    "click": "label",
    "age": "dense",
    "code": {"type": "dense", "log1p": True, "clip": [0, 500]},
    "user": {"hash": True},
}
SLOTS = make_slots(**FIELDS)
CODES = np.arange(10, 1010, 10)
MIDDLES = tuple((CODES[:-1] + 5.0).tolist())


def drawn(seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clicks, of which the rate grows with the age and is another one for each code."""
    random = np.random.default_rng(seed)
    age, code = random.integers(10, 90, ROWS), random.choice(CODES, ROWS)
    rate = 0.1 + 0.2 * (age > 50) + 0.5 * (code * 7919 % 64 < 20)
    return (random.random(ROWS) < rate).astype(int), age, code


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rows") / "train.csv")


def write(path: Path, seed: int = 1) -> Path:
    rows = zip(*(of.tolist() for of in drawn(seed)), strict=True)
    lines = [f"{click},{age},{code},u{age % 7}" for click, age, code in rows]
    path.write_text("\n".join(["click,age,code,user", *lines]) + "\n")
    return path


def config(file: Path, **changes: Any) -> Config:
    data = {"train_files": [str(file)]} | changes.pop("data", {})
    model = {"type": "deepfm"} | changes.pop("model", {})
    return make_config(data=data, model=model, **changes)


def of_run(own: Config, file: Path, **more: Any) -> Any:
    return settle(own, file.parent / "run", slots=SLOTS, **more).data.exact_values


def test_values_gain_if_each_has_a_rate_of_its_own() -> None:
    click, age, code = (of.astype(np.float32) for of in drawn())
    edges = np.linspace(0, 1000, 33).tolist()
    assert exact_values_gain(code, edges, click)
    assert not exact_values_gain(age, edges, click), "the rates of ranges say as much"
    assert not exact_values_gain(code, (), click), "a number of two values needs no ids"
    for rows, gains in ((8, True), (7, False)):  # of each value, all with its own label
        rare = np.repeat(np.arange(500, dtype=np.float32), rows)[
            np.random.default_rng(1).permutation(500 * rows)
        ]
        assert exact_values_gain(rare, [0, 250, 500], (rare * 7919 % 64 < 32) * 1.0) is gains
    same = np.log1p(code)  # the text of an edge is not the float32
    assert not exact_values_gain(same, [float(str(one)) for one in np.unique(same)], click)


def test_a_run_chooses_the_middles_between_values_as_they_are_read(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "paddlebox"):
        assert of_run(config(file), file) == {"code": MIDDLES}
    assert "data.exact_values of code" in caplog.text


def test_click_priors_and_rates_know_the_added_slot(file: Path) -> None:
    made = settle(config(file, model={"click_prior": "auto"}), file.parent / "run", slots=SLOTS)
    assert made.model.click_prior == ("code.values",)
    assert made.table.embed.learning_rate == 0.2
    many = make_slots(**FIELDS, **{key: {"hash": True, "column": "user"} for key in "abcdefg"})
    made = settle(config(file), file.parent / "run", slots=many)
    assert made.table.embed.learning_rate == round(1 / 9, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"exact_values": {}}},
        {"model": {"type": "lr"}},
        {"model": {"slots": ["user"]}},
        {"model": {"dense_ranges": "none"}},
        {"model": {"dense_scale": "none"}},
        {"data": {"pipe_command": "cat"}, "security": {"allow_commands": True}},
    ],
)
def test_a_run_chooses_none(file: Path, changes: dict[str, Any]) -> None:
    assert of_run(config(file, **changes), file) in ("auto", {})
    assert of_run(config(file), file, filled=True) == "auto"


def test_a_slot_of_that_name_is_left_alone(file: Path) -> None:
    own = make_slots(**FIELDS, **{"code.values": {"bucket": {"of": "code", "boundaries": [50]}}})
    assert settle(config(file), file.parent / "run", slots=own).data.exact_values == {}


def test_a_run_that_starts_with_another_one_takes_its_boundaries(file: Path) -> None:
    stored = json.loads(settle(config(file), file.parent / "run", slots=SLOTS).canonical_json())
    stored["data"]["exact_values"]["code"] = [50.0]
    source = {"source": stored, "filled": True}
    assert of_run(config(file), file, **source) == {"code": (50.0,)}
    stored["data"]["exact_values"]["gone"] = [1.0]  # no slot of this run
    assert of_run(config(file), file, **source) == {"code": (50.0,)}
    named = config(file, data={"exact_values": {}})
    assert of_run(named, file, **source) == {}


@pytest.mark.parametrize("data", [{}, {"exact_values": "auto"}])
def test_a_later_start_continues_with_the_boundaries(file: Path, data: dict[str, Any]) -> None:
    made = settle(config(file), file.parent / "run", slots=SLOTS)
    stored = json.loads(made.canonical_json())
    assert with_stored(config(file, data=data), stored, "it").data.exact_values == {"code": MIDDLES}
    named = config(file, data={"exact_values": {}})
    assert with_stored(named, stored, "it").data.exact_values == {}


def test_all_ranks_take_what_the_first_has_found(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = list[int](), FirstLook.exact_values

    def exact_values(own: FirstLook, *arguments: Any) -> dict[str, tuple[float, ...]]:
        looked.append(1)
        return look(own, *arguments)

    monkeypatch.setattr(FirstLook, "exact_values", exact_values)
    own = config(file)
    made = coordination(2, lambda world: chosen(own, SLOTS, plan_passes(own), world))
    assert [one.data.exact_values for one in made] == [{"code": MIDDLES}] * 2
    assert len(looked) == 1


def test_added_slots_have_the_order_of_slots_yaml_and_are_added_once() -> None:
    made = SLOTS.with_exact_values({"code": (5.0,), "age": (1.0, 2.0)})
    assert [slot.name for slot in made.sparse] == ["user", "age.values", "code.values"]
    assert made.with_exact_values({"code": (5.0,), "age": (1.0, 2.0)}) == made
    assert SLOTS.with_exact_values("auto") == SLOTS.with_exact_values({}) == SLOTS


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    for values, error in (
        ({"agee": [1.0]}, r"data\.exact_values: expected a dense slot .* found 'agee'.*'age'"),
        ({"user": [1.0]}, "expected a dense slot of dim 1, found 'user'"),
        ({"age": [2.0, 1.0]}, r"age\.values.*expected ascending numbers, found .2\.0, 1\.0"),
        ({"age": []}, r"data\.exact_values\.age: expected at least one boundary, found none"),
    ):
        with pytest.raises(ConfigError, match=error):
            read_slots(config(tmp_path, data={"exact_values": values}), SLOTS)
    made = SLOTS.with_exact_values({"age": (1.0,)})
    with pytest.raises(ConfigError, match=r"slot 'age\.values' with other boundaries than the one"):
        made.with_exact_values({"age": (2.0,)})


@pytest.mark.slow
def test_later_starts_evaluations_saves_and_servers_have_the_ids_of_the_first_start(
    tmp_path: Path,
) -> None:
    import pyarrow.parquet as pq

    from paddlebox.serving import Predictor
    from paddlebox.serving.source import SaveSource

    files = [str(write(tmp_path / f"{number}.csv", number)) for number in range(2)]
    write_slots(tmp_path, **FIELDS)
    model = {"type": "deepfm", "hidden": [8], "click_prior": "auto"}

    def train(run: str, *files: str, **more: Any) -> Slots:
        data = {"train_files": files, "files_per_pass": 1, "test_files": [*files], "batch_size": 64}
        own = write_config(tmp_path, data=data, model=model, trainer={"epochs": 1}, **more)
        done = tool("train", "-c", own, "--run-dir", tmp_path / run)
        assert done.returncode == 0, done.stderr
        return of_newest(tmp_path / run)[1]

    first, second = train("run", files[0]), train("run", *files)
    assert first == second
    assert [slot.name for slot in first.sparse] == ["user", "code.values"]
    dump = tmp_path / "dump.parquet"
    done = tool("evaluate", tmp_path / "run", "--dump", dump)
    assert done.returncode == 0, done.stderr
    evaluated = np.asarray(pq.read_table(dump)["prediction"])
    again = tmp_path / "again.parquet"
    own = f"data.slots={tmp_path / 'slots.yaml'}"  # which lacks the added slot
    done = tool("evaluate", tmp_path / "run", "--dump", again, "-o", own)
    assert done.returncode == 0, done.stderr
    assert np.asarray(pq.read_table(again)["prediction"]).tolist() == evaluated.tolist()
    done = tool("export", tmp_path / "run", "--out", tmp_path / "m.export")
    assert done.returncode == 0, done.stderr
    _, age, code = drawn(0)
    asked = [
        {"age": float(a), "code": float(c), "user": f"u{a % 7}"}
        for a, c in zip(age, code, strict=True)
    ]
    with Predictor(tmp_path / "m.export") as predictor:
        served = predictor.predict(asked)
    np.testing.assert_allclose(served, evaluated[: len(asked)], atol=1e-6)
    by_code = {c: float(np.mean(served[code == c])) for c in (20, 30, 40)}
    assert len({round(of, 2) for of in by_code.values()}) > 1

    saves = tmp_path / "saves"
    train("saving", files[0], save={"out": str(saves)})
    (base,) = saves.rglob("base*")
    assert SaveSource(base).slots == of_newest(tmp_path / "saving")[1]


@pytest.mark.slow
def test_further_data_of_a_program_have_the_same_slots(tmp_path: Path) -> None:
    import pandas as pd

    import paddlebox

    own = {"name": "frame", "model": {"type": "dnn", "hidden": [4]}, "trainer": {"epochs": 1}}
    slots = [{"name": "click", "type": "label"}, {"name": "code", "type": "dense"}]
    for seed in (1, 2):
        click, _, code = drawn(seed)
        data = pd.DataFrame({"click": click, "code": code})
        paddlebox.train(own, tmp_path / "run", data=data, slots=slots if seed == 1 else None)
    names = [slot.name for slot in of_newest(tmp_path / "run")[1].sparse]
    assert names == ["_intercept", "code.values"]
