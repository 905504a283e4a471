"""Further counts and late conversions in runs: rows, decay, restarts, exports, ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.training.measured import Measured
from tests.conftest import tool
from tests.support import processes
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "weights_small.py").read_text()
ROWS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two passes. The second one repeats some instances of the first, whose conversions came
    late."""
    random = np.random.default_rng(5)
    late: list[str] = []
    for number in range(2):
        lines = ["click,buy,cart,late,user,item\n", *late]
        for _ in range(ROWS):
            user, item = random.integers(1, 20), random.integers(30, 60)
            click, cart = int(random.random() < 0.5), random.integers(0, 4)
            buy = click * int(random.random() < 0.5)
            in_time = buy * int(random.random() < 0.5)
            lines.append(f"{click},{in_time},{cart},0,{user},{item}\n")
            if buy > in_time:
                late.append(f"1,1,{cart},1,{user},{item}\n")
        (tmp_path / f"{number}.csv").write_text("".join(lines))
    write_slots(
        tmp_path,
        click="label",
        buy="label",
        cart="count",
        late={"type": "late", "of": "buy"},
        user="sparse",
        item="sparse",
    )
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0, "counts": ["buy", "cart"]},
        data={
            "train_files": [f"{tmp_path}/[01].csv"],
            "files_per_pass": 1,
            "batch_size": 64,
            "key_space": "shared",
        },
        model={"type": "mmoe", "hidden": [8], "tower": [4], "experts": 2, "delayed_task": "buy"},
        trainer={"dense_threads": 1},
    )
    return tmp_path


def train(folder: Path, *overrides: str, run: str = "run", **more: Any) -> Any:
    options = {
        "config": str(folder / "config.yaml"),
        "folder": str(folder / run),
        "overrides": list(overrides),
        **more,
    }
    done = processes.run(["-c", SCRIPT, json.dumps(options)])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def late_lines(folder: Path) -> int:
    lines = (folder / "1.csv").read_text().splitlines()[1:]
    return sum(line.split(",")[3] == "1" for line in lines)


def expected_counts(folder: Path, decay: float = 1.0) -> dict[str, list[float]]:
    """show, click, buy, cart of each user and item. decay: between the two files."""
    sums: dict[str, np.ndarray] = {}
    for number in range(2):
        sums = {feasign: counts * decay for feasign, counts in sums.items()}
        for line in (folder / f"{number}.csv").read_text().splitlines()[1:]:
            click, buy, cart, late, *feasigns = line.split(",")
            shown = late == "0"
            counts = np.array(
                [shown, shown and int(click), int(buy), shown and int(cart)], np.float64
            )
            for feasign in feasigns:
                sums[feasign] = sums.get(feasign, 0) + counts
    return {feasign: counts.tolist() for feasign, counts in sums.items()}


class Seen:
    columns: Sequence[str] = ()

    def __init__(self) -> None:
        self.places: list[int] = []

    def add(
        self, predictions: np.ndarray, labels: np.ndarray, columns: Any, places: np.ndarray
    ) -> None:
        self.places += places.tolist()


def test_instances_that_are_left_out_shift_no_other() -> None:
    seen, labels = Seen(), np.array([[1], [0], [1]], np.float32)
    measured = Measured("box_label", (), None, (), seen)
    for trained in ([1, 0, 1], [0, 0, 0], [0, 1, 1]):
        feed = {"box_label": labels}
        measured.add_trained(np.array(trained) > 0, feed, {}, 1.0, labels)
    assert seen.places == [0, 2, 7, 8]
    assert (measured.samples, measured.left_out) == (4, 5)


