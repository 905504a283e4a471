"""A user's code in a run: what it sees, how it ends the run, and what holds if it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import paddlebox
from paddlebox.errors import ConfigError, TrainingError
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.report.run import FINISHED, STOPPED, read_run
from paddlebox.training.callbacks import Callback
from paddlebox.training.run import train
from tests.support import processes
from tests.support.configs import config_fields, write_slots
from tests.support.inside import newest
from tests.support.marks import slow

PASSES = 3
Seen = list[tuple[str, Any]]


def write_fields(folder: Path) -> dict[str, Any]:
    """The fields of a config with three passes of 40 rows, in batches of 16, 16 and 8."""
    write_slots(folder, click="label", user={"hash": True})
    files = []
    for number in range(PASSES):
        files.append(str(folder / f"{number}.csv"))
        rows = "".join(f"{row % 3 % 2},u{row % 3 + number}\n" for row in range(40))
        Path(files[-1]).write_text(f"click,user\n{rows}")
    data = {"slots": f"{folder}/slots.yaml", "train_files": files, "files_per_pass": 1}
    return config_fields(
        data={**data, "batch_size": 16, "shuffle": False},
        mem={"budget_bytes": "4MiB"},
        hbm={"budget_bytes": "16MiB"},
        model={"hidden": [2]},
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a run without callbacks."""
    folder = tmp_path_factory.mktemp("straight")
    return train(write_fields(folder), folder / "run")


@pytest.fixture
def fields(tmp_path: Path) -> dict[str, Any]:
    return write_fields(tmp_path)


class Watching(Callback):
    """Writes down its calls. Returns, or raises, what `answers` has for a call."""

    def __init__(self, answers: Callable[[str, int], Any] = lambda *_: None) -> None:
        self.seen: Seen = []
        self.answers = answers
        self.passes = 0

    def on_batch(self, batch: int, samples: int, loss: float) -> bool | None:
        self.seen.append(("batch", (batch, samples)))
        assert loss > 0
        return self._answer("on_batch", batch)

    def on_pass(self, line: dict[str, Any]) -> bool | None:
        self.seen.append(("pass", line["pass"]))
        self.passes = line["pass"]
        line["metrics"].clear()  # of a copy
        return self._answer("on_pass", line["pass"])

    def _answer(self, method: str, number: int) -> Any:
        answer = self.answers(method, number)
        if isinstance(answer, Exception):
            raise answer
        return answer


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def committed(run_dir: Path) -> int:
    with VersionStore.open_reader(run_dir / "store") as manifest:
        return int(newest(manifest).cursor["pass"])


def digests(summary: dict[str, Any]) -> tuple[str, str]:
    return summary["sparse_digest"], summary["dense_digest"]


def test_a_callback_sees_each_batch_and_each_pass(fields: dict[str, Any], tmp_path: Path) -> None:
    watching, plain = Watching(), Callback()
    summary = train(fields, tmp_path / "run", callbacks=[plain, watching])
    batches = [("batch", (1, 16)), ("batch", (2, 32)), ("batch", (3, 40))]
    assert watching.seen == [seen for number in (1, 2, 3) for seen in [*batches, ("pass", number)]]
    assert "stopped_by" not in summary
    assert summary["last_pass"]["metrics"]["size"] == 40  # they get copies of lines
    assert read_run(tmp_path / "run").state == FINISHED
    watching.seen.clear()
    train(fields, tmp_path / "run", callbacks=[watching])
    assert watching.seen == []  # there is nothing to train


@pytest.mark.parametrize(
    ("method", "every"),
    [
        ("on_batch", "never"),
        ("on_pass", "never"),
        slow("on_batch", "pass"),
        slow("on_pass", "pass"),
    ],
)
def test_a_true_answer_ends_the_run_after_the_pass_and_a_later_call_goes_on(
    straight: dict[str, Any], fields: dict[str, Any], tmp_path: Path, method: str, every: str
) -> None:
    fields["checkpoint"] = {"every": every}
    # on_batch answers in the second batch of the second pass, which has a third one.
    before = 1 if method == "on_batch" else 2
    watching = Watching()
    watching.answers = lambda *call: call == (method, 2) and watching.passes == before
    summary = train(fields, tmp_path / "run", callbacks=[watching, Watching()])
    assert watching.seen[-2:] == [("batch", (3, 40)), ("pass", 2)]
    assert summary["stopped_by"] == f"Watching.{method}"
    assert summary["passes"] == 2
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert committed(tmp_path / "run") == 2
    assert read_run(tmp_path / "run").state == STOPPED
    rest = Watching()
    after = train(fields, tmp_path / "run", callbacks=[rest])
    assert [seen for seen in rest.seen if seen[0] == "pass"] == [("pass", 3)]
    assert digests(after) == digests(straight)
    assert "stopped_by" not in after


