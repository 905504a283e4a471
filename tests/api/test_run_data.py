"""The data that a program gives a run are files in its folder, written once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

import paddlebox
from paddlebox.api.run_data import RunData
from paddlebox.config import Config, load_slots
from paddlebox.errors import ConfigError, DataError
from paddlebox.store import run_config
from tests.support.configs import make_config

CONFIG: dict[str, Any] = {"name": "run", "model": {"type": "lr"}}
SLOTS = [
    {"name": "click", "type": "label"},
    {"name": "user", "type": "sparse", "hash": True},
    {"name": "1e3", "type": "dense", "default": 0},  # a number, if it is not quoted
]


def frame(*users: str) -> pd.DataFrame:
    return pd.DataFrame({"click": 0, "user": users, "1e3": 0.5, "other": "unused"})


def written(
    run_dir: Path, data: Any, test_data: Any = None, slots: Any = SLOTS, **more: Any
) -> Config:
    options = {"back_to": "", "fresh": False, **more}
    return RunData(CONFIG, run_dir, slots).write(data, test_data, **options)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the passes that the run has committed, by their files."""

    def commit(files: Sequence[str], passes: int = -1, **keys: Any) -> None:
        config = make_config(data={"train_files": list(files), "files_per_pass": 1}, **keys)
        cursor = {"pass": len(files) if passes < 0 else passes}
        record = SimpleNamespace(cursor=cursor, config={"config": config.model_dump(mode="json")})
        monkeypatch.setattr(run_config, "record_of", lambda *_: record)

    return commit


def names(config: Config) -> list[str]:
    return [Path(file).name.split("-")[1] for file in config.data.train_files]


def test_the_files_hold_the_columns_that_slots_read(tmp_path: Path) -> None:
    config = written(tmp_path / "run", frame("a", "b"), frame("c"))
    (train,), (test,) = config.data.train_files, config.data.test_files
    assert pa.ipc.open_file(train).read_all().to_pydict() == {
        "1e3": [0.5, 0.5],
        "click": [0, 0],
        "user": ["a", "b"],
    }
    assert pa.ipc.open_file(test).read_all()["user"].to_pylist() == ["c"]
    assert Path(train).is_absolute()
    assert (config.data.format, config.data.files_per_pass) == ("arrow", 1)
    assert [slot.name for slot in load_slots(config.data.slots).slots] == ["click", "user", "1e3"]
    assert yaml.safe_load(Path(config.data.slots).read_text())["slots"] == SLOTS


