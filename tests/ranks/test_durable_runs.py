"""Saves, exports, copies and warm starts of two ranks, as the tools make them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from paddlebox.errors import TrainingError
from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.saves.reader import Served
from paddlebox.serving.gate import Gate
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import export
from paddlebox.store.group import ALL_KEYS
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.stored_rows import StoredRows
from paddlebox.store.table import fields_of_rows
from tests.conftest import tool
from tests.ranks.launched import launch, run_launched, summary
from tests.ranks.worker import SLOTS, write_rows
from tests.support.configs import write_config, write_slots


def _served(run_dir: Path) -> list[np.ndarray]:
    """Keys and rows that a base of the run's newest commit has."""
    chunks: list[tuple[np.ndarray, np.ndarray]] = []
    with RunSource(run_dir) as source:
        source.visit(lambda feasigns, rows: chunks.append((feasigns.copy(), rows.copy())))
    return [np.concatenate(parts) for parts in zip(*chunks, strict=True)]


def check_saves(out: Path, run_dir: Path) -> None:
    """There is a base and a delta for each pass, once, and they serve the newest commit."""
    assert [done.name for done in donefile.read(out, "base")] == ["00000000/base"]
    deltas = [done.name for done in donefile.read(out, "delta")]
    assert deltas == [f"00000000/delta-{number}" for number in (2, 3, 4)]
    chain = chain_of(open_save(out / deltas[-1]))
    assert all(len(save.meta["ranks"]) == 2 for save in chain)
    keys, rows = (np.concatenate(part) for part in zip(*Served(chain).chunks(), strict=True))
    _, expected = _served(run_dir)
    assert len(keys) == len(expected) > 10000
    for column in range(rows.shape[1]):
        if column not in (3, 5):  # delta_score and life_seq mean nothing outside of the table
            np.testing.assert_array_equal(
                rows[:, column].view(np.uint32), expected[:, column].view(np.uint32)
            )


@pytest.mark.slow
def test_ranks_write_one_base_and_one_delta_a_pass_which_serve_the_newest_commit(
    undisturbed: Path,
) -> None:
    check_saves(undisturbed.parent / "out", undisturbed)


