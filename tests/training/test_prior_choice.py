"""Which slots have click priors if the config does not name them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config
from paddlebox.data.first_look import FirstLook
from paddlebox.data.prior_gain import FirstRows, slots_that_gain
from paddlebox.training.plan import plan_passes
from paddlebox.training.settle import chosen
from tests.ranks.threads import coordination
from tests.support.configs import make_config, make_slots
from tests.training.test_settle import commit, settle

SLOTS = make_slots(click="label", user="sparse", noise="sparse", tags="sparse")
ROWS = 3000


def drawn(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[list[int]]]:
    """Labels; users and tags, of which the label depends; and noise."""
    random = np.random.default_rng(2)
    user, noise = random.integers(1, 60, rows), random.integers(1, 60, rows)
    tags = [
        sorted({*random.integers(1, 9, count).tolist()}) for count in random.integers(0, 4, rows)
    ]
    liked = np.array([1 in of_row for of_row in tags])
    label = random.random(rows) < 0.2 + 0.4 * (user % 3 == 0) + 0.3 * liked
    return label.astype(int), user, noise, tags


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    lines = (
        f"{label},{user},{noise},{'|'.join(map(str, tags))}"
        for label, user, noise, tags in zip(*drawn(), strict=True)
    )
    path.write_text("click,user,noise,tags\n" + "\n".join(lines) + "\n")
    return path


def config(file: Path, **changes: Any) -> Config:
    data = {"train_files": [str(file)]} | changes.pop("data", {})
    model = {"type": "deepfm", "click_prior": "auto"} | changes.pop("model", {})
    return make_config(data=data, model=model, **changes)


def of_run(own: Config, file: Path) -> Any:
    return settle(own, file.parent / "run", slots=SLOTS).model.click_prior


def test_slots_whose_rates_predict_the_label_have_priors(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "paddlebox"):
        assert of_run(config(file), file) == ("user", "tags")
    assert "model.click_prior of 2 slots" in caplog.text
    assert of_run(config(file, model={"slots": ["user", "noise"]}), file) == ("user",)
    assert of_run(config(file, model={"slots": ["noise"]}), file) is False
    assert of_run(config(file, model={"slots": ["tags"]}), file) is False, "its values are frequent"


def test_columns_are_looked_at_as_text_is(file: Path, tmp_path: Path) -> None:
    label, user, noise, tags = drawn()
    path = tmp_path / "a.parquet"
    columns = {"click": label, "user": user, "noise": noise, "tags": tags}
    pq.write_table(pa.table(columns), path, row_group_size=700)
    assert of_run(config(path, data={"format": "parquet"}), path) == ("user", "tags")
    found = [
        FirstLook(own, SLOTS).first_rows(own.data.train_files, 1000)
        for own in (config(file), config(path, data={"format": "parquet"}))
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0].labels.tolist() == label[:1000].tolist()
    (_, instances), (values, _) = found[0].values_of([2, 0])
    assert instances.tolist() == [row for row in range(1000) for _ in tags[row]]
    assert [len({*values[user[:1000] == one].tolist()}) for one in {*user[:1000]}].count(1) > 50


def test_all_ranks_take_what_the_first_has_found(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = list[int](), FirstLook.first_rows

    def first_rows(own: FirstLook, *arguments: Any) -> FirstRows:
        looked.append(1)
        return look(own, *arguments)

    monkeypatch.setattr(FirstLook, "first_rows", first_rows)
    own = config(file)
    made = coordination(2, lambda world: chosen(own, SLOTS, plan_passes(own), world))
    assert [one.model.click_prior for one in made] == [("user", "tags")] * 2
    assert len(looked) == 1


def test_later_starts_keep_the_slots(file: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    commit(run_dir, settle(config(file), run_dir, slots=SLOTS))
    (tmp_path / "b.csv").write_text("click,user,noise,tags\n1,2,3,4\n")
    later = config(tmp_path / "b.csv")
    assert settle(later, run_dir, slots=SLOTS).model.click_prior == ("user", "tags")
    named = config(tmp_path / "b.csv", model={"click_prior": False})
    assert settle(named, run_dir, slots=SLOTS).model.click_prior is False


@pytest.mark.parametrize("named", [True, False, ["noise"]])
def test_what_a_config_names_is_kept(file: Path, named: Any) -> None:
    found = of_run(config(file, model={"click_prior": named}), file)
    assert found == (tuple(named) if isinstance(named, list) else named)


@pytest.mark.parametrize("of_source", [["noise"], False, True, "auto"])
def test_a_warm_start_takes_those_of_its_source(file: Path, tmp_path: Path, of_source: Any) -> None:
    source = config(file, model={"click_prior": of_source}).model_dump(mode="json")
    found = settle(config(file), tmp_path / "run", slots=SLOTS, source=source).model.click_prior
    assert found == (("noise",) if of_source == ["noise"] else of_source is True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": {"negative_rate": 0.5}}, "does not work together with data.negative_rate"),
        (
            {"data": {"pipe_command": "cat"}, "security": {"allow_commands": True}},
            "cannot be read in advance",
        ),
        (
            {"table": {"admission": {"min_count": 2}}, "trainer": {"epochs": 2}},
            "not all of their occurrences were counted",
        ),
    ],
)
def test_where_priors_cannot_be_the_run_has_none_and_says_why(
    file: Path, changes: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "paddlebox"):
        assert of_run(config(file, **changes), file) is False
    assert "model.click_prior false (" in caplog.text
    assert told in caplog.text


@pytest.mark.parametrize("model", ["lr", "fm", "mmoe"])
def test_other_models_have_none(file: Path, model: str, caplog: pytest.LogCaptureFixture) -> None:
    own = config(file, model={"type": model})
    with caplog.at_level(logging.INFO, "paddlebox"):
        assert not settle(own, file.parent / "run", slots=SLOTS).model.has_click_priors
    assert "click_prior" not in caplog.text


@pytest.mark.parametrize("rows", [0, 99, 20_000])
def test_rates_that_say_nothing_do_not_gain(rows: int) -> None:
    random = np.random.default_rng(rows)
    labels = (random.random(rows) < 0.3).astype(np.float32)
    ids = random.integers(1, 5000, rows).astype(np.uint64)
    first = FirstRows(labels, ids, np.arange(rows + 1))
    assert slots_that_gain(first, [0]) == []


def test_an_instance_does_not_see_its_own_label() -> None:
    """In folds of its own, each value occurs once: a rate with the label would be perfect."""
    labels = np.tile(np.array([0, 1], np.float32), 500)
    first = FirstRows(labels, np.arange(1, 1001, dtype=np.uint64), np.arange(1001))
    assert slots_that_gain(first, [0]) == []
