"""What goes wrong in training leaves the store at its last commit, and is one clear error."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.errors import OutOfSpaceError, PassError, StoreLockedError, TrainingError
from paddlebox.store.table import Table
from paddlebox.training.batch_loop import run_pass
from tests.conftest import make_synthetic, tool
from tests.data.test_protocol import load, push_ones, train
from tests.support import processes
from tests.support.fixtures import OpenDataset, OpenTable, WriteLines
from tests.support.inside import head_of, table_of
from tests.support.instances import multislot_lines


def reopened(open_table: OpenTable, folder: Path) -> tuple[Table, int, str]:
    table = open_table(folder=folder)
    return table, head_of(table).version, table.digest()


@pytest.fixture
def committed(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> tuple[UpstreamDataset, str, str]:
    """A dataset after one committed pass, the file of a next one, and the digest."""
    dataset = open_dataset({"folder": tmp_path / "store"})
    train(dataset, write_lines("a.txt", multislot_lines(100)))
    return dataset, write_lines("b.txt", multislot_lines(100, seed=2)), dataset._table.digest()


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_the_last_commit(
    committed: tuple[UpstreamDataset, str, str], open_table: OpenTable, tmp_path: Path, loss: float
) -> None:
    dataset, file, digest = committed
    load(dataset, file)
    seen = []

    def step(batch: dict[str, Any]) -> tuple[float, None]:
        push_ones(dataset, batch)
        seen.append(batch)
        return (0.5 if len(seen) < 3 else loss), None

    with pytest.raises(TrainingError, match="the loss of batch 3"):
        run_pass(dataset, step)
    with pytest.raises(PassError, match="reopen"):
        load(dataset, file)
        list(dataset.batches())
    dataset._table.close()
    assert reopened(open_table, tmp_path / "store")[1:] == (1, digest)


def test_an_error_in_a_step_stops_at_the_last_commit(
    committed: tuple[UpstreamDataset, str, str], open_table: OpenTable, tmp_path: Path
) -> None:
    dataset, file, digest = committed
    load(dataset, file)
    with pytest.raises(ZeroDivisionError):
        run_pass(dataset, lambda batch: (1 / 0, push_ones(dataset, batch)))
    dataset._table.close()
    assert reopened(open_table, tmp_path / "store")[1:] == (1, digest)


@pytest.mark.parametrize("bytes_left", [0, 3000])
def test_a_full_disk_leaves_the_last_commit_and_training_can_go_on_later(
    committed: tuple[UpstreamDataset, str, str],
    open_table: OpenTable,
    tmp_path: Path,
    bytes_left: int,
) -> None:
    dataset, file, digest = committed
    load(dataset, file)
    for batch in dataset.batches():
        push_ones(dataset, batch)
    core.inject_write_fault(bytes_left, errno.ENOSPC)
    try:
        dataset.end_pass()
        with pytest.raises(OutOfSpaceError, match=str(tmp_path / "store")):
            dataset._table.wait_commit()
    finally:
        core.inject_write_fault(-1, 0)
    dataset._table.close()
    table, version, found = reopened(open_table, tmp_path / "store")
    assert (version, found) == (1, digest)
    table.close()


def test_a_full_disk_under_the_dense_state(
    committed: tuple[UpstreamDataset, str, str],
    open_table: OpenTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset, file, digest = committed
    dataset.dense_state = lambda: {"w": np.ones(10, np.float32)}

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    load(dataset, file)
    for batch in dataset.batches():
        push_ones(dataset, batch)
    with monkeypatch.context() as patched:
        patched.setattr("paddlebox.store.files.os.fsync", full)
        dataset.end_pass()
        with pytest.raises(OutOfSpaceError, match="dense"):
            dataset._table.wait_commit()
    dataset._table.close()
    assert reopened(open_table, tmp_path / "store")[1:] == (1, digest)


@pytest.mark.slow  # a process that imports Paddle
def test_a_second_writer_names_the_first(
    committed: tuple[UpstreamDataset, str, str], open_table: OpenTable, tmp_path: Path
) -> None:
    code = f"""
from paddlebox.config import TableConfig
from paddlebox.store.table import Table
Table(TableConfig(embedx_dim=4, embedx_threshold=0.0), folder={str(tmp_path / "store")!r})
"""
    done = processes.run(["-c", code])
    assert done.returncode != 0
    assert StoreLockedError.__name__ in done.stderr
    assert str(os.getpid()) in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.7, 1.2, 2.0])
def test_a_killed_trainer_leaves_a_whole_version(
    tmp_path: Path, in_new_process: Callable[..., Any], delay: float
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    make_synthetic(data, passes=6, rows=20000, test_rows=50000)
    arguments = ["-c", "configs/deepfm_synthetic.yaml", "--run-dir", run, "-o"]
    arguments += [f"data.train_files=[{data}/train-*.txt]", f"data.test_files=[{data}/test.txt]"]
    trainer = processes.start_tool("train", *arguments)
    while not list(run.glob("store/MANIFEST-*")) and trainer.poll() is None:
        time.sleep(0.01)
    time.sleep(delay)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    done = tool("evaluate", *arguments)
    if done.returncode != 0:  # killed between the first MANIFEST file and its transaction
        assert "no version has been committed yet" in done.stderr
    else:
        assert '"auc": 0.' in done.stdout


def test_a_split_pass_that_fails_half_way_leaves_nothing_behind(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
    open_table: OpenTable,
    tmp_path: Path,
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store", "hbm_budget_bytes": 3 * 300 * 62})
    train(dataset, write_lines("a.txt", multislot_lines(200)))
    digest = dataset._table.digest()
    load(dataset, write_lines("b.txt", multislot_lines(400, seed=2)))
    begun = []

    def step(batch: dict[str, Any]) -> tuple[float, None]:
        assert dataset._stager.current is not None
        begun.append(dataset._stager.current.begun)
        push_ones(dataset, batch)
        return (float("nan") if begun[-1] == 2 else 0.5), None

    with pytest.raises(TrainingError):
        run_pass(dataset, step)
    assert begun[-1] == 2  # the first part had been written to the SSD tier
    for call in (dataset._table.digest, table_of(dataset).read_all, dataset._table.spill):
        with pytest.raises(PassError, match="reopen"):
            call()
    dataset._table.close()
    assert reopened(open_table, tmp_path / "store")[1:] == (1, digest)
