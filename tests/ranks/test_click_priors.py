"""Click priors on several ranks: instances see the clicks of the instances of all ranks, and all
ranks have the priors of one rank that trains all instances."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.data.batches import Feed
from paddlebox.data.click_counts import FOLDS
from paddlebox.ranks.plans import STEP
from paddlebox.ranks.world import World
from paddlebox.store.table import Table
from tests.conftest import PATIENCE_S
from tests.data.test_click_counts import CONFIG, MIB, Clicks, Instance, Run, fold_of, parsed
from tests.ranks.launched import CONFIG as RUN_CONFIG
from tests.ranks.launched import command, launch, overrides, summary
from tests.ranks.test_launched_runs import _passes, _workers
from tests.ranks.threads import coordination
from tests.support import processes
from tests.support.instances import SLOTS, multislot_lines

RANKS = 3
SIZES = (100, 60, 9)  # instances of each rank: the last one has batches for the others only


@dataclass
class Seen:
    """What one rank sees in each pass."""

    columns: list[np.ndarray]  # (instances, 4) shows and clicks of both slots
    priors: list[np.ndarray]


def counted(feed: Feed, width: int) -> np.ndarray:
    """(u, width) the merged gradient of a batch that counts shows and clicks, and changes no
    weight."""
    merged = np.zeros((len(feed[STEP].keys), width), np.float32)
    if feed[STEP].instances:
        lengths = np.diff(feed["box_offsets"])
        labels = np.repeat(feed["box_label"][:, 0], len(lengths) // len(feed["box_label"]))
        np.add.at(merged[:, 0], feed["box_ids"], 1)
        np.add.at(merged[:, 1], feed["box_ids"], np.repeat(labels, lengths))
    return merged


def trained(folder: Path, files: list[list[str]], ranks: int, **options: Any) -> list[Seen]:
    """(ranks) what the ranks see of passes over the files of each rank, the last of which is an
    evaluation."""

    def on(world: World) -> Seen:
        config = CONFIG.model_copy(update={"name": f"rank {world.rank}"})
        own = folder / f"{ranks}-{world.rank}"
        seen = Seen([], [])
        with Table(config, folder=own, mem_budget_bytes=MIB, world=world, **options) as table:
            dataset = UpstreamDataset(table, seed=1)
            dataset.init(slots=SLOTS, batch_size=16, click_slots=[0, 1])
            exchange: Any = table.exchange
            rows = exchange.shards[config.name].exchange
            for number, of_pass in enumerate(files, 1):
                train = number < len(files)
                dataset.set_test_mode(not train)
                dataset.set_click_priors(seen.priors.append)
                dataset.set_filelist([of_pass[world.rank]])
                dataset.load_into_memory()
                dataset.begin_pass()
                found = []
                for feed in dataset.batches():
                    found.append(feed["box_dense"][: feed[STEP].instances, 2:])
                    if train:
                        width = rows._columns
                        rows.give(feed[STEP], world.channels["step"], counted(feed, width))
                dataset.end_pass()
                seen.columns.append(np.concatenate(found))
            dataset.close()
        return seen

    return coordination(ranks, on)


def expected(before: Clicks, of_ranks: list[list[Instance]], number: int) -> list[np.ndarray]:
    """(R) the counts before the pass, and those of the instances of all ranks in other folds. The
    instances of each rank are numbered by themselves."""
    of_fold = [Clicks(before) for _ in range(FOLDS)]
    for instances in of_ranks:
        for at, instance in enumerate(instances):
            for fold in {*range(FOLDS)} - {fold_of(number, at)}:
                of_fold[fold].add(instance)
    return [
        np.array([of_fold[fold_of(number, at)].seen(one) for at, one in enumerate(instances)])
        for instances in of_ranks
    ]


def test_instances_see_the_clicks_of_all_ranks(tmp_path: Path) -> None:
    passes, files = [], []
    for number in range(3):
        lines = [multislot_lines(n, 10 * number + rank, 40) for rank, n in enumerate(SIZES)]
        passes.append([parsed(of_rank) for of_rank in lines])
        files.append([str(tmp_path / f"{number}-{rank}.txt") for rank in range(RANKS)])
        for file, of_rank in zip(files[-1], lines, strict=True):
            Path(file).write_text("".join(f"{line}\n" for line in of_rank))
    several, before = trained(tmp_path, files, RANKS), Clicks()
    for number, of_ranks in enumerate(passes[:-1]):
        for seen, found in zip(several, expected(before, of_ranks, number + 1), strict=True):
            np.testing.assert_array_equal(seen.columns[number], found)
        for instance in (instance for of_rank in of_ranks for instance in of_rank):
            before.add(instance)
    for seen, instances in zip(several, passes[-1], strict=True):
        np.testing.assert_array_equal(seen.columns[-1], [before.seen(one) for one in instances])
    with Run(tmp_path / "one") as one:
        for number, of_pass in enumerate(files[:-1]):
            whole = tmp_path / f"{number}.txt"
            whole.write_text("".join(Path(file).read_text() for file in of_pass))
            one.columns(str(whole))
    for seen in several:
        np.testing.assert_array_equal(seen.priors, several[0].priors)  # the same bits
    np.testing.assert_allclose(several[0].priors, one.priors, rtol=1e-6)


@pytest.mark.slow
def test_a_job_with_click_priors_whose_rank_is_killed_ends_as_an_undisturbed_one(
    data: Path, tmp_path: Path
) -> None:
    more = ("model.click_prior=true", "data.shuffle=true", "trainer.epochs=2")
    done = launch("train", tmp_path / "whole", data, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = tmp_path / "run"
    job = processes.start(
        command(2, "train", run_dir, RUN_CONFIG, *overrides(data, tmp_path), *more)
    )
    deadline = time.monotonic() + PATIENCE_S
    while _passes(run_dir) < 3 or not _workers(job.pid):
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.02)
    os.kill(_workers(job.pid)[-1], signal.SIGKILL)
    assert job.wait(PATIENCE_S) != 0
    done = launch("train", run_dir, data, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(run_dir)["resumed_after_pass"] in range(2, 8)
    for name in ("sparse_digest", "dense_digest", "samples"):
        for folder in (".", "ranks/1"):
            assert summary(run_dir / folder)[name] == summary(tmp_path / "whole")[name]
