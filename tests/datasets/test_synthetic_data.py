"""The generated data is the same for the same seed, is what it says, and can be judged by."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from paddlebox.config import load_slots

FOLDER = Path(__file__).resolve().parents[2] / "datasets" / "synthetic"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("synthetic_prepare", FOLDER / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SMALL = ["--passes", "2", "--rows-per-pass", "3000", "--test-rows", "2000"]


@pytest.fixture(scope="module")
def made(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    assert prepare.main(["--out", str(out), *SMALL]) == 0
    return out


def digest(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.txt"))
    data = b"".join(name.encode() + (folder / name).read_bytes() for name in names)
    return hashlib.sha256(data).hexdigest()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    prepare: ModuleType, made: Path, tmp_path: Path
) -> None:
    prepare.main(["--out", str(tmp_path / "again"), *SMALL])
    prepare.main(["--out", str(tmp_path / "other"), *SMALL, "--seed", "2"])
    assert digest(tmp_path / "again") == digest(made)
    assert digest(tmp_path / "other") != digest(made)


def test_rows_do_not_depend_on_the_chunks_they_are_made_in(
    prepare: ModuleType, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "CHUNK_ROWS", 700)
    prepare.main(["--out", str(tmp_path), *SMALL])
    assert digest(tmp_path) == digest(made)


def test_a_complete_set_is_left_as_it_is_and_a_damaged_one_is_made_again(
    prepare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--out",
        str(tmp_path),
        "--passes",
        "2",
        "--rows-per-pass",
        "50",
        "--test-rows",
        "50",
    ]
    prepare.main(arguments)
    before = {path: os.stat(path).st_mtime_ns for path in tmp_path.iterdir()}
    prepare.main(arguments)
    assert {path: os.stat(path).st_mtime_ns for path in tmp_path.iterdir()} == before
    assert "complete already" in capsys.readouterr().out
    whole = (tmp_path / "test.txt").read_bytes()
    (tmp_path / "test.txt").write_bytes(whole[:-10])
    prepare.main(arguments)
    assert (tmp_path / "test.txt").read_bytes() == whole


def test_a_smaller_set_leaves_no_file_of_a_larger_one(prepare: ModuleType, tmp_path: Path) -> None:
    sizes = ["--rows-per-pass", "20", "--test-rows", "20"]
    (tmp_path / "mine.txt").write_text("stays")
    prepare.main(["--out", str(tmp_path), "--passes", "3", *sizes])
    prepare.main(["--out", str(tmp_path), "--passes", "1", *sizes])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mine.txt", "train-000.txt", "test.txt", "summary.json"}


def test_lines_are_multislot_text_of_the_slots_file(prepare: ModuleType, made: Path) -> None:
    slots = load_slots(FOLDER / "slots.yaml")
    assert [slot.name for slot in slots.sparse] == [law.name for law in prepare.SLOTS]
    clicks, largest = 0, 0
    lines = (made / "train-000.txt").read_text().splitlines()
    for line in lines:
        tokens = line.split(" ")
        at = 0
        for slot in slots.slots:
            count = int(tokens[at])
            found = tokens[at + 1 : at + 1 + count]
            at += 1 + count
            if slot is slots.label:
                assert found in (["0"], ["1"])
                clicks += int(found[0])
            elif slot in slots.dense:
                assert len(found) == slot.dim
                assert all(-1.0 <= float(text) <= 1.0 for text in found)
            else:
                assert 1 <= count <= 3
                assert all(0 < int(text) < 2**64 for text in found)
                largest = max(largest, *map(int, found))
        assert at == len(tokens)
    assert len(lines) == 3000
    assert 0.15 < clicks / len(lines) < 0.35
    assert largest > 2**63  # not only what fits a signed number


def test_the_summary_counts_what_is_there(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())

    def feasigns(name: str) -> set[str]:
        found = set()
        for line in (made / name).read_text().splitlines():
            tokens = line.split(" ")
            at = 7  # after the label and the dense numbers
            while at < len(tokens):
                count = int(tokens[at])
                found.update(tokens[at + 1 : at + 1 + count])
                at += 1 + count
        return found

    first, second = feasigns("train-000.txt"), feasigns("train-001.txt")
    assert summary["unique_keys"] == len(first | second)
    assert summary["files"]["train-001.txt"]["unique_keys"] == len(second)
    assert summary["files"]["train-001.txt"]["keys_seen_in_training_before"] == len(first & second)
    assert 0 < len(first & second) < len(second)  # passes overlap, and drift
    assert summary["model_bytes"] == summary["unique_keys"] * summary["row_bytes"]
    assert summary["train_rows"] == 6000


def test_the_best_auc_is_that_of_the_planted_model(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    assert 0.78 < summary["best_auc"] < 0.87
    rate = summary["files"]["test.txt"]["click_rate"]
    always_the_mean = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    assert summary["best_logloss"] < 0.9 * always_the_mean


def test_labels_are_drawn_with_the_planted_probability(prepare: ModuleType) -> None:
    vocabularies = [prepare.Vocabulary(law, 1) for law in prepare.SLOTS]
    rows = prepare.make_rows(vocabularies, seed=1, first=0, count=20_000, day=0)
    for low in np.arange(0.0, 0.8, 0.1):
        chosen = (rows.probability >= low) & (rows.probability < low + 0.1)
        expected = rows.probability[chosen]
        spread = np.sqrt((expected * (1 - expected)).sum())
        assert abs(rows.labels[chosen].sum() - expected.sum()) < 4 * spread


def test_auc_by_hand(prepare: ModuleType) -> None:
    labels = np.array([True, False, True, False])
    # Pairs (click, no click): 0.9>0.1, 0.9>0.5, 0.5>0.1, and 0.5=0.5 that counts half.
    assert prepare.best_auc(np.array([0.9, 0.1, 0.5, 0.5]), labels) == 3.5 / 4
    assert prepare.best_auc(np.array([0.1, 0.2, 0.1, 0.2]), labels) == 0.0


def test_draws_are_uniform_and_streams_independent(prepare: ModuleType) -> None:
    index = np.arange(100_000, dtype=np.uint64)
    a, b = prepare.uniform(1, "a", index), prepare.uniform(1, "b", index)
    for draws in (a, b):
        counts = np.histogram(draws, bins=20, range=(0.0, 1.0))[0]
        assert counts.sum() == 100_000
        assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-square, 19 degrees: far in the tail
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("bad", [["--passes", "0"], ["--seed", "-1"], ["--rows-per-pass", "x"]])
def test_arguments_out_of_range_are_refused(
    prepare: ModuleType, tmp_path: Path, bad: list[str]
) -> None:
    with pytest.raises(SystemExit):
        prepare.main(["--out", str(tmp_path), *bad])
    assert not list(tmp_path.iterdir())