def test_the_same_data_are_written_once(tmp_path: Path) -> None:
    first = written(tmp_path, frame("a"), frame("t"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("*.arrow")}
    assert (
        written(tmp_path, pa.Table.from_pandas(frame("a")), frame("t").to_dict("records")) == first
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("*.arrow")} == before


def test_other_data_are_a_further_pass_after_those_that_are_trained(
    tmp_path: Path, committed: Any
) -> None:
    one = written(tmp_path, frame("a")).data.train_files
    failed = written(tmp_path, frame("b"))  # nothing is committed: it takes the place of the first
    assert names(failed) == ["00001"]
    committed(one)
    two = written(tmp_path, frame("c"))
    assert (two.data.train_files[:1], names(two)) == (one, ["00001", "00002"])
    committed(two.data.train_files, passes=1)  # the second pass was interrupted
    assert written(tmp_path, frame("c")) == two
    assert written(tmp_path, frame("a")).data.train_files == one
    committed(two.data.train_files)
    assert written(tmp_path, frame("a")) == two  # nothing new


def test_files_that_a_trained_config_does_not_name_are_removed(tmp_path: Path) -> None:
    failed = written(tmp_path, frame("b"), frame("t"))
    (tmp_path / "data" / "train-00001-0123456789abcdef.arrow.tmp").touch()  # of a killed process
    (tmp_path / "data" / "notes.txt").touch()
    data = RunData(CONFIG, tmp_path, SLOTS)
    trained = data.write(frame("a"), frame("u"), back_to="", fresh=False)
    data.remove_others(trained)
    kept = {Path(path).name for path in (*trained.data.train_files, *trained.data.test_files)}
    assert {*os.listdir(tmp_path / "data")} == kept | {"slots.yaml", "notes.txt"}
    assert not Path(failed.data.test_files[0]).exists()


def test_a_torn_file_of_a_killed_process_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr("os.unlink", lambda *_: None)  # a killed process removes nothing
        patch.setattr("paddlebox.api.run_data.write_durably", lambda *_: None)
        written(tmp_path, frame("a"))
    (torn,) = (tmp_path / "data").glob("*.arrow.tmp")
    torn.write_bytes(torn.read_bytes()[:100])
    (file,) = written(tmp_path, frame("a")).data.train_files
    assert pa.ipc.open_file(file).read_all().num_rows == 1


def test_fresh_moves_the_run_aside_with_its_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written(run, frame("a"))
    with pytest.raises(DataError):
        written(run, frame("b").drop(columns="user"), fresh=True)
    assert not (tmp_path / "run.old-1").exists()
    config = written(run, frame("b"), fresh=True, slots=None)
    assert names(config) == ["00001"]
    assert len([*(tmp_path / "run.old-1" / "data").glob("*.arrow")]) == 1
    assert len([*(run / "data").glob("*.arrow")]) == 1


def test_data_between_epochs_and_data_of_a_moved_run_are_refused(
    tmp_path: Path, committed: Any
) -> None:
    files = written(tmp_path, frame("a")).data.train_files
    committed(files, trainer={"epochs": 5})
    assert written(tmp_path, frame("a")).data.train_files == files
    with pytest.raises(ConfigError, match=r"trainer.epochs or data.files_per_pass above 1.*fresh"):
        written(tmp_path, frame("b"))
    committed(["/gone/train-00001-0123456789abcdef.arrow"])
    with pytest.raises(ConfigError, match=r"expected /gone/train-00001.*source="):
        written(tmp_path, frame("b"))


@pytest.mark.parametrize(
    "slots", [SLOTS, {"slots": SLOTS}, "slots.yaml", Path("slots.yaml")], ids=type
)
def test_slots_are_a_list_the_content_of_a_file_or_its_path(
    slots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slots.yaml").write_text(json.dumps({"slots": SLOTS}))
    given = RunData(CONFIG, tmp_path / "run", slots)
    assert [slot.name for slot in given.slots.slots] == ["click", "user", "1e3"]
    with_intercept = RunData(CONFIG, tmp_path / "run", [SLOTS[0], SLOTS[2]]).slots
    again = RunData(CONFIG, tmp_path / "run", with_intercept)
    assert [slot.name for slot in again.slots.slots] == ["click", "1e3", "_intercept"]


def test_the_slots_of_the_config_are_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "slots.yaml").write_text(yaml.safe_dump({"slots": SLOTS[:2]}))
    config = {**CONFIG, "data": {"slots": str(tmp_path / "slots.yaml"), "files_per_pass": 2}}
    given = RunData(config, tmp_path / "run", None)
    assert len(given.slots.slots) == 2
    assert given.config.data.files_per_pass == 2
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    assert RunData(path, tmp_path / "run", None).config == given.config
    whole = make_config(model={"type": "lr", "click_prior": "auto"}, data=config["data"])
    assert RunData(whole, tmp_path / "run", None).config == given.config


@pytest.mark.parametrize(
    ("config", "slots", "found"),
    [
        ({**CONFIG, "modle": {}}, SLOTS, "config: modle: unknown key; did you mean model?"),
        ({**CONFIG, "data": {"batchsize": 1}}, SLOTS, "did you mean data.batch_size?"),
        ({**CONFIG, "data": []}, SLOTS, "config: data: expected a section"),
        ({**CONFIG, "data": {"path_template": "x"}}, SLOTS, "path_template"),
        (7, SLOTS, "config: expected a paddlebox.config.Config, a dict, or the path"),
        (CONFIG, None, r"slots: expected the slots of the data, such as \[\{'name'"),
        (CONFIG, [], "slots: expected the slots of the data"),
        (CONFIG, [{"name": "click", "typ": "label"}], "did you mean slots.*type?"),
        (CONFIG, SLOTS[1:], "expected a slot of type label, found none"),
    ],
)
def test_mistakes_are_errors_before_anything_is_written(
    config: Any, slots: Any, found: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=found):
        RunData(config, tmp_path / "run", slots)
    assert not (tmp_path / "run").exists()


def test_data_that_slots_cannot_read_write_nothing(tmp_path: Path) -> None:
    for data, tests, found in (
        (frame("a").drop(columns="user"), None, "data: expected the columns .* found no user"),
        (frame("a"), frame("a").assign(click="yes"), "test_data: column 'click'"),
        (frame("a")[:0], None, "data: expected rows, found none"),
    ):
        with pytest.raises(DataError, match=found):
            written(tmp_path / "run", data, tests)
    assert not (tmp_path / "run").exists()


def test_slots_and_test_data_belong_to_data(tmp_path: Path) -> None:
    for more in ({"slots": SLOTS}, {"test_data": frame("a")}):
        with pytest.raises(ConfigError, match="expected them together with data, found no data"):
            paddlebox.train(CONFIG, tmp_path, **more)
