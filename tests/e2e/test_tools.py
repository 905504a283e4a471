"""`paddlebox train` and `paddlebox evaluate`, as they are called from a shell."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, make_synthetic, tool
from tests.support.marks import long, slow
from tests.support.processes import run

CONFIG = "configs/deepfm_synthetic.yaml"
FIELDS = {
    "pass", "samples", "loss", "metrics", "seconds", "samples_per_s",
    "hits", "wait_s", "work_s", "stages", "threads", "bad_lines",
}  # fmt: skip
METRICS = {
    "auc",
    "bucket_error",
    "mae",
    "rmse",
    "actual_ctr",
    "predicted_ctr",
    "copc",
    "logloss",
    "size",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=2, rows=5000, test_rows=2000)


def overrides(data: Path, *more: str) -> list[str]:
    return [
        "-o",
        f"data.train_files=[{data}/train-*.txt]",
        f"data.test_files=[{data}/test.txt]",
        "model.hidden=[16]",
        *more,
    ]


@pytest.fixture(scope="module")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = tool(
        "train", "-c", CONFIG, "--run-dir", folder,
        "--trace", folder / "trace.json", *overrides(data),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder.parent / "log").write_text(done.stderr)
    return folder


def test_the_log_of_a_run_has_one_line_a_pass_and_no_settings_of_libraries(run_dir: Path) -> None:
    lines = (run_dir.parent / "log").read_text().splitlines()
    warned = [line for line in lines if " WARNING " in line]
    assert ["fewer than 300" in line for line in warned] == [True]
    lines = [line for line in lines if line not in warned]
    said = [line.partition(" INFO ")[2].partition(":")[0] for line in lines]
    assert said == ["deepfm_synthetic", "pass 1/2", "pass 2/2", "trace", "committed"]
    number = r"\d+\.\d+"
    line = f"pass 2/2: loss {number}, AUC {number}, COPC {number}, \\d+ samples/s"
    assert re.search(f"{line}$", lines[2])


def test_a_run_leaves_its_metrics_and_a_summary(run_dir: Path) -> None:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["pass"] for line in lines] == [1, 2]
    told = set(re.findall(r"`(\w+)`", (ROOT / "docs/report.md").read_text()))
    for line in lines:
        assert set(line) >= FIELDS
        assert set(line) - told == set()
        assert set(line["metrics"]) == METRICS
        assert line["samples"] == 5000
        assert sum(line["hits"].values()) == line["unique_feasigns"]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["passes"], summary["samples"], summary["version"]) == (2, 10000, 2)
    assert run_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_days_of_a_run_end_by_themselves(data: Path, tmp_path: Path) -> None:
    done = tool(
        "train", "-c", CONFIG, "--run-dir", tmp_path / "r",
        *overrides(data, "data.date=20240131", "data.files_per_day=1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(s) for s in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["date"] for line in lines] == ["20240131", "20240201"]
    assert [line["life"]["events"] for line in lines] == [0, 2]
    assert lines[1]["life"]["dead_staged"] > 0  # seen less than eight times: score below 0.8
    done = tool("store", "life", tmp_path / "r", "--json")
    events = json.loads(done.stdout)["events"]
    assert [(e["kind"], e["date"]) for e in events] == [
        ("decay", "20240131"),
        ("shrink", "20240131"),
    ]


def test_a_trace_shows_the_work_of_every_stage(run_dir: Path) -> None:
    trace = json.loads((run_dir / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    stages = {"read", "parse", "key", "stage", "pack", "train", "commit"}
    assert {event["name"] for event in events if event["cat"] == "work"} == stages
    assert {event["args"]["pass"] for event in events} == {1, 2}
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = sum(e["dur"] for e in events if e["name"] == "train" and e["cat"] == "work") / 1e6
    assert trained == pytest.approx(sum(line["stages"]["train"]["work_s"] for line in lines))


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_evaluate_prints_json_and_changes_no_byte_of_the_store(run_dir: Path, data: Path) -> None:
    before = contents(run_dir / "store")
    done = tool("evaluate", "-v", "-c", CONFIG, "--run-dir", run_dir, *overrides(data))
    assert done.returncode == 0, done.stderr
    for told in ("FLAGS_eager_delete_tensor_gb=-1 (static program", "BUCKET_ERROR="):
        assert told in done.stderr
    printed = json.loads(done.stdout)
    assert 0.5 < printed["auc"] < 1
    assert printed["logloss"] > 0
    assert printed["version"] == 2
    assert json.loads((run_dir / "evaluate-2.json").read_text()) == printed
    assert contents(run_dir / "store") == before


@pytest.mark.slow
def test_evaluate_after_each_pass_gives_what_evaluate_gives(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    done = tool(
        "train", "-c", CONFIG, "--run-dir", tmp_path / "r",
        *overrides(data, "trainer.evaluate_passes=after"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = json.loads((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()[-1])
    done = tool("evaluate", "-c", CONFIG, "--run-dir", run_dir, *overrides(data))
    assert last["test"]["auc"] == json.loads(done.stdout)["auc"]


def launch(processes: int, data: Path, folder: Path) -> Any:
    return run(
        ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
        + ["--log_dir", str(folder / "log"), "tools/train.py", "-c", CONFIG]
        + ["--run-dir", str(folder / "run"), *overrides(data)]
    )


@pytest.mark.slow
def test_the_launcher_with_one_process(data: Path, tmp_path: Path) -> None:
    done = launch(1, data, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["passes"] == 2


@pytest.mark.parametrize(
    "data_format", [slow("slot_value"), long("feasign_slot"), long("criteo_tsv")]
)
def test_every_format_trains_and_evaluates(tmp_path: Path, data_format: str) -> None:
    slots, lines = {
        "slot_value": (
            "- {name: click, type: label}\n- {name: x, type: dense}\n- {name: a, type: sparse}\n",
            ["click:1 x:0.5 a:7 a:8", "click:0 x:1.5", "click:0 x:0.1 a:9 other:3"],
        ),
        "feasign_slot": (
            "- {name: '1', type: label}\n- {name: '6', type: sparse}\n"
            "- {name: '9', type: sparse}\n",
            ["1:1 18446744073709551615:6", "0:1 5:6 6:9", "0:1"],
        ),
        "criteo_tsv": (
            "- {name: label, type: label}\n- {name: I1, type: dense}\n"
            "- {name: I1b, column: I1, type: sparse}\n- {name: C1, type: sparse}\n",
            [f"{i % 2}\t{i}" + "\t" * 13 + f"{i:08x}" + "\t" * 25 for i in range(3)],
        ),
    }[data_format]
    (tmp_path / "slots.yaml").write_text("slots:\n" + slots)
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines * 20))
    arguments = [
        "-c", CONFIG, "--run-dir", tmp_path / "run", "-o", f"data.format={data_format}",
        f"data.slots={tmp_path}/slots.yaml", f"data.train_files=[{tmp_path}/a.txt]",
        f"data.test_files=[{tmp_path}/a.txt]", "model.hidden=[4]", "data.batch_size=3",
        "trainer.evaluate_passes=after",
    ]  # fmt: skip
    done = tool("train", *arguments)
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert (line["samples"], line["bad_lines"], line["test"]["size"]) == (60, 0, 60)


EXIT_CODES = {
    "ConfigError": 2, "DataError": 3, "StoreError": 4, "TrainingError": 5, "StoreLockedError": 6,
    "GuardError": 7, "ImportError": 1,
}  # fmt: skip


class TestMistakes:
    """A message on stderr that says what to do, the exit code of its kind, and no traceback."""

    def failed(self, done: Any, *messages: str) -> None:
        assert "Traceback" not in done.stderr
        lines = [line.partition(": ") for line in done.stderr.splitlines()]
        said = [(EXIT_CODES[kind], text) for kind, _, text in lines if kind in EXIT_CODES]
        assert [code for code, _ in said] == [done.returncode], done.stderr
        assert done.stderr.count(said[0][1]) == 1  # by no line of the log, too
        for message in messages:
            assert message in done.stderr

    def test_a_typo_in_the_config(self, data: Path, tmp_path: Path) -> None:
        done = tool(
            "train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data, "data.batchsize=8")
        )
        self.failed(done, "ConfigError", "data.batchsize", "batch_size")
        assert not (tmp_path / "r").exists()

    def test_files_that_are_not_there(self, tmp_path: Path) -> None:
        done = tool(
            "train",
            "-c",
            CONFIG,
            "--run-dir",
            tmp_path / "r",
            "-o",
            "data.train_files=[/none/*.gz]",
        )
        self.failed(done, "DataError: /none/*.gz: no file matches")

    def test_a_run_dir_that_is_a_file(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "r").write_text("")
        done = tool("train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data))
        self.failed(done, "StoreError", str(tmp_path / "r"))

    def test_a_run_dir_that_cannot_be_made(self, data: Path) -> None:
        done = tool("train", "-c", CONFIG, "--run-dir", "/proc/run", *overrides(data))
        self.failed(done, "StoreError: /proc/run: cannot be used as a run dir")

    def test_metrics_that_cannot_be_written(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "r" / "metrics.jsonl").mkdir(parents=True)
        done = tool("train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data))
        self.failed(done, f"StoreError: {tmp_path}/r/metrics.jsonl: cannot be written")

    def test_a_second_trainer_in_one_run_dir(self, data: Path, tmp_path: Path) -> None:
        from paddlebox.store.version_store import VersionStore

        (tmp_path / "r").mkdir()
        first = VersionStore.open_writer(tmp_path / "r" / "store")
        try:
            done = tool("train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data))
        finally:
            first.close()
        self.failed(done, "StoreLockedError", str(os.getpid()))

    def test_a_library_that_does_not_load_is_an_error_with_the_remedy(
        self, data: Path, tmp_path: Path
    ) -> None:
        # A Paddle of another version, as pip could leave it behind.
        (tmp_path / "paddle").mkdir()
        (tmp_path / "paddle" / "__init__.py").write_text(
            "class version:\n    full_version = '2.0.0'\n    commit = cuda_version = 'none'\n"
        )
        done = tool(
            "train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data),
            env={"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        self.failed(done, "ImportError: ", "2.0.0")

    def test_evaluate_without_a_run(self, data: Path, tmp_path: Path) -> None:
        done = tool("evaluate", "-c", CONFIG, "--run-dir", tmp_path / "none", *overrides(data))
        self.failed(done, "StoreError", "holds no store")

    def test_evaluate_with_another_layout(self, data: Path, run_dir: Path) -> None:
        done = tool(
            "evaluate", "-c", CONFIG, "--run-dir", run_dir, *overrides(data, "table.embedx_dim=4")
        )
        self.failed(done, "ConfigError", "embedx_dim")

    def test_ranks_without_a_launcher(self, data: Path, tmp_path: Path) -> None:
        done = tool(
            "train", "-c", CONFIG, "--run-dir", tmp_path / "r", *overrides(data),
            env={"PADDLE_TRAINERS_NUM": "2"},
        )  # fmt: skip
        self.failed(done, "PADDLE_TRAINERS_NUM is 2", "paddle.distributed.launch")

    def test_malformed_input(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("1 1\n" * 10)
        done = tool(
            "train", "-c", CONFIG, "--run-dir", tmp_path / "r",
            "-o", f"data.train_files=[{tmp_path}/a.txt]",
        )  # fmt: skip
        self.failed(done, "DataError: 10 of 10 lines are malformed", f"{tmp_path}/a.txt:1: ")

    def test_a_learning_rate_that_explodes(self, data: Path, tmp_path: Path) -> None:
        done = tool(
            "train", "-c", CONFIG, "--run-dir", tmp_path / "r",
            *overrides(data, "optimizer.learning_rate=1e38", "optimizer.type=sgd"),
        )  # fmt: skip
        self.failed(done, "TrainingError: the loss of batch", "last commit")
