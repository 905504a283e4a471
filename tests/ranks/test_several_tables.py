"""Two tables of different width, of which several ranks each own a range."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.serving.source import RunSource
from tests.conftest import PATIENCE_S, ROOT, make_synthetic, tool
from tests.ranks.launched import (
    CONFIG,
    command,
    overrides,
    run_launched,
    summary,
)
from tests.ranks.test_ranks import _assert_same_model, _passes, _train, _train_each
from tests.ranks.worker import SLOTS
from tests.support import processes

_TABLES: dict[str, Any] = {
    "slots": {**SLOTS, "tags": {"table": "wide"}},
    "extra_tables": {
        "wide": {
            "embedx_dim": 12,
            "embedx_threshold": 2,
            "embed": {"rule": "adam"},
            "embedx": {"rule": "adam"},
        }
    },
}


def _assert_same_tables(one: dict[str, Any], several: dict[str, Any]) -> None:
    assert set(one["tables"]) == set(several["tables"]) == {"default", "wide"}
    for table in ("default", "wide"):
        of_one, of_several = ({**r, "rows": r["tables"][table]} for r in (one, several))
        _assert_same_model(of_one, of_several)
        assert all(len(rows) > 50 for rows in of_several["rows"].values())


@pytest.mark.slow
def test_two_ranks_train_the_rows_of_both_tables_that_one_trains(tmp_path: Path) -> None:
    """Over twenty steps."""
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), **_TABLES)
    two = _train(tmp_path / "two", 2, _passes(tmp_path / "b", 2), **_TABLES)
    _assert_same_tables(one, two)


@pytest.mark.long
@pytest.mark.parametrize("options", ["{}", "{rows: int8, gradients: int8}"])
def test_two_runs_of_two_hosts_of_two_ranks_end_with_the_same_bits(
    tmp_path: Path, options: str
) -> None:
    """Where hosts exchange, rows travel early."""
    settings = {"options": options, **_TABLES}
    trainings = {"first": settings, "again": settings}
    passes = _passes(tmp_path / "data", 4)
    first, again = _train_each(tmp_path, 4, passes, trainings, launchers=2).values()
    assert (again["digest"], again["dense"]) == (first["digest"], first["dense"])
    if options == "{}":
        one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), **_TABLES)
        _assert_same_tables(one, first)


@pytest.mark.long
def test_steps_that_do_not_wait_give_the_same_bits_in_each_run(tmp_path: Path) -> None:
    settings = {"options": "{staleness: 2}", **_TABLES}
    trainings = {"first": settings, "again": settings}
    first, again = _train_each(tmp_path, 2, _passes(tmp_path / "data", 2), trainings).values()
    assert (again["digest"], again["dense"]) == (first["digest"], first["dense"])


# ---- runs of tools/train.py


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_synthetic(tmp_path_factory.mktemp("data"), passes=8, rows=2000, test_rows=1000)
    text = (ROOT / "datasets/synthetic/slots.yaml").read_text()
    for name in ("tags", "region"):
        found = f"{{name: {name}, type: sparse}}"
        assert found in text
        text = text.replace(found, f"{{name: {name}, type: sparse, table: wide}}")
    (folder / "slots.yaml").write_text(text)
    return folder


def _overrides(files: Path, beside: Path) -> list[str]:
    wide = ("embedx_dim=20", "embedx_threshold=1.0", "life.base_threshold=0")
    return [
        *overrides(files, beside),
        *(f"extra_tables.wide.{text}" for text in (*wide, "life.delta_threshold=0")),
        f"data.slots={files}/slots.yaml",
        "mem.budget_bytes=16MiB",
    ]


def _launched(name: str, run_dir: Path, files: Path, *more: str, ranks: int = 2) -> Any:
    found = run_launched(ranks, name, run_dir, CONFIG, *_overrides(files, run_dir.parent), *more)
    assert found.returncode == 0, found.stdout + found.stderr
    return found


@pytest.fixture(scope="module")
def run_dir(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    _launched("train", folder, files, "trainer.evaluate_passes=after")
    return folder


def _rows(run_dir: Path) -> dict[str, np.ndarray]:
    """Of each table, what a base of the newest commit has."""
    chunks: dict[str, list[np.ndarray]] = {}
    with RunSource(run_dir) as source:
        for table, part in source.parts.items():
            own = chunks.setdefault(table, [])
            part.visit(lambda _, rows, own=own: own.append(rows.copy()))  # type: ignore[misc]
    return {name: np.concatenate(parts) for name, parts in chunks.items()}


@pytest.mark.slow
def test_a_run_of_both_tables_is_evaluated_saved_and_exported(run_dir: Path, files: Path) -> None:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in lines] == [4000] * 4
    assert set(lines[-1]["tables"]) == {"default", "wide"}
    assert lines[-1]["ranks"]["sent_bytes"]["rows"] > 0
    assert summary(run_dir)["sparse_digest"] == summary(run_dir / "ranks/1")["sparse_digest"]
    _launched("evaluate", run_dir, files)
    found = json.loads(next(run_dir.glob("evaluate-*.json")).read_text())
    assert found["auc"] == pytest.approx(lines[-1]["test"]["auc"], abs=1e-6)
    deltas = [done.name for done in donefile.read(run_dir.parent / "out", "delta")]
    assert len(deltas) == 3
    chain = chain_of(open_save(run_dir.parent / "out" / deltas[-1]))
    assert all(set(save.parts) == {"default", "wide"} for save in chain)
    done = tool("export", run_dir, "--out", run_dir.parent / "served")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_killed_between_the_commits_of_the_tables_it_ends_as_the_undisturbed_one(
    run_dir: Path, files: Path, tmp_path: Path
) -> None:
    killed, words = tmp_path / "run", _overrides(files, tmp_path)
    for versions in (1, 2):
        job = processes.start(command(2, "train", killed, CONFIG, *words))
        deadline = time.monotonic() + PATIENCE_S
        wide = killed / "ranks/1/store/tables/wide"
        while len(list(wide.glob("MANIFEST-*"))) < versions and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            if b"tools/train.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        assert job.wait(PATIENCE_S) != 0
    _launched("train", killed, files)
    for name in ("sparse_digest", "dense_digest"):
        assert summary(killed)[name] == summary(run_dir)[name]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_takes_the_rows_of_both_tables(
    files: Path, tmp_path: Path, ranks: int
) -> None:
    run_dir = tmp_path / "run"
    _launched("train", run_dir, files, "save.out=''")
    before, digest = _rows(run_dir), summary(run_dir)["sparse_digest"]
    (run_dir / "summary.json").unlink()  # so that it is written again
    _launched("train", run_dir, files, "save.out=''", ranks=ranks)
    assert not ranks > 2 or (run_dir / "ranks/2/store").is_dir()
    assert summary(run_dir)["sparse_digest"] == digest
    after = _rows(run_dir)
    for table in ("default", "wide"):
        assert len(before[table]) > 500
        np.testing.assert_array_equal(before[table].view(np.uint32), after[table].view(np.uint32))
