"""The drills of docs/runbook.md: the commands that it gives to the person on call."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from paddlebox.serving.file import ExportFile
from tests.conftest import PATIENCE_S, ROOT, make_synthetic, tool
from tests.faults.crash_images import build_preloaded
from tests.faults.runs import feasigns_of, predictions
from tests.support.processes import start_tool

pytestmark = pytest.mark.slow

HOURS, BAD = 7, 5


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train-000.txt, one an hour; poisoned.txt is the bad one's with its labels flipped."""
    folder = make_synthetic(tmp_path_factory.mktemp("data"), passes=HOURS, rows=2000)
    flipped = []
    for line in (folder / f"train-{BAD:03}.txt").read_text().splitlines(keepends=True):
        assert line[:4] in ("1 0 ", "1 1 ")
        flipped.append(f"1 {1 - int(line[2])} {line[4:]}")
    (folder / "poisoned.txt").write_text("".join(flipped))
    return folder


class Site:
    """A folder of logs, and the run over them."""

    def __init__(self, folder: Path, hours: Path, *more: str) -> None:
        self.folder, self.run_dir, self._hours = folder, folder / "run", hours
        self.logs, self.more = folder / "logs", more
        for hour in range(HOURS):
            self.deliver(hour)

    def deliver(self, hour: int, name: str = "") -> None:
        into = self.logs / "20240101" / f"{hour:02}"
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._hours / (name or f"train-{hour:03}.txt"), into / "part-0.txt")

    def arguments(self, *words: str) -> list[str]:
        end = [] if "--backfill" in words else ["--until", f"20240101{HOURS - 1:02}"]
        return [
            "-c", "configs/deepfm_synthetic.yaml", "--run-dir", str(self.run_dir), *words, *end,
            "-o", "data.train_files=[]", "data.files_per_pass=0",
            f"data.path_template={self.logs}/{{date}}/{{hour}}", "data.from_hour=20240101",
            "data.missing_hour=skip", "data.late_s=0.0",
            "model.hidden=[16]", "trainer.dense_threads=1", "data.batch_size=128",
            "optimizer.learning_rate=0.01", "table.embedx_threshold=0.5",
            "checkpoint.keep_versions=48", f"save.out={self.folder}/saves", *self.more,
        ]  # fmt: skip

    def train(self, *words: str, env: dict[str, str] | None = None) -> Any:
        return tool("train", *self.arguments(*words), env=env)

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "summary.json").read_text()))

    def status(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "status.json").read_text()))

    def outcome(self) -> list[Any]:
        """What passes measured, and the dense state. (What rows count since a save is not there: a
        base counts anew what a delta does not.)"""
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        measured = [(line["hour"], line["metrics"]) for line in map(json.loads, lines)]
        return [measured, self.summary()["dense_digest"]]

    def digests(self) -> tuple[str, str]:
        return self.summary()["sparse_digest"], self.summary()["dense_digest"]


