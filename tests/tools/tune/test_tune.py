"""Successive halving: what is tried, which trials go on, and what a later start does again.

A training command of a few lines stands for tools/train.py. It writes the metrics of a run, with a
logloss that follows from the config and the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import load_config
from paddlebox.errors import ConfigError, StoreError, StoreLockedError, TrainingError
from paddlebox.store.lock import StoreLock
from paddlebox.tools.tune.cli import as_text
from paddlebox.tools.tune.plan import draw, find_rungs, parse_tries
from paddlebox.tools.tune.processes import TRAIN as TRAIN_COMMAND
from paddlebox.tools.tune.processes import Command, finished
from paddlebox.tools.tune.search import Options, Outcome, tune
from tests.support.configs import write_config, write_slots

# The logloss of a rate is best at 0.01, and falls with every file. A rate of 0.5 fails, unless a
# file `mended` is there. Each start is a line of `starts`: the trained files, from the first.
TRAIN = """
import json, pathlib, sys
config, run_dir = json.loads(pathlib.Path(sys.argv[2]).read_text()), pathlib.Path(sys.argv[4])
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


def search(config: Path, *tries: str, **more: Any) -> Outcome:
    return tune(options(config, *tries, **more), os.environ, COMMAND)


def starts(config: Path) -> list[tuple[str, str, list[str]]]:
    """Trial, run dir and the names of the files of each start."""
    lines = (config.parent / "search" / "starts").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(trial, run, [Path(file).stem for file in files]) for trial, run, files in found]


def parts(*numbers: int) -> list[str]:
    return [f"part-{number:02}" for number in numbers]


# ---- what is tried


