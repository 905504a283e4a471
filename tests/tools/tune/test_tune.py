"""Successive halving: what is tried, which trials go on, and what a later start does again.

A training command of a few lines stands for paddlebox train. It writes the metrics of a run, with a
logloss that follows from the config and the files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import load_config
from paddlebox.errors import ConfigError, StoreError, StoreLockedError, TrainingError
from paddlebox.store.locks import StoreLock
from paddlebox.tools.tune import search as searches
from paddlebox.tools.tune.cli import as_text
from paddlebox.tools.tune.search import TRAIN as TRAIN_COMMAND
from paddlebox.tools.tune.search import Options, Result, draw, find_rungs, parse_tries, tune
from tests.support.configs import write_config, write_slots

# The logloss of a rate is best at 0.01, and falls with every file. A rate of 0.5 fails, unless a
# file `mended` is there. Each start is a line of `starts`: the trained files, from the first.
TRAIN = """
import json, pathlib, sys
config, run_dir = json.loads(pathlib.Path(sys.argv[3]).read_text()), pathlib.Path(sys.argv[5])
rate, files = config["optimizer"]["learning_rate"], config["data"]["train_files"]
run_dir.mkdir(exist_ok=True)
lines = run_dir / "metrics.jsonl"
done = len(lines.read_text().splitlines()) if lines.exists() else 0
with open(run_dir.parents[1] / "starts", "a") as starts:
    starts.write(json.dumps([run_dir.parent.name, run_dir.name, files[done:]]) + "\\n")
if rate == 0.5 and not (run_dir.parents[1] / "mended").exists():
    print("step 1", *["a line"] * 9, "loss is not finite", sep="\\n")
    sys.exit(5)
with open(lines, "a") as out:
    for number in range(done, len(files)):
        test = {"logloss": abs(rate - 0.01) + 1 / (number + 1), "auc": 0.7}
        out.write(json.dumps({"pass": number + 1, "test": test}) + "\\n")
