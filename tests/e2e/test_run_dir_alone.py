"""Tools that are given RUN_DIR alone take the config, slots and overrides of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.configs import write_config, write_slots

SLOTS: dict[str, Any] = {
    "click": "label",
    "user": {"hash": True},
    "price": {"type": "dense", "default": 0},
}
# Each of them is one that another run would not have: without the first it is another model.
OVERRIDES = ["-o", "model.hidden=[8]", "data.key_space=per_slot", "seed=7"]


def ran(folder: Path, name: str, *arguments: Any, code: int = 0) -> str:
    """What a tool printed, called from a folder; where it is to fail, its errors."""
    done = processes.run(["-m", "paddlebox", name, *map(str, arguments)], folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at `run`, trained in this folder with relative paths."""
    folder = tmp_path_factory.mktemp("mine")
    for name, count in {"train": 300, "test": 60}.items():
        rows = [f"{i % 3 == 0:d},u{i % 12},{i % 5}\n" for i in range(count)]
        (folder / f"{name}.csv").write_text("click,user,price\n" + "".join(rows))
    write_slots(folder, **SLOTS)
    files = {"slots": "slots.yaml", "train_files": ["train.csv"], "test_files": ["test.csv"]}
    write_config(folder, data=files, model={"hidden": [4]})
    ran(folder, "train", "-c", "config.yaml", "--run-dir", "run", *OVERRIDES)
    return folder


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> dict[str, Any]:
    return dict(json.loads(ran(folder, "evaluate", "run")))


@pytest.mark.slow
def test_evaluate_of_a_run_dir_alone_is_that_with_config_and_overrides(
    folder: Path, evaluated: dict[str, Any]
) -> None:
    assert evaluated["samples"] == 60
    # The spelling of before.
    old = ran(folder, "evaluate", "-c", "config.yaml", "--run-dir", "run", *OVERRIDES)
    assert json.loads(old) == evaluated
    refused = ran(
        folder, "evaluate", "-c", "config.yaml", "--run-dir", "run", "-o", "seed=7", code=2
    )
    assert "model.hidden: was [8], now [4]" in refused


@pytest.mark.long
def test_the_slots_are_those_of_the_run_and_overrides_come_on_top(
    folder: Path, evaluated: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    for name in ("train.csv", "test.csv"):
        shutil.copy(folder / name, tmp_path)  # and no slots.yaml
    (tmp_path / "half.csv").write_text(
        "".join((folder / "test.csv").read_text().splitlines(True)[:31])
    )
    assert json.loads(ran(tmp_path, "evaluate", "run")) == evaluated
    (tmp_path / "run" / "config.json").unlink()  # as in a run dir that was restored
    (tmp_path / "run" / "slots.json").unlink()
    for half in (["-o", "data.test_files=[half.csv]"], ["--files", "half.csv"]):
        assert json.loads(ran(tmp_path, "evaluate", "run", *half))["samples"] == 30
    write_slots(tmp_path, **{**SLOTS, "user": "sparse"})
    refused = ran(tmp_path, "evaluate", "run", "-o", "data.slots=slots.yaml", code=2)
    assert "slots.yaml user: was" in refused


@pytest.mark.slow
def test_the_other_tools_take_a_run_dir_alone_too(folder: Path, tmp_path: Path) -> None:
    for name in ("diagnose", "auc-runner"):
        ran(folder, name, "run", "--out", tmp_path / name)
        old = ["-c", "config.yaml", "--run-dir", "run", *OVERRIDES]
        ran(folder, name, *old, "--out", tmp_path / "o")
        assert json.loads((tmp_path / name).read_text()) == json.loads((tmp_path / "o").read_text())
    ran(folder, "report", "run", "--out", tmp_path / "r.html")
    ran(folder, "compare", "run", "run", "--out", tmp_path / "c.html")
    assert json.loads(ran(folder, "store", "stat", "run", "--json"))["version"] == 1
    ran(folder, "export", "run", "--out", tmp_path / "m.export")


@pytest.mark.slow
def test_a_run_goes_on_with_the_config_it_was_last_started_with(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "w")
    work = tmp_path / "w"
    ran(work, "train", "run", "-o", "trainer.epochs=2")
    summary = json.loads((work / "run" / "summary.json").read_text())
    assert (summary["passes"], summary["resumed_after_pass"]) == (2, 1)
    stored = json.loads((work / "run" / "config.json").read_text())
    assert (stored["seed"], stored["trainer"]["epochs"]) == (7, 2)
    ran(work, "train", "--run-dir", "run")  # nothing is left to do: of two epochs, not of one
    assert json.loads((work / "run" / "summary.json").read_text()) == summary


class TestMistakes:
    def test_from_another_folder_the_path_that_is_not_there_is_named(
        self, folder: Path, tmp_path: Path
    ) -> None:
        said = ran(tmp_path, "evaluate", folder / "run", code=3)
        assert "data.test_files: nothing is at 'test.csv'" in said
        assert "relative to the folder in which training was started" in said
        assert "-o data.test_files=" in said
        assert said.count("\n") == 1

    def test_no_run_is_there(self, folder: Path, tmp_path: Path) -> None:
        assert "no such folder" in ran(tmp_path, "evaluate", "nothing", code=4)
        assert "no such folder" in ran(tmp_path, "train", "nothing", code=4)

    def test_nothing_is_given(self, tmp_path: Path) -> None:
        assert "RUN_DIR: expected" in ran(tmp_path, "evaluate", code=2)
        assert "expected -c CONFIG, or the RUN_DIR" in ran(tmp_path, "train", code=2)
        two = ran(tmp_path, "evaluate", "a", "--run-dir", "b", code=2)
        assert "RUN_DIR is given twice: a and --run-dir b" in two
        eaten = ran(tmp_path, "evaluate", "-o", "seed=1", "run", code=2)
        assert "write RUN_DIR before -o" in eaten
