"""The page of `paddlebox compare`, over dumps of `paddlebox evaluate`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from paddlebox.tools.report.cli import compare_main
from paddlebox.tools.report.compare import read_dump
from tests.conftest import tool
from tests.tools.common import SAMPLES, trained


@pytest.fixture(scope="module")
def other(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns next to nothing."""
    folder = tmp_path_factory.mktemp("report-runs") / "two"
    return trained(data, folder, "optimizer.learning_rate=1e-6", "table.embed.learning_rate=1e-6")


def dumped(data: Path, run_dir: Path, out: Path, *arguments: object) -> Path:
    changed = ["table.embed.learning_rate=1e-6"] if run_dir.name == "two" else ["seed=1"]
    done = tool(
        "evaluate", "-c", data / "config.yaml", "--run-dir", run_dir, "--dump", out,
        "-o", *changed, *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_runs_are_shown_with_what_differs_and_how_sure_it_is(
    data: Path, run_dir: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = dumped(data, run_dir, tmp_path / "one.txt")
    second = dumped(data, other, tmp_path / "two.parquet")
    out = tmp_path / "page.html"
    arguments = [str(run_dir), str(other), "--out", str(out)]
    assert compare_main(arguments) == 0
    page = out.read_text()
    assert "needs predictions of each run" in page
    assert "<td>optimizer.learning_rate</td><td>0.01</td><td>1e-06</td>" in page
    assert "<td>data.batch_size</td>" not in page  # the same in both
    assert compare_main([*arguments, "--dumps", str(first), str(second)]) == 0
    page = out.read_text()
    assert "differ</td>" in page
    assert "two − one" in page
    assert compare_main([*arguments, "--dumps", str(first), str(first)]) == 0
    assert "may be the same" in out.read_text()
    capsys.readouterr()


def test_mistakes_are_reported(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare_main([str(run_dir)]) == 2
    assert "at least two run dirs" in capsys.readouterr().err
    assert compare_main([str(run_dir)] * 2 + ["--dumps", "a.txt"]) == 2
    assert "expected one for each of the 2 runs" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("0\tlabel:1:1\n")
    assert compare_main([str(run_dir)] * 2 + ["--dumps"] + [f"{tmp_path}/a.txt"] * 2) == 3
    assert "a.txt:1: expected <ins_id>" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dump_has_the_label_prediction_and_slots_of_every_instance(
    data: Path, run_dir: Path, tmp_path: Path
) -> None:
    slots = ("--dump-slots", "a", "c", "x")
    text = dumped(data, run_dir, tmp_path / "d.txt", *slots)
    lines = text.read_text().splitlines()
    source = (data / "part-3.txt").read_text().splitlines()
    assert len(lines) == len(source) == SAMPLES
    for number in (0, 1, 2999):
        fields = lines[number].split("\t")
        words = source[number].split(" ")  # 1 click 1 x 1 a 1 b n c…
        c = words[9]
        assert fields[0] == str(number)
        assert fields[1] == f"label:1:{words[1]}"
        assert fields[3] == f"a:1:{words[5]}"
        assert fields[4] == f"c:1:{c}"
        assert float(fields[5].removeprefix("x:1:")) == pytest.approx(float(words[3]))
    table = pq.read_table(dumped(data, run_dir, tmp_path / "d.parquet", *slots))
    assert table.column_names == ["ins_id", "label", "prediction", "a", "c", "x"]
    assert read_dump(text).values.tolist() == table["prediction"].to_pylist()


@pytest.mark.slow
def test_a_dump_has_the_ids_of_the_data(data: Path, run_dir: Path, tmp_path: Path) -> None:
    files = f"data.test_files=[{data}/with-ids-3.txt]"
    out = dumped(data, run_dir, tmp_path / "d.txt", files, "--dump-ins-id")
    found = read_dump(out)
    assert found.ids.tolist()[:2] == ["id-0", "id-1"]
    without = read_dump(dumped(data, run_dir, tmp_path / "e.txt"))
    assert found.values.tolist() == without.values.tolist()


@pytest.mark.slow
def test_a_slot_that_is_not_there_is_named_and_nothing_is_written(
    data: Path, run_dir: Path, tmp_path: Path
) -> None:
    done = tool(
        "evaluate", "-c", data / "config.yaml", "--run-dir", run_dir, "--dump", tmp_path / "d.txt",
        "--dump-slots", "aa",
    )  # fmt: skip
    assert done.returncode == 2
    assert "no slot 'aa'; did you mean 'a'?" in done.stderr
    assert list(tmp_path.iterdir()) == []