@pytest.mark.slow
def test_an_export_of_all_ranks_predicts_as_the_training_program(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    line = json.loads((undisturbed / "metrics.jsonl").read_text().splitlines()[-1])
    auc = line["test"]["auc"]
    with RunSource(undisturbed) as source:
        export(source, tmp_path / "m", gate=Gate([str(data / "test.txt")], min_auc=auc - 1e-5))
    with RunSource(undisturbed) as source, pytest.raises(TrainingError, match="AUC"):
        export(source, tmp_path / "n", gate=Gate([str(data / "test.txt")], min_auc=auc + 1e-5))


@pytest.mark.slow
def test_a_rank_whose_folder_is_gone_comes_back_from_its_copy_and_else_is_named(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    for folder in ("run", "copies", "out"):
        shutil.copytree(undisturbed.parent / folder, tmp_path / folder)
    shutil.rmtree(run_dir / "ranks/1")
    done = launch("train", run_dir, data)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("sparse_digest", "dense_digest"):
        assert summary(run_dir / "ranks/1")[name] == summary(undisturbed)[name]
    shutil.rmtree(run_dir / "ranks/1")
    done = launch("train", run_dir, data, "checkpoint.copy_to=''")
    assert done.returncode != 0
    logs = "".join(path.read_text() for path in (tmp_path / "log").glob("workerlog.*"))
    assert "rank 1 (0x8000000000000000 to 0xffffffffffffffff) is gone" in logs


@pytest.mark.slow
def test_a_lost_folder_comes_back_from_parity_and_the_job_ends_as_the_undisturbed_one(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    """The first rank's folder with its manifest, in the middle; the other one at the end."""
    run_dir = tmp_path / "run"
    options = ["ranks.parity=2", "checkpoint.copy_to=''", "save.out=''"]
    first = ",".join(str(path) for path in sorted(data.glob("train-*.txt"))[:4])
    done = launch("train", run_dir, data, *options, f"data.train_files=[{first}]")
    assert done.returncode == 0, done.stdout + done.stderr
    for path in run_dir.iterdir():
        if path.name != "ranks":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = launch("train", run_dir, data, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["pass"] for line in lines] == [1, 2, 3, 4]
    # A line counts the sets that ended since the line before. A set may be written as slowly as the
    # next pass trains. That of the second start ends before the third pass is committed.
    assert sum(line["rank_parity"]["parity_bytes"] for line in lines[2:]) > 0
    # Saves reset the delta scores of rows, so the rows of the undisturbed run differ in these.
    assert summary(run_dir)["dense_digest"] == summary(undisturbed)["dense_digest"]
    shutil.rmtree(run_dir / "ranks/1")
    done = launch("train", run_dir, data, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("sparse_digest", "dense_digest"):
        assert summary(run_dir / "ranks/1")[name] == summary(run_dir)[name]
    assert tool("store", "verify", run_dir).returncode == 0


@pytest.mark.long
def test_two_ranks_start_from_two_others_leave_files_out_and_commit_every_second_pass(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "new"
    more = ["--init-from", str(undisturbed), "--skip-files", "train-001.txt"]
    done = launch("train", run_dir, data, "checkpoint.every=2", "save.out=''", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    folders = (run_dir, run_dir / "ranks/1")
    carried = [
        json.loads((folder / "init.json").read_text())["rows"]["carried"] for folder in folders
    ]
    assert carried == [record.live_rows for _, record in rank_versions(undisturbed / "store")]
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [4000, 8000, 8000, 8000]
    for folder in folders:
        stat = json.loads(tool("store", "stat", folder / "store", "--json").stdout)
        kinds = [(v["kind"], v["pass_number"]) for v in stat["versions"]]
        assert kinds == [("pass", 2), ("pass", 4)]


@pytest.mark.slow
def test_two_ranks_go_on_with_the_pass_of_one_as_one_would_have(tmp_path: Path) -> None:
    write_slots(tmp_path, **SLOTS)
    config = write_config(
        tmp_path,
        data={"format": "multislot", "files_per_pass": 2, "shuffle": False},
        model={"hidden": [16, 8]},
        table={"embedx_dim": 4, "embedx_threshold": 3},
    )
    (tmp_path / "nothing").write_text("")
    passes = []
    for seed in (1, 2):  # the same instances in each batch, of one rank and of two
        folder = tmp_path / str(seed)
        folder.mkdir()
        whole = [*write_rows(folder, 640, 1, 64, seed), str(tmp_path / "nothing")]
        passes.append((whole, write_rows(folder, 640, 2, 64, seed)))

    def train(run_dir: Path, ranks: int, files: list[str]) -> None:
        batch = f"data.batch_size={64 // ranks}"
        done = run_launched(
            ranks, "train", run_dir, config, f"data.train_files=[{','.join(files)}]", batch
        )
        assert done.returncode == 0, done.stdout + done.stderr

    one, moved = tmp_path / "one/run", tmp_path / "moved/run"
    train(one, 1, [*passes[0][0], *passes[1][0]])
    train(moved, 1, passes[0][0])
    train(moved, 2, [*passes[0][0], *passes[1][1]])
    assert len(rank_versions(moved / "store")) == 2
    rows = []
    for run_dir in (one, moved):
        with StoredRows(rank_versions(run_dir / "store")) as stored:
            feasigns, words = stored.read(*ALL_KEYS)
            rows.append((feasigns, fields_of_rows(stored.layout, words)))
    assert np.array_equal(rows[0][0], rows[1][0])
    for name in ("show", "click", "embed_w", "embedx_w", "embedx_state"):
        np.testing.assert_allclose(rows[1][1][name], rows[0][1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_rank_without_its_last_line_and_one_with_it_write_the_save_that_is_due(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    """Killed between the two lines, and before the save was made."""
    run_dir, out = tmp_path / "run", tmp_path / "out"
    for folder in ("run", "copies", "out"):
        shutil.copytree(undisturbed.parent / folder, tmp_path / folder)
    for rank_dir in (run_dir, run_dir / "ranks/1"):
        (rank_dir / "summary.json").unlink()
    own = run_dir / "ranks/1/metrics.jsonl"
    own.write_text("".join(own.read_text().splitlines(True)[:-1]))
    shutil.rmtree(out / "00000000/delta-4")
    listed = out / donefile.NAMES["delta"]
    listed.write_text("".join(listed.read_text().splitlines(True)[:-1]))
    done = launch("train", run_dir, data, "trainer.evaluate_passes=after")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(own.read_text().splitlines()) == 4
    check_saves(out, run_dir)