"""
optuna = pytest.importorskip("optuna", reason="pip install 'paddlebox[tune]'")

COMMAND = (sys.executable, "-I", "-S", "-c", TRAIN)
RATES = "optimizer.learning_rate=0.3,0.02,0.04,0.01,0.2,0.1,0.06,0.08,0.4"
FEW = "optimizer.learning_rate=0.02,0.01,0.04"
FILES = 12  # two of them judge


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / f"part-{number:02}.csv").write_text("click,user\n1,2\n")
    write_slots(tmp_path, click="label", user="sparse")
    data = {"train_files": [f"{tmp_path}/part-*.csv"], "files_per_pass": 1, "batch_size": 32}
    return write_config(tmp_path, data=data, optimizer={"learning_rate": 0.9})


def options(config: Path, *tries: str, **more: Any) -> Options:
    return Options(
        config, config.parent / "search", tries or (FEW,), **{"jobs": 4, "rungs": 2, **more}
    )


def search(config: Path, *tries: str, **more: Any) -> list[Result]:
    return tune(options(config, *tries, **more), os.environ, COMMAND)


def starts(config: Path) -> list[tuple[str, str, list[str]]]:
    """Trial, run dir and the names of the files of each start."""
    lines = (config.parent / "search" / "starts").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(trial, run, [Path(file).stem for file in files]) for trial, run, files in found]


def rate_of(result: Result) -> float:
    values = dict(override.split("=") for override in result.overrides)
    return float(values.get("optimizer.learning_rate", 0.9))


def parts(*numbers: int) -> list[str]:
    return [f"part-{number:02}" for number in numbers]


# ---- what is tried


def test_values_are_yaml_also_lists() -> None:
    tries = parse_tries(["optimizer.learning_rate=1e-3,0.01", "model.hidden=[256,128],[512,256]"])
    assert tries == {
        "optimizer.learning_rate": ["0.001", "0.01"],
        "model.hidden": ["[256, 128]", "[512, 256]"],
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["seed="], "at least one value, found none"),
        (["seed"], r"expected KEY=VALUE,VALUE .* found no key or no ="),
        (["=1,2"], "found no key"),
        (["seed=1,2", "seed=3"], "expected each key once, found it twice"),
        (["data.train_files=[a],[b]"], "the search sets data.train_files itself"),
        (["data={format: csv}"], "the search sets data.train_files itself"),
        (["save.out=a,b"], "the search sets save itself"),
        (["seed=[1,2"], "--try seed"),
    ],
)
def test_a_wrong_try_is_an_error_that_names_it(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_tries(given)


def test_the_same_seed_draws_the_same_combinations_in_the_same_order() -> None:
    tries = {"a": [*"0123456789"], "b": [*"0123456789"]}
    everything = draw(tries, 0, 1)
    assert sorted(one["a"] + one["b"] for one in everything) == [f"{n:02}" for n in range(100)]
    drawn = draw(tries, 7, 1)
    assert drawn == draw(tries, 7, 1) != draw(tries, 7, 2)
    assert len({one["a"] + one["b"] for one in drawn}) == 7
    assert draw(tries, 200, 1) == everything


def test_rungs_grow_by_the_factor_and_the_last_files_judge() -> None:
    files = [str(number) for number in range(20)]
    rungs = find_rungs(files, a_pass=1, trials=18, factor=3)
    assert [len(one) for one in rungs.trained] == [1, 5, 16]
    assert rungs.judged == tuple(files[16:])
    assert all(one == tuple(files[: len(one)]) for one in rungs.trained)
    # A rung with one trial would decide nothing.
    assert [*map(len, find_rungs(files, 1, 17, 3).trained)] == [5, 16]
    # Three passes of 2, 2 and 1 files; a rung but the last ends with a pass.
    assert [*map(len, find_rungs(files[:6], 2, 9, 2, judge=1).trained)] == [2, 5]
    assert len(find_rungs(files[:2], 0, 9, 3).trained) == 1


@pytest.mark.parametrize(
    ("files", "a_pass", "count", "judge", "expected"),
    [(1, 1, 0, 0, 2), (10, 1, 3, 0, 11), (9, 1, 3, 1, 10), (17, 2, 3, 1, 18), (5, 1, 0, 5, 6)],
)
def test_too_few_files_are_an_error_that_says_how_many_are_needed(
    files: int, a_pass: int, count: int, judge: int, expected: int
) -> None:
    given = [str(number) for number in range(expected)]
    find_rungs(given, a_pass, 9, 3, judge, count)
    with pytest.raises(ConfigError, match=rf"at least {expected} files .*, found {files}: cut"):
        find_rungs(given[:files], a_pass, 9, 3, judge, count)


def test_a_wrong_key_or_value_is_found_before_anything_is_trained(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean optimizer\.learning_rate"):
        search(config, "optimizer.lerning_rate=0.1,0.2")
    with pytest.raises(ConfigError, match=r"trial of optimizer.learning_rate=-1.*more than 0"):
        search(config, "optimizer.learning_rate=0.1,-1")
    assert not (config.parent / "search").exists()


def test_hours_are_refused(config: Path) -> None:
    hours = [
        "data.train_files=",
        "data.path_template=/logs/{date}/{hour}/*",
        "data.from_hour=2024010100",
    ]
    with pytest.raises(ConfigError, match=r"expected data\.train_files, found data\.path_template"):
        search(config, overrides=[*hours, "data.files_per_pass="])


# ---- the search


@pytest.mark.slow
def test_a_trial_goes_on_if_it_is_in_the_best_third_of_those_so_far(config: Path) -> None:
    results = search(config, RATES, rungs=3, jobs=1)
    rates = [0.9, 0.04, 0.02, 0.4, 0.3, 0.01, 0.2, 0.08, 0.06, 0.1]  # by number
    # 0.9, 0.04, 0.02 and 0.01 are the best so far when they end. 0.08 is the fourth of eight.
    order = [0.01, 0.02, 0.04, 0.9, 0.06, 0.08, 0.1, 0.2, 0.3, 0.4]
    assert [rates[one.number] for one in results] == order
    assert [rate_of(one) for one in results] == order
    assert [one.files for one in results] == [10] * 4 + [1] * 6
    # A trial goes on with its own run.
    ran = starts(config)
    for number, rate in enumerate(rates):
        own = [(run, files) for trial, run, files in ran if trial == f"trial-{number}"]
        rungs = [("rung-1", files) for files in (parts(0), parts(1, 2), parts(*range(3, 10)))]
        assert own == rungs[: 3 if rate in order[:4] else 1]
    made = load_config(config.parent / "search" / "trial-5" / "rung-3.json")
    assert made.data.test_files == tuple(f"{config.parent}/{part}.csv" for part in parts(10, 11))


@pytest.mark.slow
def test_the_study_can_be_read_with_optuna(config: Path) -> None:
    search(config, "optimizer.learning_rate=0.01,0.02", "model.hidden=[8]", jobs=2)
    storage = f"sqlite:///{config.parent}/search/tune.db"
    best = optuna.load_study(study_name="tune", storage=storage).best_trial
    assert best.params == {"optimizer.learning_rate": "0.01", "model.hidden": "[8]"}
    assert best.value == 0.1


@pytest.mark.slow
def test_one_pass_for_all_files_begins_anew_in_each_rung(config: Path) -> None:
    search(config, overrides=["data.files_per_pass=0"], jobs=1)
    assert ("trial-0", "rung-2", parts(*range(10))) in starts(config)


@pytest.mark.slow
def test_the_table_has_the_best_first_and_its_values_as_arguments(config: Path) -> None:
    results = search(config, "optimizer.learning_rate=0.02,0.01", "model.hidden=[8, 4]", jobs=1)
    lines = as_text(results).splitlines()
    assert lines[2] == (
        f"| {results[0].number} | `optimizer.learning_rate=0.01 model.hidden=[8, 4]` | 10 | "
        "0.10000 | 0.70000 |"
    )
    assert "| 0 | `the config` | 10 | 0.99000 | 0.70000 |" in lines
    assert lines[-1] == "best: -o optimizer.learning_rate=0.01 -o 'model.hidden=[8, 4]'"


@pytest.mark.slow
def test_the_config_itself_may_be_the_best_and_is_tried_once(config: Path) -> None:
    results = search(
        config, "optimizer.learning_rate=0.01,0.9", overrides=["optimizer.learning_rate=0.01"]
    )
    assert [one.overrides for one in results] == [[], ["optimizer.learning_rate=0.9"]]
    assert as_text(results).endswith("No combination is better than the config itself.")


@pytest.mark.slow
def test_a_trial_writes_nothing_outside_of_its_folder(config: Path) -> None:
    outside = ["save.out=/out", "checkpoint.copy_to=/copy"]
    served = ["publish.file=/f", "alerts.metrics_port=9090"]
    search(config, overrides=[*outside, *served])
    made = load_config(config.parent / "search" / "trial-1" / "rung-1.json")
    places = [made.save.out, made.publish.file, made.checkpoint.copy_to]
    assert places == [""] * 3
    assert made.alerts.metrics_port == 0
    assert made.trainer.evaluates_after
    assert made.trainer.dense_threads > 0  # a share of the cores
    assert made.mem.budget_bytes == 4 << 20  # as the config says


def test_a_trial_has_the_batch_size_that_all_rows_give(config: Path) -> None:
    # 25,000 rows and more have 64. The three files of the first rung have 9,000.
    for file in config.parent.glob("part-*.csv"):
        file.write_text("click,user\n" + "1,2\n" * 3000)
    search(config, overrides=["data.batch_size=auto"])
    made = load_config(config.parent / "search" / "trial-1" / "rung-1.json")
    assert made.data.batch_size == 64


@pytest.mark.slow
def test_a_failed_trial_is_reported_and_tried_again_by_the_next_start(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = "optimizer.learning_rate=0.5,0.6,0.7"
    results = search(config, tries)
    (failed,) = [one for one in results if one.failed]
    assert (failed.failed, rate_of(failed)) == ("exit code 5", 0.5)
    assert f"trial-{failed.number}: exit code 5" in caplog.text
    assert "a line\n    loss is not finite" in caplog.text
    assert "step 1" not in caplog.text  # only the last lines
    assert rate_of(results[0]) == 0.6
    assert "`optimizer.learning_rate=0.5` failed: exit code 5 | 0 |" in as_text(results)
    (config.parent / "search" / "mended").touch()
    again = search(config, tries)
    assert rate_of(again[0]) == 0.5
    assert not any(one.failed for one in again)


def test_a_search_whose_trials_all_fail_is_an_error(config: Path) -> None:
    rate = ["optimizer.learning_rate=0.5"]
    with pytest.raises(TrainingError, match=r"trained all files, but 1 trials failed"):
        search(config, "optimizer.learning_rate=0.5", overrides=rate)
    # Also without a result, the folder is that of this search.
    with pytest.raises(ConfigError, match=r"--try optimizer.learning_rate: was \[0.5\], now \[0.4"):
        search(config, "optimizer.learning_rate=0.4", overrides=rate)


# ---- a later start


def test_a_second_start_trains_nothing_and_ends_the_same(config: Path) -> None:
    first = search(config)
    ran = starts(config)
    second = search(config)
    assert starts(config) == ran
    assert as_text(second) == as_text(first)


class _EndOfSearchError(BaseException):
    pass


@pytest.mark.slow
def test_a_search_that_ends_after_any_result_goes_on_with_what_is_missing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, train = config.parent / "search", searches._trained
    whole = as_text(search(config, jobs=1))
    folder.rename(config.parent / "whole")
    left = 0

    def trained(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
        nonlocal left
        found = train(command, environment) if left > 0 else (0.0, 0.0)
        left -= 1
        if left <= 0:  # this result is not in the study yet
            raise _EndOfSearchError
        return found

    monkeypatch.setattr(searches, "_trained", trained)
    for ends in range(1, 20):
        left = ends
        with contextlib.suppress(_EndOfSearchError):
            text = as_text(search(config, jobs=1))
            break
    assert text == whole
    ran = [(trial, *files) for trial, _, files in starts(config) if files]
    assert len(ran) == len(set(ran)) > 5  # nothing is trained twice


@pytest.mark.slow
def test_a_trial_that_fails_in_a_later_rung_goes_on_from_the_earlier_ones(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = searches._trained

    def trained(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
        found = train(command, environment)
        if command[-3].endswith("rung-2.json"):  # the run has more passes than those of rung 1
            raise TrainingError("exit code 5")
        return found

    monkeypatch.setattr(searches, "_trained", trained)
    with pytest.raises(TrainingError, match="trained all files"):
        search(config, jobs=1)
    monkeypatch.setattr(searches, "_trained", train)
    results = search(config, jobs=1)
    assert (rate_of(results[0]), results[0].failed) == (0.01, "")
    best = [files for trial, _, files in starts(config) if trial == f"trial-{results[0].number}"]
    assert best == [parts(0, 1, 2), parts(*range(3, 10)), []]


@pytest.mark.slow
def test_another_search_in_the_folder_is_refused_with_what_differs(config: Path) -> None:
    search(config)
    ran = starts(config)
    tries = FEW.replace("0.02", "0.33")
    with pytest.raises(ConfigError) as error:
        search(config, tries, overrides=["table.embedx_dim=16"])
    assert "--try optimizer.learning_rate: was [0.02, 0.01" in str(error.value)
    assert "now [0.33, 0.01" in str(error.value)
    assert "table.embedx_dim: was 8, now 16" in str(error.value)
    with pytest.raises(ConfigError, match=r"--factor: was 3, now 2"):
        search(config, factor=2)
    (config.parent / "part-12.csv").write_text("click,user\n1,2\n")
    with pytest.raises(ConfigError, match=r"judging files: was .*part-10.*now .*part-11"):
        search(config)
    (config.parent / "part-12.csv").unlink()
    search(config, overrides=["mem.budget_bytes=8MiB"], jobs=2)  # no effect on results
    assert starts(config) == ran


def test_a_damaged_state_and_a_second_search_at_once_are_errors(config: Path) -> None:
    folder = config.parent / "search"
    folder.mkdir()
    lock = StoreLock(str(folder / "LOCK"))
    with pytest.raises(StoreLockedError, match="another search works in this folder"):
        search(config)
    lock.release()
    (folder / "tune.db").write_text("no database" * 1000)
    with pytest.raises(StoreError, match=r"tune\.db: expected the study .*another --dir"):
        search(config)


def test_without_optuna_the_error_names_the_extra(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"expected Optuna.*pip install 'paddlebox\[tune\]'"):
        search(config)


# ---- processes

_MEETS = """
import json, os, pathlib, sys, time
run_dir = pathlib.Path(sys.argv[5])
folder, own = run_dir.parents[1] / "running", f"{os.getpid()}"
folder.mkdir(exist_ok=True)
(folder / own).touch()
deadline = time.monotonic() + 60
while len(seen := [*folder.iterdir()]) < 2 and not (folder / "met").exists():
    if time.monotonic() > deadline: sys.exit(1)
    time.sleep(0.01)
if len([one for one in seen if one.name != "met"]) > 2: sys.exit(2)
(folder / "met").touch()
(folder / own).unlink()
run_dir.mkdir(exist_ok=True)
(run_dir / "metrics.jsonl").write_text(json.dumps({"test": {"logloss": 0.5, "auc": None}}))
"""


def test_as_many_trials_as_jobs_run_at_the_same_time(config: Path) -> None:
    command = (sys.executable, "-I", "-S", "-c", _MEETS)
    results = tune(options(config, RATES, rungs=1, jobs=2), os.environ, command)
    assert [one.failed for one in results] == [""] * 10
    assert (results[0].logloss, math.isnan(results[0].auc)) == (0.5, True)


def test_a_trial_whose_search_is_gone_does_not_train() -> None:
    done = subprocess.run([*TRAIN_COMMAND, "1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the search has ended\n")