@pytest.mark.slow
def test_dumps_and_diagnoses_leave_late_lines_out(folder: Path) -> None:
    random = np.random.default_rng(3)
    lines, ids = ["ins_id,click,buy,cart,late,user,item\n"], []
    for number in range(40):
        late = int(number % 5 == 1)
        ids += [] if late else [f"i{number}"]
        user, item = random.integers(1, 20), random.integers(30, 60)
        lines.append(f"i{number},{late},{late},0,{late},{user},{item}\n")
    (folder / "test.csv").write_text("".join(lines))
    test = f"data.test_files=[{folder}/test.csv]"
    found = train(folder, test, "table.life.base_threshold=0", dump=str(folder / "dump.txt"))
    assert found["error"] == ""
    assert found["test"]["samples"] == len(ids)
    dumped = (folder / "dump.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in dumped] == ids
    assert all("label:1:0\t" in line for line in dumped)
    out = folder / "found.json"
    done = tool("diagnose", folder / "run", "--out", out)
    assert done.returncode == 0, done.stderr
    diagnosed = json.loads(out.read_text())
    assert diagnosed["samples"] == len(ids)
    assert diagnosed["serving"]["largest_difference"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_rows_count_conversions_when_they_come(folder: Path, program: str) -> None:
    found = train(folder, f"trainer.program={program}")
    assert found["error"] == ""
    counts = {feasign: [*row[1:3], *row[-2:]] for feasign, row in found["rows"].items()}
    assert counts == expected_counts(folder)
    assert [line["samples"] for line in found["lines"]] == [ROWS, ROWS]
    assert [line["late_lines"] for line in found["lines"]] == [0, late_lines(folder)]


@pytest.mark.slow
def test_counts_decay_with_shows_and_clicks(folder: Path) -> None:
    options = [
        "data.date=20260101",
        "data.files_per_day=1",
        "table.life.show_click_decay_rate=0.5",
        "table.life.delete_threshold=0",
        "table.life.base_threshold=0",
    ]
    found = train(folder, *options)
    assert found["error"] == ""
    counts = {feasign: [*row[1:3], *row[-2:]] for feasign, row in found["rows"].items()}
    assert counts == expected_counts(folder, 0.5)


@pytest.mark.slow
def test_a_table_without_counts_trains_as_if_its_rows_had_none(folder: Path) -> None:
    """The other words of the rows have the same bits if the model does not read the counts."""
    options = ["model.use_cvm=false"]
    with_counts = train(folder, *options)
    without = train(folder, *options, "table.counts=[]", run="plain")
    assert with_counts["error"] == without["error"] == ""
    assert {key: row[:-2] for key, row in with_counts["rows"].items()} == without["rows"]
    assert with_counts["digests"][1] == without["digests"][1]
    assert with_counts["digests"][0] != without["digests"][0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", long("float16")])
def test_an_export_predicts_with_the_counts_of_the_rows(folder: Path, precision: str) -> None:
    random = np.random.default_rng(9)
    instances, lines = [], ["click,buy,cart,late,user,item\n"]
    for _ in range(200):
        user, item = int(random.integers(1, 22)), int(random.integers(30, 62))
        click, buy = int(random.random() < 0.5), int(random.random() < 0.3)
        instances.append({"user": user, "item": item})
        lines.append(f"{click},{click * buy},0,0,{user},{item}\n")
    (folder / "test.csv").write_text("".join(lines))
    options = [f"data.test_files=[{folder}/test.csv]", f"table.row_precision={precision}"]
    options += ["table.life.base_threshold=0", "model.use_cvm=true"]
    found = train(folder, *options, served=instances)
    assert found["error"] == ""
    check_served(found, lines[1:])


def check_served(found: Any, lines: Sequence[str]) -> None:
    """The predictions of the export have the log loss of the evaluation."""
    predicted = np.array(found["served"])
    assert predicted.shape == (len(lines), 2)
    for at, task in enumerate(("click", "buy")):
        labels = np.array([int(line.split(",")[at]) for line in lines])
        p = predicted[:, at]
        loss = -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))
        assert found["test"]["tasks"][task]["logloss"] == pytest.approx(loss, abs=1e-5), task


@pytest.mark.slow
def test_weights_of_ids_multiply_no_count(folder: Path) -> None:
    expected, random = expected_counts(folder), np.random.default_rng(4)
    for path in sorted(folder.glob("[01].csv")):
        head, *lines = path.read_text().splitlines()
        lines = [f"{line}:{random.integers(0, 5) / 2}" for line in lines]  # the weight of an item
        path.write_text("\n".join([head, *lines, ""]))
    write_slots(
        folder,
        click="label",
        buy="label",
        cart="count",
        late={"type": "late", "of": "buy"},
        user="sparse",
        item={"type": "sparse", "weighted": True},
    )
    (folder / "test.csv").write_text("\n".join([head, *lines, ""]))
    shown = [cells for cells in (line.split(",") for line in lines) if cells[3] == "0"]
    options = [f"data.test_files=[{folder}/test.csv]", "table.life.base_threshold=0"]
    found = train(folder, *options, served=[{"user": c[4], "item": c[5]} for c in shown])
    assert found["error"] == ""
    counts = {feasign: [*row[1:3], *row[-2:]] for feasign, row in found["rows"].items()}
    assert counts == expected
    check_served(found, [",".join(cells) for cells in shown])


@pytest.mark.slow
def test_a_store_with_other_counts_is_refused_and_a_warm_start_carries_them(folder: Path) -> None:
    first = train(folder)
    refused = train(folder, "table.counts=[cart]")
    assert "counts" in refused["error"]
    warm = train(
        folder,
        "table.counts=[cart, buy]",
        f"data.train_files=[{folder}/1.csv]",
        run="warm",
        source=str(folder / "run"),
    )
    assert (first["error"], warm["error"]) == ("", "")
    again: dict[str, np.ndarray] = {}
    for line in (folder / "1.csv").read_text().splitlines()[1:]:
        _, buy, cart, late, *feasigns = line.split(",")
        for feasign in feasigns:
            counts = [int(cart) * (late == "0"), int(buy)]
            again[feasign] = again.get(feasign, np.zeros(2)) + counts
    for feasign, row in warm["rows"].items():
        before = first["rows"].get(feasign, [0, 0])[-2:][::-1]
        assert row[-2:] == (again.get(feasign, 0) + np.array(before)).tolist(), feasign


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("table.counts=[user]", "no label and no slot of type count 'user'"),
        (
            "model.delayed_task=bye",
            "model.delayed_task: expected 'buy', the label that",
        ),
    ],
)
def test_a_mistake_is_named(folder: Path, override: str, expected: str) -> None:
    assert expected in train(folder, override)["error"]


@pytest.mark.slow
def test_a_delayed_task_needs_a_slot_that_marks_late_lines(folder: Path) -> None:
    write_slots(folder, click="label", buy="label", cart="count", user="sparse", item="sparse")
    assert "expected a slot of type late" in train(folder)["error"]