@pytest.fixture(scope="module")
def without(hours: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The run that never saw the bad hour."""
    site = Site(tmp_path_factory.mktemp("without"), hours)
    shutil.rmtree(site.logs / "20240101" / f"{BAD:02}")
    done = site.train()
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture(scope="module")
def whole(hours: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The run that nothing disturbed."""
    site = Site(tmp_path_factory.mktemp("whole"), hours)
    done = site.train()
    assert done.returncode == 0, done.stderr
    return site


#: Drills of the page, and the tests that go through them.
DRILLS = {
    "A poisoned log that the guard stops": ["test_a_poisoned_log_is_stopped_by_the_guard_and_"],
    "A bad hour that was trained": ["test_a_bad_hour_is_gone_back_over_and_serving_follows"],
    "A full disk": ["test_a_full_disk_is_an_alert_and_"],
    "A lost node": [
        "test_a_lost_node_is_replaced_from_the_copies_and_serving_goes_on",
        "test_a_rank_whose_folder_is_gone_comes_back_from_its_copy_and_else_is_named",
        "test_a_node_that_comes_back_gets_the_rows_of_those_that_went_on",
    ],
    "Days without the trainer": ["test_a_run_that_waits_is_stopped_at_once_and_backfills_"],
    "Stopping for work on the machine": [
        "test_a_run_that_waits_is_stopped_at_once_and_backfills_",
        "test_sigterm_ends_the_pass_on_every_rank_and_the_same_command_goes_on",
    ],
}


def test_each_drill_of_the_page_is_a_test() -> None:
    drills = (ROOT / "docs/runbook.md").read_text().partition("## Drills\n")[2]
    assert re.findall(r"^### (.*)$", drills, re.MULTILINE) == [*DRILLS]
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for drill, names in DRILLS.items():
        for name in names:
            assert any(test.startswith(name) for test in found), f"{drill}: no {name}"


def test_a_lost_node_is_replaced_from_the_copies_and_serving_goes_on(
    hours: Path, whole: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    export, copies = tmp_path / "model.export", tmp_path / "copies"
    site = Site(
        tmp_path, hours, f"publish.file={export}", f"checkpoint.copy_to={copies}",
        "table.life.delta_threshold=0.0",  # so that deltas leave nothing out
    )  # fmt: skip
    assert site.train("--until", "2024010104").returncode == 0
    shutil.rmtree(site.run_dir)  # with the machine; saves and copies are elsewhere
    # Copies fall behind passes this short: of the pass before the last, or an older one.
    label = sorted(p.name for p in (copies / "checkpoints").iterdir() if "000000005-" not in p.name)
    done = tool("store", "restore", copies, site.run_dir, "--version", label[-1])
    assert done.returncode == 0, done.stderr
    copied = int(label[-1].split("-")[1])
    done = site.train()
    assert done.returncode == 0, done.stderr
    assert site.outcome()[0] == whole.outcome()[0][copied - 1 :]
    assert site.summary()["dense_digest"] == whole.summary()["dense_digest"]
    served = [json.loads(text) for text in (site.run_dir / "served.jsonl").read_text().splitlines()]
    bases = [line for line in served if "/base" in line["name"]]
    assert [(line["name"], line["pass_number"]) for line in bases] == [("20240101/base-2", copied)]
    assert [line["pass_number"] for line in served] == [*range(copied, HOURS + 1)]
    fresh = tmp_path / "fresh"
    done = tool("export", site.run_dir, "--out", fresh, "--threshold", "1.5")  # as saves do
    assert done.returncode == 0, done.stderr
    feasigns = feasigns_of(site.run_dir)
    assert predictions(export, feasigns) == predictions(fresh, feasigns)


@pytest.mark.long
def test_an_hour_without_instances_is_a_pass_without_them_and_an_alert(
    hours: Path, tmp_path: Path
) -> None:
    site = Site(tmp_path, hours)
    (site.logs / "20240101/03/part-0.txt").write_text("")
    done = site.train("--until", "2024010104")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(text) for text in (site.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in lines] == [2000, 2000, 2000, 0, 2000]
    assert "alert empty_pass, firing: pass 4: " in done.stderr
    assert "alert empty_pass, resolved: pass 4: " in done.stderr


def test_a_poisoned_log_is_stopped_by_the_guard_and_skipped(
    hours: Path, without: Site, tmp_path: Path
) -> None:
    site = Site(
        tmp_path, hours, "checkpoint.guard.quality=stop", "alerts.max_auc_drop=0.1"
    )  # fmt: skip
    site.deliver(BAD, "poisoned.txt")
    done = site.train()
    assert done.returncode == 7, done.stderr
    assert f"pass {BAD + 1}: AUC " in done.stderr
    status = site.status()
    assert (status["state"], status["live"]) == ("failed", False)
    assert status["alerts"]["failed"].startswith("GuardError: ")
    assert status["last"]["hour"] == f"2024-01-01T{BAD - 1:02}:00+00:00"  # so the next one is bad
    done = site.train("--skip-files", f"20240101/{BAD:02}/*")
    assert done.returncode == 0, done.stderr
    assert site.digests() == without.digests()


def test_a_bad_hour_is_gone_back_over_and_serving_follows(
    hours: Path, without: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    export = tmp_path / "model.export"
    site = Site(
        tmp_path, hours, f"publish.file={export}", "trainer.evaluate_passes=before",
        "alerts.max_auc_drop=0.1",
        "table.life.delta_threshold=0.0",  # so that deltas leave nothing out
    )  # fmt: skip
    site.deliver(BAD, "poisoned.txt")
    done = site.train()  # no guard: the alert tells, and training goes on
    assert done.returncode == 0, done.stderr
    assert f"alert auc_drop, firing: pass {BAD + 1}: " in done.stderr
    # Serving first: what it showed before the bad hour.
    shown = json.loads(tool("export", export, "--show").stdout)
    good = next(g for g in shown["generations"] if g["pass_number"] == BAD)
    assert tool("export", export, "--pin", good["version"]).returncode == 0
    done = site.train("--from", f"20240101/{BAD}", "--skip-files", f"20240101/{BAD:02}/*")
    assert done.returncode == 0, done.stderr
    assert site.outcome() == without.outcome()
    assert tool("export", export, "--unpin").returncode == 0
    fresh = tmp_path / "fresh"
    done = tool("export", site.run_dir, "--out", fresh, "--threshold", "1.5")  # as saves do
    assert done.returncode == 0, done.stderr
    feasigns = feasigns_of(site.run_dir)
    assert predictions(export, feasigns) == predictions(fresh, feasigns)
    served = [json.loads(text) for text in (site.run_dir / "served.jsonl").read_text().splitlines()]
    names = [line["name"] for line in served]
    # Where it went back to is served at once, as a base; then goes on with deltas. The names
    # without -2 are the bad hour's.
    assert names[-2:] == ["20240101/base-2", f"20240101/delta-{BAD + 1}-2"]
    assert all(line["staleness_s"] > 0 and not line["refused"] for line in served)


def test_a_full_disk_is_an_alert_and_the_run_goes_on_where_there_is_room(
    hours: Path, whole: Site, tmp_path: Path
) -> None:
    site, full = Site(tmp_path / "f", hours), str(build_preloaded(tmp_path, "full"))
    done = site.train(
        env={"LD_PRELOAD": full, "PBX_FULL_ON": "/saves/", "PBX_FULL_AFTER": "200000"}
    )
    assert done.returncode == 4, done.stderr
    assert "o space" in done.stderr.splitlines()[-1]
    assert site.status()["state"] == "failed"
    done = site.train()
    assert done.returncode == 0, done.stderr
    assert site.digests() == whole.digests()
    assert site.status()["alerts"] == {}


def test_a_gate_keeps_a_poisoned_save_from_being_served(hours: Path, tmp_path: Path) -> None:
    export = tmp_path / "model.export"
    site = Site(
        tmp_path, hours, f"publish.file={export}", f"publish.gate_files=[{hours}/train-000.txt]",
        "alerts.copc=[0.6, 1.4]",
    )  # fmt: skip
    site.deliver(BAD, "poisoned.txt")
    done = site.train()
    assert done.returncode == 0, done.stderr
    lines = [json.loads(text) for text in (site.run_dir / "served.jsonl").read_text().splitlines()]
    refused = [line["pass_number"] for line in lines if line["refused"]]
    assert BAD + 1 in refused
    assert f"alert publish, firing: 20240101/delta-{BAD + 1}: " in done.stderr
    with ExportFile(export) as file, file.read() as txn:
        served = [generation.pass_number for generation in file.generations(txn)]
    assert served
    assert not {*refused} & {*served}


@pytest.mark.long
def test_a_run_that_waits_is_stopped_at_once_and_backfills_what_came_meanwhile(
    hours: Path, tmp_path: Path
) -> None:
    site = Site(tmp_path, hours, "data.missing_hour=wait")
    for hour in (3, 4, 5, 6):
        shutil.rmtree(site.logs / "20240101" / f"{hour:02}")
    process = start_tool("train", *site.arguments())
    until = time.monotonic() + PATIENCE_S
    while not (site.run_dir / "status.json").exists() or site.status()["state"] != "waits":
        assert time.monotonic() < until
        time.sleep(0.05)
    while (found := site.status()).get("last") is None or found["last"]["pass"] < 3:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, log
    assert site.status()["state"] == "stopped"
    site.deliver(3)
    site.deliver(4)
    done = site.train("--backfill", "2024010105..2024010106")
    assert done.returncode == 2
    assert "expected to go on with 2024-01-01T03:00+00:00" in done.stderr
    done = site.train("--backfill", "2024010103..2024010106")
    assert done.returncode == 3
    assert "hour 2024-01-01T05:00+00:00 is missing" in done.stderr
    site.deliver(5)
    site.deliver(6)
    assert site.train("--backfill", "2024010105..2024010106").returncode == 0
    assert site.summary()["passes"] == HOURS
