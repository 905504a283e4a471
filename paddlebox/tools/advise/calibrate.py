"""Measures `Rates` within seconds: each part of a pass by itself, on a sample of the data and a
scratch store. Nothing is trained: the rows get constant gradients, and the step of the dense part
is repeated on one batch.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config, Program, Slots
from paddlebox.data.batches import Feed, instances_of
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.store.table_set import TableSet
from paddlebox.tools.advise.rates import Rates
from paddlebox.tools.advise.workload import Sample
from paddlebox.train.metrics import TaskMetrics, sigmoid
from paddlebox.train.opening import create_dataset, feeding, open_table
from paddlebox.train.runner import Runner, build_runner

paddle = ops.paddle

FLOPS_A_WEIGHT = 6  # multiply and add, for the forward pass and for both gradients
_STEPS_S, _FEWEST_STEPS, _WARM_UP = 2.0, 12, 3
_SPIN_S = 0.3
_MANY_ROWS = 5_000
_INPUTS = 6  # input arrays of a program


@dataclass(frozen=True)
class Sizes:
    """Sizes of rows and of the dense part."""

    pass_row_bytes: int  # bytes of a row in a pass table, with its share of the index
    stored_row_bytes: int  # bytes of a row in MEM and on SSD
    max_pass_rows: int
    weights: int  # number of weights of the dense part


def calibrate(
    config: Config, slots: Slots, sample: Sample, folder: Path, disk_read_bytes_per_s: float
) -> tuple[Rates, Sizes]:
    """Measure the rates and sizes. This takes three to ten seconds.

    Args:
        folder: a folder on the disk of the store. It needs space for a copy of the sample's rows.
    """
    alone = {"threads": 1, "dedup_slots": "off", "train_files": [sample.path]}
    sections = {
        "data": config.data.model_copy(update=alone),
        "feeder": config.feeder.model_copy(update={"cache_bytes": 0}),  # so that each walk parses
    }
    config = config.model_copy(update=sections)
    threads = len(os.sched_getaffinity(0))
    cores = busy_cores(threads, _SPIN_S)
    with (
        open_table(config, folder / "store", slots=slots) as table,
        feeding(create_dataset(config, slots, table)) as dataset,
    ):
        runner = build_runner(config, slots)
        dataset.dense_state = runner.dense_state
        kernels, dense = _Kernels(config, table), _Dense(runner, table)
        first = _walk(dataset, table, sample.path, kernels.run)
        second = _walk(dataset, table, sample.path, dense.run)
        third = _walk(dataset, table, sample.path, kernels.run)
        metrics = TaskMetrics(dataset.tasks)
        predictions, labels = sigmoid(dense.logits), dense.feed["box_label"]
        metric_s = _mean_s(lambda: metrics.add(predictions, labels), 5) / dense.batch
        end_s = _mean_s(metrics.compute, 1) + _mean_s(runner.dense_state, 2)
        sizes = _sizes(table, runner)
    step_s = _mean_s(_empty_step(config.trainer.program), 20)
    cores = (cores + busy_cores(threads, _SPIN_S)) / 2
    mean = {stage: (first[stage] + second[stage] + third[stage]) / 3 for stage in first}
    ids, rows = max(1, kernels.ids), max(1.0, mean["rows"])
    sample_ids = max(1, ids // 2)  # the kernels ran over the sample twice
    # The second commit writes the rows of one batch; the first and the third write all rows. Take
    # the shorter of these two, because other syncs of the disk can make a commit ten times as long.
    # With few rows the difference is not significant.
    more, whole_s = rows - dense.rows, min(first["commit"], third["commit"])
    commit_row_s = max(0.0, whole_s - second["commit"]) / more if more > _MANY_ROWS else 0.0
    rates = Rates(
        format=config.data.format.value,
        parse_byte_s=(mean["read"] + mean["parse"]) / max(1, sample.text_bytes),
        key_id_s=mean["key"] / sample_ids,
        pack_id_s=mean["pack"] / sample_ids,
        stage_row_s=mean["stage"] / rows,
        commit_row_s=commit_row_s,
        commit_s=max(0.0, second["commit"] - dense.rows * commit_row_s),
        pull_id_s=kernels.pull_s / ids,
        push_id_s=kernels.push_s / ids,
        step_s=step_s,
        flops_per_s=FLOPS_A_WEIGHT
        * max(1, sizes.weights)
        * dense.batch
        / max(1e-6, dense.seconds - dense.kernel_s - step_s),
        dense_cores=dense.cpu_s / dense.seconds,
        metric_s=metric_s,
        first_step_s=max(0.0, dense.first_s - dense.seconds),
        end_s=end_s,
        cores=cores,
        disk_read_bytes_per_s=disk_read_bytes_per_s,
    )
    return rates, sizes


def sizes_of(config: Config, slots: Slots, folder: Path) -> Sizes:
    """The sizes, without measuring rates."""
    with open_table(config, folder / "store", slots=slots) as table:
        return _sizes(table, build_runner(config, slots))


def _sizes(table: TableSet, runner: Runner) -> Sizes:
    members = table.members
    return Sizes(
        pass_row_bytes=max(int(member.native.pass_bytes_per_row) for member in members),
        stored_row_bytes=max(int(member.native.stored_row_bytes) for member in members),
        max_pass_rows=min(table.max_pass_rows),
        weights=weights_of(runner.dense_state()),
    )


def _walk(
    dataset: InMemoryDataset, table: TableSet, path: str, run: Callable[[Iterator[Feed]], None]
) -> dict[str, float]:
    """Run one pass over the sample. Returns the seconds of each stage, and the number of rows."""
    dataset.set_filelist([path])
    dataset.load_into_memory()
    dataset.begin_pass()
    run(dataset.batches())
    stats = dataset.stats
    started = time.perf_counter()
    dataset.end_pass()
    table.wait_commit()
    commit = time.perf_counter() - started
    found = {stage: stats.times.seconds(stage) for stage in ("read", "parse", "key", "pack")}
    rows = sum(stats.hits.values())
    return {**found, "stage": stats.work_s["stage"], "commit": commit, "rows": rows}


class _Kernels:
    """Measures pulls and pushes, without a program."""

    def __init__(self, config: Config, table: TableSet) -> None:
        self._use_cvm = bool(getattr(config.model, "use_cvm", True))
        self._table = table
        self.ids, self.pull_s, self.push_s = 0, 0.0, 0.0

    def run(self, feeds: Iterator[Feed]) -> None:
        for feed in feeds:
            for number, member in enumerate(self._table.members):
                suffix = f"_{member.name}" if number else ""
                ids, offsets, plan = (
                    feed[f"box_{name}{suffix}"] for name in ("ids", "offsets", "plan")
                )
                slots = (len(offsets) - 1) // instances_of(feed)
                counts = 3 + len(member.config.counts)
                width = member.config.embedx_dim + (counts if self._use_cvm else 1)
                out = np.ones((len(offsets) - 1, width), np.float32)  # touches its pages
                grad = np.full_like(out, 1e-3)
                begin = time.perf_counter()
                member.native.pull_pooled(ids, offsets, slots, self._use_cvm, out)
                middle = time.perf_counter()
                show_click = feed["box_show_click"]
                member.native.push_pooled(
                    ids, offsets, slots, self._use_cvm, show_click, plan, grad
                )
                self.push_s += time.perf_counter() - middle
                self.pull_s += middle - begin
                self.ids += len(ids)


class _Dense:
    """Measures the step of the program, repeated on the first batch."""

    def __init__(self, runner: Runner, table: TableSet) -> None:
        self._runner, self._table = runner, table
        self.batch = self.rows = 0
        self.first_s = self.seconds = self.kernel_s = self.cpu_s = 0.0  # per step
        self.feed: Feed = {}
        self.logits: Any = None

    def run(self, feeds: Iterator[Feed]) -> None:
        self.feed = next(feeds)
        self.batch = instances_of(self.feed)
        self.rows = sum(
            len(np.unique(ids)) for name, ids in self.feed.items() if name.startswith("box_ids")
        )
        begin = time.perf_counter()
        self._step()
        self.first_s = time.perf_counter() - begin
        for _ in range(_WARM_UP):
            self._step()
        kernels, cpu = self._kernel_s(), time.process_time()
        begin, steps = time.perf_counter(), 0
        while steps < _FEWEST_STEPS or time.perf_counter() - begin < _STEPS_S:
            self._step()
            steps += 1
        self.seconds = (time.perf_counter() - begin) / steps
        self.cpu_s = (time.process_time() - cpu) / steps
        self.kernel_s = (self._kernel_s() - kernels) / steps
        for _ in feeds:  # reads all batches, so that the pass can end
            pass

    def _step(self) -> None:
        with ops.raising_own_errors():
            _, self.logits = self._runner.train_step(self.feed)

    def _kernel_s(self) -> float:
        counters = self._table.counters()
        return float(counters["pull_ns"] + counters["push_ns"]) / 1e9


def weights_of(dense_state: dict[str, np.ndarray]) -> int:
    """The number of elements in the matrices of a dense state, without the state of the optimizer,
    whose names begin with the name of a parameter."""
    names = list(dense_state)
    return sum(
        array.size
        for name, array in dense_state.items()
        if array.ndim == 2 and not any(name.startswith(f"{other}_") for other in names)
    )


def busy_cores(threads: int, seconds: float) -> float:
    """The CPU time per second that this many busy threads get together, in processors."""
    data = bytes(1 << 20)
    begin, used = time.perf_counter(), time.process_time()
    end = begin + seconds

    def spin() -> None:
        while time.perf_counter() < end:
            hashlib.sha256(data).digest()  # releases the GIL meanwhile

    workers = [threading.Thread(target=spin) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(0.1, (time.process_time() - used) / (time.perf_counter() - begin))


def _mean_s(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def _empty_step(program: Program) -> Callable[[], Any]:
    """A step of a program that does almost nothing with its inputs."""
    feed = {f"empty_{i}": np.ones((8, 4), np.float32) for i in range(_INPUTS)}
    if program is Program.DYGRAPH:
        return lambda: [float(paddle.to_tensor(array).mean()) for array in feed.values()]
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        inputs = [paddle.static.data(name, [-1, 4], "float32") for name in feed]
        out = paddle.mean(paddle.add_n(inputs))
    exe, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()

    def step() -> Any:
        with paddle.static.scope_guard(scope):
            return exe.run(main, feed=feed, fetch_list=[out])

    step()
    return step
