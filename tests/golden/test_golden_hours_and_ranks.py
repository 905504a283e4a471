"""A run by the hour with all that lies beside it, and a run of two ranks, as an earlier release
left them: they are read, served, restored and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.saves.served import Served
from paddlebox.serving.predictor import Predictor
from paddlebox.serving.source import RunSource
from tests.golden.make_run import train
from tests.golden.test_golden_runs import expected, tool, unpack
from tests.support.marks import long

BY_THE_HOUR, OF_RANKS = "hours_v2", "ranks_v2"


def probabilities(path: Path) -> list[float]:
    """Of an export file, for known users and items, and unknown ones."""
    with Predictor(path, follow_s=0) as predictor:
        offsets, dense = np.arange(3, dtype=np.int32), np.ones((1, 1), np.float32)
        return [
            predictor.predict_feasigns(np.array(pair, np.uint64), offsets, dense).item()
            for pair in ((100, 200), (101, 202), (7, 8))
        ]


@pytest.mark.parametrize("name", [BY_THE_HOUR, OF_RANKS])
def test_it_is_sound_and_holds_the_rows_it_was_left_with(name: str, tmp_path: Path) -> None:
    work, wanted = unpack(name, tmp_path), expected(name)
    found = json.loads(tool(work, "store", "verify", "run", "--json"))
    stores = found if isinstance(found, list) else [found]
    assert [store["damage"] for store in stores] == [[]] * (2 if name == OF_RANKS else 1)
    found = json.loads(tool(work, "store", "digest", "run", "--json"))
    whole = found[-1] if isinstance(found, list) else found
    assert whole["sparse_digest"] == wanted["sparse_digest"]


def test_its_saves_hold_the_rows_of_its_newest_commit(tmp_path: Path) -> None:
    work = unpack(BY_THE_HOUR, tmp_path)
    (save,) = chain = chain_of(open_save(work / "saves/20240102/base"))
    assert (save.meta["pass_number"], save.meta["date"]) == (2, "20240102")
    saved = [np.concatenate(part) for part in zip(*Served(chain).chunks(), strict=True)]
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    with RunSource(work / "run") as source:
        source.visit(lambda feasigns, rows: kept.append((feasigns.copy(), rows.copy())))
    keys, rows = (np.concatenate(part) for part in zip(*kept, strict=True))
    assert len(saved[1]) == len(keys) > 10
    served = [0, 1, 2, 4, *range(6, rows.shape[1])]  # without delta_score and life_seq
    np.testing.assert_array_equal(
        saved[1][:, served].view(np.uint32), rows[:, served].view(np.uint32)
    )


@pytest.mark.slow
def test_its_export_predicts_as_one_that_is_made_now(tmp_path: Path) -> None:
    work = unpack(BY_THE_HOUR, tmp_path)
    tool(work, "export", "run", "--out", "new")
    old = probabilities(work / "model")
    assert old == pytest.approx(probabilities(work / "new"), abs=1e-6)
    assert len({*old}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("of", ["run", long("copies")])
def test_its_days_go_on_from_the_run_dir_and_from_the_copies(of: str, tmp_path: Path) -> None:
    work = unpack(BY_THE_HOUR, tmp_path)
    if of == "copies":
        (work / "run").rename(work / "lost")
        tool(work, "store", "restore", "copies", "run")
        digest = json.loads(tool(work, "store", "digest", "run", "--json"))
        assert {name: digest[name] for name in ("sparse_digest", "dense_digest")} == {
            name: expected(BY_THE_HOUR)[name] for name in ("sparse_digest", "dense_digest")
        }
    tool(work, "train", "-c", "config.yaml", "--run-dir", "run")
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["hour"] == "2024-01-02T01:00+00:00"
    assert [line["pass"] for line in lines] == ([1, 2, 3] if of == "run" else [2, 3])
    summary = json.loads((work / "run/summary.json").read_text())
    assert summary["resumed_after_pass"] == 2
    assert summary["sparse_digest"] != expected(BY_THE_HOUR)["sparse_digest"]
    # The chain of saves goes on, from a copy with one base; and what was served with it.
    bases = ["20240101/base", "20240102/base", *["20240102/base-2"] * (of == "copies")]
    assert [done.name for done in donefile.read(work / "saves", "base")] == bases
    (delta,) = donefile.read(work / "saves", "delta")
    assert chain_of(open_save(work / "saves" / delta.name))[0].name == bases[-1]
    with Predictor(work / "model", follow_s=0) as predictor:
        assert predictor.generation.pass_number == 3


@pytest.mark.slow
def test_the_ranks_go_on_with_their_run(tmp_path: Path) -> None:
    work = unpack(OF_RANKS, tmp_path)
    (work / "part-3.txt").write_text((work / "part-2.txt").read_text())
    train(work, "-o", "data.files_per_pass=2", "data.batch_size=4", ranks=2)
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert [(line["pass"], line["samples"]) for line in lines] == [(1, 80), (2, 80)]
    summary = json.loads((work / "run/summary.json").read_text())
    assert (summary["resumed_after_pass"], summary["passes"]) == (1, 2)
