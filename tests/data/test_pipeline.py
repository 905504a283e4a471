"""Stages: results in order whatever the threads, sums that add up, thread counts that follow what
waits, and a trace that a viewer can open."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.data.pipeline import (
    AFTER,
    BEFORE,
    STAGES,
    WORK,
    InOrder,
    LoadThreads,
    PackThreads,
    StageTimes,
    Threads,
    Tracer,
)
from tests.conftest import PATIENCE_S
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import multislot_lines


def in_order(
    source: Iterator[Any] | range,
    work: Callable[..., Any],
    threads: Threads | int = 4,
    ahead: int = 5,
    times: StageTimes | None = None,
    **stages: Any,
) -> InOrder[Any, Any]:
    chosen = threads if isinstance(threads, Threads) else Threads(threads, threads)
    stages = {"worker": "parse", "consumer": "key", **stages}
    return InOrder(iter(source), work, chosen, ahead=ahead, times=times or StageTimes(), **stages)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_the_order_of_the_source_whichever_thread_is_faster(threads: int) -> None:
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0 and threads > 1:
            assert second_done.wait(PATIENCE_S)  # the first is finished last
        if item == 1:
            second_done.set()
        return item * item

    with in_order(range(100), work, threads) as results:
        assert list(results) == [i * i for i in range(100)]


def test_no_more_than_ahead_items_are_taken_before_their_turn() -> None:
    taken = []

    def source() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    with in_order(source(), lambda item: item, threads=3, ahead=5) as results:
        for number, result in enumerate(results):
            assert result == number
            # Six: the consumer has given back the room of the one that it holds.
            assert len(taken) <= number + 1 + 5
    assert taken == list(range(100))


@pytest.mark.parametrize("where", ["source", "work"])
def test_an_error_comes_in_its_place_and_is_the_last(where: str) -> None:
    def source() -> Iterator[int]:
        for item in range(10):
            if where == "source" and item == 3:
                raise ValueError("item 3")
            yield item

    def work(item: int) -> int:
        if where == "work" and item == 3:
            raise ValueError("item 3")
        return item

    results = in_order(source(), work)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_left_early_it_ends_its_threads_and_closes_its_source() -> None:
    before = threading.active_count()
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with in_order(source(), lambda item: item) as results:
        assert next(results) == 1
    assert closed.is_set()
    assert threading.active_count() == before


def test_threads_come_and_go_while_it_runs() -> None:
    threads = Threads(1, 4)
    inside, together = threading.Semaphore(0), []
    gate = threading.Barrier(4)

    def work(item: int) -> int:
        inside.release()
        if 10 <= item < 14:
            together.append(gate.wait(PATIENCE_S))  # passes only when four work at once
        return item

    with in_order(range(40), work, threads, ahead=8) as results:
        assert [next(results) for _ in range(2)] == [0, 1]
        threads.now = threads.most
        assert [next(results) for _ in range(20)] == list(range(2, 22))
        assert len(together) == 4
        threads.now = 1
        assert list(results) == list(range(22, 40))


def test_work_and_waits_are_counted_by_stage() -> None:
    times = StageTimes()
    times.count("read", WORK, 0, 2_000_000_000)
    times.count("read", WORK, 0, 500_000_000)
    times.count("parse", BEFORE, 1, 1_000_000_001)
    sums = times.as_dict()
    assert sums["read"] == {WORK: 2.5, BEFORE: 0.0, AFTER: 0.0}
    assert sums["parse"] == {WORK: 0.0, BEFORE: 1.0, AFTER: 0.0}
    assert tuple(sums) == STAGES


def test_loading_takes_as_few_threads_as_are_done_in_time_and_more_where_the_trainer_waited() -> (
    None
):
    threads = LoadThreads(8)
    assert threads.now == 8  # nothing trains beside the first load
    threads.after_pass(thread_s=10, train_s=10, waited_s=0)
    assert threads.now == 2  # 10 s of work within 7 s
    threads.after_pass(thread_s=1, train_s=10, waited_s=0)
    assert threads.now == 1
    threads.now = threads.most
    threads.after_pass(thread_s=1, train_s=10, waited_s=0.2)
    assert threads.now == 2  # one was too few, whatever the sums say
    threads.after_pass(thread_s=1, train_s=10, waited_s=0)
    assert threads.now == 2
    threads.after_pass(thread_s=1000, train_s=10, waited_s=0)
    assert threads.now == 8


def test_a_trainer_that_waits_for_batches_gets_more_packers_and_one_that_does_not_gets_none() -> (
    None
):
    class Batches:
        """Each batch was waited for `waits` of the time that went by."""

        def __init__(self, waits: bool) -> None:
            self.waited_ns, self.waits = 0, waits

        def __iter__(self) -> Iterator[int]:
            for number in range(97):
                self.waited_ns += 10**12 if self.waits else 0
                yield number

    threads = PackThreads(1, 3)
    assert list(threads.watch(cast(InOrder[Any, Any], Batches(False)))) == list(range(97))
    assert threads.now == 1
    assert list(threads.watch(cast(InOrder[Any, Any], Batches(True)))) == list(range(97))
    assert threads.now == 3  # looked at after 32, 64 and 96


def train(dataset: UpstreamDataset, *files: str) -> list[dict[str, Any]]:
    """The batches of two passes, the second loaded beside the first."""
    fed = []
    dataset.set_filelist(list(files))
    dataset.preload_into_memory()
    for number in range(2):
        dataset.begin_pass()
        if number == 0:
            dataset.preload_into_memory()
        fed += [{name: array.copy() for name, array in feed.items()} for feed in dataset.batches()]
        dataset.end_pass()
    return fed


@pytest.mark.parametrize("settings", [{"thread_num": 0}, {"thread_num": 3, "pack_threads": 4}])
def test_tuned_or_many_threads_feed_the_same_bytes_as_one(
    open_dataset: OpenDataset, write_lines: WriteLines, settings: dict[str, Any]
) -> None:
    files = [write_lines(f"{i}.txt", multislot_lines(500, seed=i)) for i in range(6)]
    expected = train(open_dataset({"fields": {"name": "one"}}, pack_threads=1), *files)
    found = train(open_dataset({"fields": {"name": "many"}}, **settings), *files)
    assert len(found) == len(expected) == 2 * 94
    for one, other in zip(expected, found, strict=True):
        plan = one.pop("box_plan"), other.pop("box_plan")
        assert np.array_equal(plan[0][1:], plan[1][1:])  # the first number names the pass table
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_every_stage_of_a_pass_is_counted_and_traced(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    dataset.tracer = Tracer()
    train(dataset, write_lines("a.txt", multislot_lines(3000)))
    dataset._table.wait_commit()
    sums = dataset.stats.times.as_dict()
    assert all(sums[stage][WORK] > 0 for stage in STAGES)  # commit: of the pass before

    dataset.tracer.write(tmp_path / "traces" / "trace.json")
    trace = json.loads((tmp_path / "traces" / "trace.json").read_text())
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in events if e["cat"] == "work"} == set(STAGES)
    assert {e["args"]["pass"] for e in events} == {1, 2}
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    of_stage = {e["name"]: threads[e["tid"]] for e in events if e["cat"] == "work"}
    assert of_stage["parse"].startswith("paddlebox-parse")
    assert of_stage["pack"].startswith("paddlebox-pack")
    assert of_stage["commit"].startswith("paddlebox-commit")
    for thread in threads:  # of one thread: one after the other, or a viewer misplaces them
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == thread)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(mine))  # microseconds
    assert sum(1 for e in events if e["name"] == "train" and e["cat"] == "work") == 2 * 94


def test_a_trace_keeps_the_newest_events_within_its_bound(tmp_path: Path) -> None:
    tracer = Tracer(max_events=10)
    for number in range(25):
        tracer.add("train", "work", number * 1000, number * 1000 + 500, number)
    tracer.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["pass"] for e in events] == list(range(15, 25))
    assert (events[0]["ts"], events[1]["ts"], events[0]["dur"]) == (0, 1, 0.5)
    assert trace["otherData"] == {"events_dropped": 15}