@pytest.mark.slow
def test_an_answer_in_the_last_pass_stops_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    watching = Watching(lambda method, number: method == "on_pass" and number == PASSES)
    summary = train(fields, tmp_path / "run", callbacks=[watching])
    assert summary["passes"] == PASSES
    assert "stopped_by" not in summary


def test_a_batch_that_fails_abandons_the_pass(
    straight: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    broken = Watching()
    broken.answers = lambda method, number: (
        ValueError("no such thing")
        if (method, number, broken.passes) == ("on_batch", 2, 1)
        else None
    )
    text = r"the callback Watching.on_batch raised ValueError in pass 2: no such thing; the pass is"
    with pytest.raises(TrainingError, match=text) as error:
        train(fields, tmp_path / "run", callbacks=[broken])
    assert isinstance(error.value.__cause__, ValueError)
    assert committed(tmp_path / "run") == 1
    assert [line["pass"] for line in lines_of(tmp_path / "run")] == [1]
    assert not (tmp_path / "run" / "summary.json").exists()
    assert digests(train(fields, tmp_path / "run")) == digests(straight)


def test_a_pass_that_has_ended_stays_although_on_pass_fails(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    broken = Watching(lambda method, n: KeyError("k") if (method, n) == ("on_pass", 2) else None)
    fields["checkpoint"] = {"every": "never"}
    with pytest.raises(TrainingError, match=r"Watching.on_pass raised KeyError in pass 2: 'k'"):
        train(fields, tmp_path / "run", callbacks=[broken])
    assert committed(tmp_path / "run") == 2
    assert [line["pass"] for line in lines_of(tmp_path / "run")] == [1, 2]


def test_what_is_no_callback_is_refused_before_anything_is_made(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    wrong: list[tuple[Any, str]] = [
        (Watching(), r"callbacks: expected a list of paddlebox.Callback objects, found Watching"),
        ([Watching], r"callbacks\[0\]: expected an object of a class .* found the class Watching"),
        ([Watching(), print], r"callbacks\[1\]: expected .*, found <built-in function print>"),
    ]
    for callbacks, text in wrong:
        with pytest.raises(ConfigError, match=text):
            train(fields, tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


PROGRAM = """
import sys
from pathlib import Path
from paddlebox import Callback
from paddlebox.config import load_config
from paddlebox.launch.process import joined, prepare
config, run_dir, seen = load_config(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
prepare(config.trainer)
from paddlebox.training.run import train

class Stop(Callback):
    def on_pass(self, line):
        with seen.open("a") as file:
            file.write(f"rank {world.rank}, pass {line['pass']}\\n")
        return line["pass"] == 1

with joined(config) as world:
    train(config, run_dir, callbacks=[Stop()], world=world)
"""


TRACKER = """
class Run:
    id = "w7"
    def log(self, values): pass
    def define_metric(self, name, step_metric): pass
    def finish(self, exit_code): pass

def init(id, dir, **_):
    with open(f"{dir}/begun", "a") as file:
        file.write(f"{id}\\n")
    return Run()
"""


@pytest.mark.slow
def test_the_first_of_several_ranks_calls_callbacks_and_trackers_and_all_stop_together(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    files = fields["data"]["train_files"]
    fields["data"] |= {"train_files": [*files, *files, *files], "files_per_pass": 3}
    fields["checkpoint"] = {"every": "never"}
    fields["trainer"] = {"trackers": ["wandb"]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(fields))
    (tmp_path / "wandb.py").write_text(TRACKER)  # the program's folder is on its path
    (tmp_path / "own.py").write_text(PROGRAM)
    seen, run_dir = tmp_path / "seen", tmp_path / "run"

    def launch() -> list[dict[str, Any]]:
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
        launcher += ["--log_dir", str(tmp_path / "log"), str(tmp_path / "own.py")]
        done = processes.run([*launcher, f"{tmp_path}/config.yaml", str(run_dir), str(seen)])
        assert done.returncode == 0, done.stdout + done.stderr
        folders = (run_dir, run_dir / "ranks" / "1")
        return [json.loads((one / "summary.json").read_text()) for one in folders]

    for summary in launch():
        assert (summary["passes"], summary["stopped_by"]) == (1, "Stop.on_pass")
    assert [committed(run_dir), committed(run_dir / "ranks" / "1")] == [1, 1]
    for summary in launch():
        assert summary["passes"] == PASSES
        assert "stopped_by" not in summary
    assert seen.read_text().splitlines() == [f"rank 0, pass {number}" for number in (1, 2, 3)]
    assert (run_dir / "begun").read_text() == "None\nw7\n"  # by the first rank, at each start
    assert not (run_dir / "ranks" / "1" / "begun").exists()
    assert ["curve" in line for line in lines_of(run_dir)] == [True] * PASSES
    assert not any("curve" in line for line in lines_of(run_dir / "ranks" / "1"))


def test_the_package_has_the_class() -> None:
    assert paddlebox.Callback is Callback
