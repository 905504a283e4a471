"""A program trains tables, looks at the run, evaluates it, and predicts what evaluation does."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paddlebox
from paddlebox.api.run import _row
from paddlebox.errors import ConfigError, DataError, StoreError
from paddlebox.training import batch_loop
from paddlebox.training.evaluation import evaluate
from tests.conftest import tool
from tests.support.marks import long, slow
from tests.support.shared import once, own_copy

CONFIG: dict[str, Any] = {
    "name": "clicks",
    "model": {"type": "deepfm", "hidden": [8]},
    "table": {"embedx_dim": 4, "embedx_threshold": 0},
    "data": {"batch_size": 64, "shuffle": True},
    "checkpoint": {"keep_versions": 9},
}
SLOTS: list[dict[str, Any]] = [
    {"name": "click", "type": "label"},
    {"name": "user", "type": "sparse", "hash": True},
    {"name": "tags", "type": "sparse", "hash": True},
    {"name": "item", "type": "sparse"},
    {"name": "age", "type": "dense", "default": 40},
]


def rows(seed: int, count: int = 1500) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 40, count), rng.integers(1, 20, count)
    probability = 1 / (1 + np.exp(-np.sin(user) - np.cos(item)))
    return pd.DataFrame(
        {
            "click": (rng.random(count) < probability).astype(int),
            "user": [f"u{one}" for one in user],
            "tags": [[f"t{one % 5}", f"t{one % 7}"][: one % 3] for one in user],
            "item": np.where(item % 9 == 0, np.nan, item),
            "age": np.where(user % 11 == 0, np.nan, user + 20.0),
        }
    )


FIRST, SECOND, TEST = rows(1), rows(2), rows(3, 400)


def train_two(folder: Path) -> None:
    paddlebox.train(CONFIG, folder / "run", data=FIRST, slots=SLOTS, test_data=TEST)
    paddlebox.train(CONFIG, folder / "run", data=SECOND, test_data=TEST)


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> paddlebox.Run:
    """A run of two passes, which tests do not train on."""
    return paddlebox.open_run(once(tmp_path_factory, "api", train_two) / "run")


def dumped(run: paddlebox.Run, folder: Path) -> np.ndarray:
    """The predictions of the evaluation, in the order of the rows."""
    dump = folder / "dump.parquet"
    evaluate(run.config, run.path, slots=run.slots, dump=dump)
    return np.asarray(pq.read_table(dump)["prediction"])


# ---- without training


def test_a_folder_without_a_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    for folder, found in ((tmp_path, "a folder without a run"), (tmp_path / "x", "no such folder")):
        with pytest.raises(
            StoreError, match=f"expected the folder of a training run, found {found}"
        ):
            paddlebox.open_run(folder)
    with pytest.raises(ConfigError, match="run_dir: expected a path"):
        paddlebox.train(CONFIG, "")


def test_a_config_as_a_dict_has_the_errors_of_the_command_line(tmp_path: Path) -> None:
    wrong = {
        **CONFIG,
        "data": {"format": "csv", "slots": "s", "train_files": ["a"], "batchsize": 1},
    }
    with pytest.raises(ConfigError, match=r"^config: data.batchsize: .* data.batch_size\?$"):
        paddlebox.train(wrong, tmp_path / "run")


def test_the_history_has_the_measures_of_a_pass_flat() -> None:
    line = {
        "pass": 1,
        "files": ["a"],
        "loss": 0.5,
        "metrics": {"auc": 0.7, "gauc": {"wuauc": 0.6}, "tasks": {"buy": {"copc": 1.0}}},
        "test": {"loss": 0.4, "auc": 0.8, "calibration": [[1, 1, 0.5]]},
        "phases": {"join": {"loss": 0.3, "metrics": {"auc": 0.9}}},
        "hits": {"mem": 7},
    }
    assert _row(line) == {
        "pass": 1,
        "loss": 0.5,
        "auc": 0.7,
        "gauc.wuauc": 0.6,
        "tasks.buy.copc": 1.0,
        "join.loss": 0.3,
        "join.auc": 0.9,
        "test.loss": 0.4,
        "test.auc": 0.8,
    }


# ---- with a run


@pytest.mark.slow
def test_a_run_shows_what_it_has_trained(run: paddlebox.Run) -> None:
    assert run.version == 2
    assert run.summary["passes"] == 2
    assert run.config.data.batch_size == 64
    assert [slot.name for slot in run.slots.sparse] == ["user", "tags", "item"]
    history = run.history
    assert history["pass"].tolist() == [1, 2]
    assert history["samples"].tolist() == [1500, 1500]
    shown = ["loss", "auc", "copc", "logloss", "seconds", "samples_per_s"]
    assert history[shown].to_numpy().min() > 0
    assert all(dtype.kind in "ifOTU" for dtype in history.dtypes)
    assert not any(isinstance(value, dict | list) for value in history.iloc[0])


@pytest.mark.slow
def test_the_history_is_a_list_of_dicts_without_pandas(
    run: paddlebox.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run.history
    monkeypatch.setitem(sys.modules, "pandas", None)
    history = run.history
    assert [row["auc"] for row in history] == expected["auc"].tolist()
    assert [*history[0]] == [*expected.columns]


@pytest.mark.slow
def test_tools_evaluate_what_the_program_evaluates(run: paddlebox.Run) -> None:
    own = run.evaluate(TEST)
    assert own["samples"] == 400
    assert run.evaluate()["auc"] == own["auc"]
    done = tool("evaluate", run.path)  # in another folder
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["auc"] == own["auc"]
    assert own["auc"] > 0.6


@pytest.mark.slow
def test_predictions_are_those_of_the_evaluation_in_the_order_of_the_rows(
    run: paddlebox.Run, tmp_path: Path
) -> None:
    expected = dumped(run, tmp_path)
    assert len({*expected.round(5)}) > 100
    found = run.predict(TEST)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-6
    order = np.random.default_rng(7).permutation(len(TEST))
    without = TEST.drop(columns="click").iloc[order]
    for data in (without, pa.Table.from_pandas(without), without.to_dict("records")):
        assert np.abs(run.predict(data) - expected[order]).max() < 1e-6
    unknown = TEST.assign(click="not yet", other=None)
    assert np.abs(run.predict(unknown) - expected).max() < 1e-6
    assert run.predict(TEST[:0]).shape == (0,)


@pytest.mark.slow
def test_a_row_that_cannot_be_read_is_an_error_that_names_it(run: paddlebox.Run) -> None:
    wrong = TEST.assign(age=[*[30.0] * 399, float("inf")])
    with pytest.raises(DataError, match=r"1 of 400 .*malformed(.|\n)*row 399: .*inf"):
        run.predict(wrong)
    with pytest.raises(DataError, match=r"data: expected the columns .* found no user"):
        run.predict(TEST.rename(columns={"user": "usr"}))


@pytest.mark.slow
def test_other_data_are_a_further_pass_and_the_same_are_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = own_copy(tmp_path_factory, "api", train_two) / "run"
    before = (folder / "metrics.jsonl").read_text()
    for data in (FIRST, SECOND):
        assert paddlebox.train(CONFIG, folder, data=data, slots=SLOTS).version == 2
    with pytest.raises(ConfigError, match=r"another configuration(.|\n)*seed: was 1, now 7"):
        paddlebox.train({**CONFIG, "seed": 7}, folder, data=TEST)
    assert (folder / "metrics.jsonl").read_text() == before
    run = paddlebox.train(CONFIG, folder, data=TEST, slots=SLOTS)
    assert run.history["samples"].tolist() == [1500, 1500, 400]
    back = paddlebox.train(CONFIG, folder, data=FIRST[:700], back_to="1", test_data=TEST)
    assert back.history["samples"].tolist() == [1500, 700]
    assert 0 < back.evaluate()["auc"] < 1


@pytest.mark.parametrize("rule", [slow({"share": 0.2}), long({"column": "day", "at_least": 3})])
def test_what_is_held_out_of_a_table_is_what_the_run_is_evaluated_on(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    config = {**CONFIG, "data": {**CONFIG["data"], "holdout": rule}}
    data = FIRST.assign(day=np.arange(len(FIRST)) % 4)  # no slot reads it
    run = paddlebox.train(config, tmp_path / "run", data=data, slots=SLOTS)
    trained, held_out = run.history["samples"].sum(), run.evaluate()["samples"]
    assert trained + held_out == len(FIRST)
    assert held_out == len(FIRST) // 4 if "column" in rule else 200 < held_out < 400
    assert len(run.predict(FIRST)) == len(FIRST)


@pytest.mark.slow
def test_the_data_to_evaluate_on_stay_until_others_are_given(
    run: paddlebox.Run, tmp_path: Path
) -> None:
    first = paddlebox.train(CONFIG, tmp_path / "run", data=FIRST, slots=SLOTS)
    with pytest.raises(ConfigError, match="expected files to evaluate on"):
        first.evaluate()
    with pytest.raises(ConfigError, match=r"slots\.yaml item, hash: was false, now true"):
        other = [{**slot, "hash": True} if slot["name"] == "item" else slot for slot in SLOTS]
        paddlebox.train(CONFIG, tmp_path / "run", data=SECOND, slots=other)
    # Nothing is trained; the slots are those of the commit, not of the call that was refused.
    again = paddlebox.train(CONFIG, tmp_path / "run", data=FIRST, test_data=TEST)
    assert again.evaluate()["samples"] == len(TEST)
    after = paddlebox.train(CONFIG, tmp_path / "run", data=SECOND)
    assert after.evaluate()["auc"] == run.evaluate()["auc"]
    replaced = paddlebox.train(CONFIG, tmp_path / "run", data=SECOND, test_data=TEST[:100])
    assert replaced.evaluate()["samples"] == 100
    assert paddlebox.train(CONFIG, tmp_path / "run", data=FIRST, back_to=1).version == 1


@pytest.mark.slow
def test_a_callback_ends_the_run_after_its_pass(tmp_path: Path) -> None:
    seen: list[int] = []

    class Stop(paddlebox.Callback):
        def on_pass(self, line: dict[str, Any]) -> bool:
            seen.append(line["samples"])
            return True

    config = {**CONFIG, "trainer": {"epochs": 3}}
    run = paddlebox.train(config, tmp_path / "run", data=FIRST, slots=SLOTS, callbacks=[Stop()])
    assert seen == [len(FIRST)]
    assert len(run.history) == 1
    assert "Stop" in run.summary["stopped_by"]


@pytest.mark.slow
def test_vectors_of_values_are_those_in_the_file_of_the_slot(
    run: paddlebox.Run, tmp_path: Path
) -> None:
    users = ["u7", "u3"]
    file = run.embeddings("user", tmp_path / "user.parquet", values=users)
    table = pq.read_table(file).to_pydict()
    stored = dict(zip(table["value"], table["embedx"], strict=True))
    np.testing.assert_array_equal(run.embedding("user", users), [stored[one] for one in users])
    with pytest.raises(ConfigError, match="'u999' \\(no row\\)"):
        run.embedding("user", ["u7", "u999"])
    assert np.isnan(run.embedding("user", ["u999"], missing="nan")).all()


@pytest.mark.slow
def test_an_interrupted_call_continues_when_it_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(folder: str) -> paddlebox.Run:
        config = {**CONFIG, "trainer": {"grace_s": 0.0}}
        return paddlebox.train(config, tmp_path / folder, data=FIRST, slots=SLOTS)

    def interrupted(dataset: Any, step: Any, feed: Any, batch: int, samples: int) -> Any:
        if batch == 5:
            signal.raise_signal(signal.SIGINT)
        return one_step(dataset, step, feed, batch, samples)

    one_step = batch_loop._step
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(batch_loop, "_step", interrupted)
        call("stopped")
    assert paddlebox.open_run(tmp_path / "stopped").version == 0
    found, expected = call("stopped"), call("plain")
    assert found.summary["sparse_digest"] == expected.summary["sparse_digest"]
    assert found.summary["dense_digest"] == expected.summary["dense_digest"]


@pytest.mark.slow
def test_a_run_of_csv_files_predicts_what_pandas_reads_of_them(tmp_path: Path) -> None:
    for name, frame in {"train": FIRST, "test": TEST}.items():
        texts = frame.assign(tags=frame["tags"].map("|".join), item=frame["item"].astype("Int64"))
        texts.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "slots.yaml").write_text(json.dumps({"slots": SLOTS}))
    files = {
        name: [f"{tmp_path}/{name.split('_')[0]}.csv"] for name in ("train_files", "test_files")
    }
    data = {"format": "csv", "slots": str(tmp_path / "slots.yaml"), **files}
    model = {"model": {**CONFIG["model"], "click_prior": True}, "metrics": METRICS}
    run = paddlebox.train({**CONFIG, **model, "data": data}, tmp_path / "run")
    found = run.predict(pd.read_csv(tmp_path / "test.csv").drop(columns="click"))
    assert np.abs(found - dumped(run, tmp_path)).max() < 1e-6
    assert run.evaluate(pd.read_csv(tmp_path / "test.csv"))["auc"] == run.evaluate()["auc"]


METRICS = [{"name": "of_users", "method": "wuauc", "group": "user"}]


@pytest.mark.slow
def test_a_model_of_several_tasks_predicts_a_column_for_each(tmp_path: Path) -> None:
    frame = FIRST.assign(buy=FIRST["click"] * (FIRST["item"] > 9), weight=1.5)
    slots = [SLOTS[0], {"name": "buy", "type": "label"}, {"name": "weight", "type": "weight"}]
    config = {**CONFIG, "model": {"type": "shared_bottom", "hidden": [8]}}
    run = paddlebox.train(config, tmp_path / "run", data=frame, slots=slots + SLOTS[1:])
    found = run.predict(frame.drop(columns=["click", "buy", "weight"]))
    assert found.shape == (1500, 2)
    evaluated = run.evaluate(frame)["tasks"]
    for at, task in enumerate(("click", "buy")):
        assert abs(found[:, at].mean() - evaluated[task]["predicted_ctr"]) < 1e-6


@pytest.mark.slow
def test_sequences_of_users_are_predicted_in_the_order_of_the_rows(tmp_path: Path) -> None:
    rng, model = np.random.default_rng(5), {"width": 8, "heads": 2, "head_dim": 4, "hidden": [8]}
    frame = rows(5, 600)[["click", "user", "item"]].assign(ts=rng.permutation(600))
    frame["item"] = frame["item"].fillna(20)
    slots = {"slots": [SLOTS[0], SLOTS[1], SLOTS[3]], "tags": {"time": "ts"}}
    data = {**CONFIG["data"], "sequences": {"user": "user", "max_length": 20, "split": "mask"}}
    config = {**CONFIG, "data": data, "model": {"type": "hstu", "max_length": 20, **model}}
    run = paddlebox.train(config, tmp_path / "run", data=frame, test_data=frame, slots=slots)
    dump = tmp_path / "dump.parquet"
    evaluate(run.config, run.path, slots=run.slots, dump=dump)
    table = pq.read_table(dump)
    expected = np.empty(600, np.float32)
    expected[np.asarray(table["ins_id"]).astype(int)] = np.asarray(table["prediction"])
    assert np.abs(run.predict(frame) - expected).max() < 1e-6
    order = rng.permutation(600)
    assert np.abs(run.predict(frame.iloc[order]) - expected[order]).max() < 1e-6
    with pytest.raises(DataError, match="found no click"):  # the labels are a part of the history
        run.predict(frame.drop(columns="click"))
