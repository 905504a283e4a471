"""Saves, exports, copies and warm starts of two ranks, as the tools make them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.errors import TrainingError
from paddlebox.saves import chain_of, donefile, open_save
from paddlebox.saves.served import Served
from paddlebox.serving.gate import Gate
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import export
from paddlebox.store.rank_stores import rank_versions
from tests.conftest import make_synthetic, tool
from tests.ranks.test_launched_runs import launch, run_launched, summary
from tests.ranks.worker import SLOTS, write_rows

_ALL = ("table.life.base_threshold=0", "table.life.delta_threshold=0")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=6, rows=3000, test_rows=2000)


@pytest.fixture(scope="module")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks that saved and copied each of their three passes."""
    folder = tmp_path_factory.mktemp("runs")
    more = (*_ALL, *_kept_in(folder), "trainer.evaluate_after_pass=true")
    done = launch("train", folder / "run", data, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def _kept_in(folder: Path) -> tuple[str, ...]:
    return (f"save.out={folder}/out", f"checkpoint.copy_to={folder}/copies")


def _served(run_dir: Path) -> list[np.ndarray]:
    """Keys and rows that a base of the run's newest commit has."""
    chunks: list[tuple[np.ndarray, np.ndarray]] = []
    with RunSource(run_dir) as source:
        source.visit(lambda feasigns, rows: chunks.append((feasigns.copy(), rows.copy())))
    return [np.concatenate(parts) for parts in zip(*chunks, strict=True)]


@pytest.mark.slow
def test_ranks_write_one_base_and_one_delta_a_pass_which_serve_the_newest_commit(
    run_dir: Path,
) -> None:
    out = run_dir.parent / "out"
    assert [done.name for done in donefile.read(out, "base")] == ["00000000/base"]
    deltas = [done.name for done in donefile.read(out, "delta")]
    assert deltas == ["00000000/delta-2", "00000000/delta-3"]
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
def test_an_export_of_all_ranks_predicts_as_the_training_program(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    auc = line["test"]["auc"]
    with RunSource(run_dir) as source:
        export(source, tmp_path / "m", gate=Gate([str(data / "test.txt")], min_auc=auc - 1e-5))
    with RunSource(run_dir) as source, pytest.raises(TrainingError, match="AUC"):
        export(source, tmp_path / "n", gate=Gate([str(data / "test.txt")], min_auc=auc + 1e-5))


@pytest.mark.slow
def test_a_rank_whose_folder_is_gone_comes_back_from_its_copy_and_trains_on(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_dir, copied)
    shutil.rmtree(copied / "ranks/1")
    done = launch("train", copied, data, *_ALL, *_kept_in(run_dir.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("sparse_digest", "dense_digest"):
        assert summary(copied / "ranks/1")[name] == summary(run_dir)[name]
    shutil.rmtree(copied / "ranks/1")
    done = launch("train", copied, data, *_ALL)
    assert done.returncode != 0
    logs = "".join(path.read_text() for path in (tmp_path / "log").glob("workerlog.*"))
    assert "rank 1 (0x8000000000000000 to 0xffffffffffffffff) is gone" in logs


@pytest.mark.slow
def test_two_ranks_start_from_two_others_leave_files_out_and_commit_every_second_pass(
    run_dir: Path, data: Path, tmp_path: Path
) -> None:
    more = ["--init-from", str(run_dir), "--skip-files", "train-001.txt"]
    done = launch("train", tmp_path / "new", data, "checkpoint.every=2", *_ALL, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    carried = [
        json.loads((folder / "init.json").read_text())["rows"]["carried"]
        for folder in (tmp_path / "new", tmp_path / "new/ranks/1")
    ]
    assert carried == [record.live_rows for _, record in rank_versions(run_dir / "store")]
    lines = (tmp_path / "new/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [3000, 6000, 6000]
    for folder in (tmp_path / "new", tmp_path / "new/ranks/1"):
        stat = json.loads(tool("store", "stat", folder / "store", "--json").stdout)
        kinds = [(v["kind"], v["pass_number"]) for v in stat["versions"]]
        assert kinds[-2:] == [("pass", 2), ("pass", 3)]


_CONFIG = """
name: ranks
data: {{format: multislot, slots: {folder}/slots.yaml, train_files: [unused], files_per_pass: 2,
       shuffle: false}}
model: {{type: dnn, hidden: [16, 8]}}
table: {{embedx_dim: 4, embedx_threshold: 3}}
"""


@pytest.mark.slow
def test_two_ranks_go_on_with_the_pass_of_one_as_one_would_have(tmp_path: Path) -> None:
    (tmp_path / "slots.yaml").write_text(SLOTS)
    config = tmp_path / "config.yaml"
    config.write_text(_CONFIG.format(folder=tmp_path))
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
        out = run_dir.with_suffix(".parquet")
        assert tool("store", "dump", run_dir, "--out", out).returncode == 0
        rows.append(pq.read_table(out))
    assert rows[0]["feasign"].equals(rows[1]["feasign"])
    for name in ("show", "click", "embed_w", "embedx_w", "embedx_state"):
        values = [table[name].combine_chunks() for table in rows]
        expected, found = (
            np.array((of.flatten() if name.startswith("embedx") else of).to_numpy())
            for of in values
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
