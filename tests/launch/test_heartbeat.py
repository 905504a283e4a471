"""What a rank reports in its heartbeat, and what is refused because the rank may start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox import heartbeat
from paddlebox.heartbeat import LINE, SILENT, Heartbeat
from paddlebox.launch.cli import train_main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beat").touch(0o600)
    return tmp_path / "beat"


def line(file: Path) -> list[str]:
    return file.read_text()[:LINE].split()


def test_each_step_and_stage_is_a_beat(file: Path) -> None:
    beats = Heartbeat(str(file))
    assert line(file) == ["1", "start", "-1"]
    beats.committed(4)
    for number in beats.steps([1, 2]):
        assert line(file) == [str(2 * number + 1), "step", "4", str(number)]
    assert line(file) == ["6", "load", "4", "after", "step", "2"]
    beats.stage("commit", "pass " + "9" * 2 * LINE)
    assert file.read_text()[LINE - 1] == "\n"


def test_a_wait_is_no_progress_and_ends(file: Path) -> None:
    beats = Heartbeat(str(file))
    beats.waits(1, "stage")
    assert line(file)[0] == "1"
    assert file.read_text()[LINE:].strip() == "1 stage"
    beats.waits(1, "")
    assert file.read_text()[LINE:].strip() == ""


def test_a_stage_that_reads_rows_beats_as_it_goes_on(file: Path) -> None:
    read = Heartbeat(str(file)).rows("rows of 2 ranks")
    read(131072)
    assert line(file) == ["3", "load", "-1", *["rows", "of", "2", "ranks:", "131072"]]


def test_without_a_file_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(heartbeat.FILE, raising=False)
    heartbeat.of_process().stage("load")
    SILENT.waits(1, "stage")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--fresh"], "--fresh"), (["--from", "20240105"], "--from"), ([], "no --run-dir")],
)
def test_what_each_start_would_do_again_is_refused_if_the_rank_may_start_again(
    arguments: list[str],
    said: str,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(heartbeat.FILE, str(file))
    run_dir = ["--run-dir", str(file.parent / "run")] if arguments else []
    assert train_main(["-c", "configs/dnn_synthetic.yaml", *run_dir, *arguments]) == 2
    assert f"{said} under paddlebox train-on-ray" in capsys.readouterr().err