def test_values_are_yaml_also_lists() -> None:
    tries = parse_tries(["optimizer.learning_rate=1e-3,0.01", "model.hidden=[256,128],[512,256]"])
    assert tries == {
        "optimizer.learning_rate": [0.001, 0.01],
        "model.hidden": [[256, 128], [512, 256]],
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


def test_the_same_seed_draws_the_same_combinations_in_the_order_of_all() -> None:
    tries = {"a": [*range(10)], "b": [*range(10)]}
    everything = draw(tries, 0, 1)
    assert everything[:2] == [{"a": 0, "b": 0}, {"a": 0, "b": 1}]
    drawn = draw(tries, 7, 1)
    assert drawn == draw(tries, 7, 1) != draw(tries, 7, 2)
    assert len(drawn) == 7
    assert drawn == [one for one in everything if one in drawn]


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
    with pytest.raises(ConfigError, match=r"trial 2 \(optimizer.learning_rate=-1\).*more than 0"):
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
def test_the_best_third_of_each_rung_goes_on_with_its_own_run(config: Path) -> None:
    outcome = search(config, RATES, rungs=3)
    tried = [trial.values.get("optimizer.learning_rate", 0.9) for trial in outcome.order()]
    assert tried == [0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.3, 0.4, 0.9]
    ran = starts(config)
    assert [files for _, _, files in ran] == [parts(0)] * 10 + [parts(1, 2)] * 3 + [
        parts(*range(3, 10))
    ]
    assert ran[-1][:2] == ("trial-4", "rung-1")
    assert outcome.rungs.judged == tuple(f"{config.parent}/{part}.csv" for part in parts(10, 11))


@pytest.mark.slow
def test_one_pass_for_all_files_begins_anew_in_each_rung(config: Path) -> None:
    search(config, overrides=["data.files_per_pass=0"])
    assert starts(config)[-1] == ("trial-2", "rung-2", parts(*range(10)))


@pytest.mark.slow
def test_the_table_has_the_best_first_and_its_values_as_arguments_and_as_yaml(config: Path) -> None:
    text = as_text(search(config, "optimizer.learning_rate=0.02,0.01", "model.hidden=[8],[4,2]"))
    lines = text.splitlines()
    assert lines[2] == (
        "| 3 | `optimizer.learning_rate=0.01 model.hidden=[8]` | 10 | 0.10000 | 0.70000 |"
    )
    assert "best: -o optimizer.learning_rate=0.01 -o 'model.hidden=[8]'" in lines
    assert text.endswith("optimizer: {learning_rate: 0.01}\nmodel:\n  hidden: [8]")
    assert "| 0 | `the config` | 3 |" in text


@pytest.mark.slow
def test_the_config_itself_may_be_the_best_and_is_tried_once(config: Path) -> None:
    outcome = search(
        config, "optimizer.learning_rate=0.01,0.9", overrides=["optimizer.learning_rate=0.01"]
    )
    assert [trial.values for trial in outcome.trials] == [{}, {"optimizer.learning_rate": 0.9}]
    assert as_text(outcome).endswith("No combination is better than the config itself.")


@pytest.mark.slow
def test_a_trial_writes_nothing_outside_of_its_folder(config: Path) -> None:
    outside = ["save.out=/out", "checkpoint.copy_to=/copy"]
    served = ["publish.file=/f", "alerts.metrics_port=9090"]
    search(config, overrides=[*outside, *served])
    made = load_config(config.parent / "search" / "trial-1" / "rung-1.json")
    places = [made.save.out, made.publish.file, made.checkpoint.copy_to]
    assert places == [""] * 3
    assert made.alerts.metrics_port == 0
    assert made.trainer.evaluate_after_pass
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
    failed = search(config, tries)
    assert failed.failed == {1: "exit code 5"}
    assert "trial 1 failed: exit code 5" in caplog.text
    assert "a line\n    loss is not finite" in caplog.text
    assert "step 1" not in caplog.text  # only the last lines
    assert failed.order()[0].values == {"optimizer.learning_rate": 0.6}
    assert "`optimizer.learning_rate=0.5` failed: exit code 5 | 0 |" in as_text(failed)
    (config.parent / "search" / "mended").touch()
    again = search(config, tries)
    assert again.order()[0].values == {"optimizer.learning_rate": 0.5}
    assert not again.failed


def test_a_search_whose_trials_all_fail_is_an_error(config: Path) -> None:
    rate = ["optimizer.learning_rate=0.5"]
    with pytest.raises(TrainingError, match=r"a result of rung 1, but each .* failed: 1"):
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


@pytest.mark.slow
def test_a_start_after_a_kill_trains_only_what_is_missing(config: Path) -> None:
    folder = config.parent / "search"
    whole = as_text(search(config))
    state = json.loads((folder / "tune.json").read_text())
    state["results"] = {trial: state["results"][trial][:1] for trial in ("0", "1")}
    (folder / "tune.json").write_text(json.dumps(state))
    half = folder / "trial-2" / "rung-1" / "metrics.jsonl"
    half.write_text(half.read_text().splitlines(keepends=True)[0])
    (folder / "starts").unlink()
    assert as_text(search(config)) == whole
    # The run of trial 3 had ended.
    assert sorted(starts(config)[:2]) == [
        ("trial-2", "rung-1", parts(1, 2)),
        ("trial-3", "rung-1", []),
    ]
    assert starts(config)[2:] == [("trial-2", "rung-1", parts(*range(3, 10)))]


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
    (folder / "tune.json").write_text('{"setup": {}}')
    with pytest.raises(StoreError, match=r"tune\.json: expected the results of a search"):
        search(config)


# ---- processes

_MEETS = """
import os, pathlib, sys, time
folder, most = pathlib.Path(sys.argv[1]), int(sys.argv[2])
own = folder / str(os.getpid())
own.touch()
deadline = time.monotonic() + 60
while len(seen := [*folder.iterdir()]) < most and not (folder / "met").exists():
    if time.monotonic() > deadline: sys.exit(1)
    time.sleep(0.01)
if len([one for one in seen if one.name != "met"]) > most: sys.exit(2)
(folder / "met").touch()
own.unlink()
"""


def commands(tmp_path: Path, count: int, code: str, *arguments: str) -> list[Command]:
    words = [sys.executable, "-c", code, *arguments]
    return [Command(n, words, tmp_path, tmp_path / f"log-{n}") for n in range(count)]


def environment() -> Mapping[str, str]:
    return os.environ


def test_as_many_trials_as_jobs_run_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    given = commands(tmp_path, 6, _MEETS, str(tmp_path / "running"), "2")
    codes = {command.trial: code for command, code in finished(given, 2, environment())}
    assert codes == dict.fromkeys(range(6), 0)


_WAITS = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1] + ".part").write_text(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
_ENDS_AFTER = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)
"""


def test_trials_end_with_a_search_that_ends_early(tmp_path: Path) -> None:
    own = tmp_path / "pid"
    codes = (_ENDS_AFTER, _WAITS)
    given = [command for code in codes for command in commands(tmp_path, 1, code, str(own))]
    with contextlib.closing(finished(given, 2, environment())) as ended:
        assert next(ended)[1] == 0
        os.kill(int(own.read_text()), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(own.read_text()), 0)


def test_a_trial_whose_search_is_gone_does_not_train() -> None:
    gone = {**os.environ, "PADDLEBOX_TUNE": "1"}
    done = subprocess.run(TRAIN_COMMAND, env=gone, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the search has ended\n")
