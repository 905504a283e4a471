"""Lines and stores of several ranks as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.tools.report.run import Run, as_one, of_rank, waited, waited_for
from paddlebox.tools.report.state_figures import rank_figures


def _line(number: int, *waits: float, **more: Any) -> dict[str, Any]:
    by_rank = [
        {
            "samples": 10 + rank,
            "sent_bytes": 5,
            "waiting_seconds": {"step": w, "dense": 0, "ask": 9},
        }
        for rank, w in enumerate(waits)
    ]
    sent = {"rows": 5 * len(waits)}
    ranks = {"by_rank": by_rank, "sent_bytes": sent, "bytes_per_sample": 2.0}
    return {"pass": number, "samples": 21, "ranks": ranks, **more}


def test_the_rank_that_waits_least_in_steps_is_the_one_that_others_wait_for() -> None:
    line = _line(1, 0.5, 3.5, 2.5)
    assert of_rank(line, 1, "samples") == 11
    assert waited(line, 0) == 0.5  # waiting ahead of the steps holds no rank up
    assert waited_for(line, 3) == (0, 2.5)
    assert waited_for(_line(1, 0.5, 0.5), 2) is None
    assert waited_for(_line(1, 0.5), 2) is None  # one of them tells nothing
    assert waited_for({"pass": 1}, 2) is None


def test_figures_of_ranks_say_who_was_waited_for_and_what_each_did() -> None:
    lines = [_line(1, 2.0, 0.5), _line(2, 1.0, 0.25), _line(3, 0.0, 4.0)]
    run = Run(Path("run"), {}, lines, "finished", size=2)
    each, samples, sent, waits, slow = (figure.body for figure in rank_figures(run))
    assert "2 of 3" in each
    assert "1 of 3" in each
    assert "rank 1" in samples
    assert "rows" in sent
    assert "rank 1" in waits
    assert "1.50 s" in slow or "1.5 s" in slow
    assert "no rank waited" in "".join(f.body + f.note for f in rank_figures(
        Run(Path("run"), {}, [_line(1, 1.0, 1.0)], "finished", size=2)
    ))  # fmt: skip


def test_counts_of_ranks_are_added_up_and_waits_are_their_mean() -> None:
    own = {"hits": {"mem": 2, "new": 1}, "wait_s": {"load": 1.0}, "metrics": {"auc": 0.7}}
    store: dict[str, Any] = {
        "live_rows": 4,
        "stored_rows": 5,
        "segments": 1,
        "stored_bytes": 7,
        "depth": 1,
    }
    store |= {"memory_bytes": 1, "used_bytes": 9, "bytes_written": {"pass": 7}, "space_ratio": 1.0}
    first = Run(Path("run"), {}, [_line(1, 1, 2, **own), _line(2, 1, 2, **own)], "finished")
    first.size, first.store, first.disk_bytes = 3, store, 10
    first.journal = [{"kind": "pass", "pass": 1, "bytes": 7}]
    second = replace(
        first,
        lines=[_line(1, 1, 2, **{**own, "hits": {"mem": 5, "ssd": 3}, "wait_s": {"load": 3.0}})],
        store={**store, "live_rows": 12, "space_ratio": 2.0, "depth": 4},
    )
    run = as_one({0: first, 1: second})
    assert [line["hits"] for line in run.lines] == [{"mem": 7, "new": 1, "ssd": 3}, own["hits"]]
    assert [line["wait_s"]["load"] for line in run.lines] == [2.0, 1.0]
    assert [line["metrics"]["auc"] for line in run.lines] == [0.7, 0.7]
    assert (run.store["live_rows"], run.store["bytes_written"]) == (16, {"pass": 14})
    assert (run.store["depth"], run.store["space_ratio"]) == (4, 1.75)
    assert (run.disk_bytes, len(run.journal)) == (20, 2)
    assert "the folders of ranks 2 do not exist here" in run.missing["ranks"]
    assert first.lines[0]["hits"] == own["hits"]
