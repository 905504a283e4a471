"""What two processes train of files that they share."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.ranks.launched import CONFIG, launch, run_launched, summary
from tests.support import processes
from tests.support.marks import long

RANKS, VIEWS, ADS = 2, 60, 3
# User 10 v + r has page view v, which has instances in all files.
LINES = [
    f"1 {'k' * 11}0de{rank:02x}{view:016x} 1 0 1 {10 * view + rank}"
    for rank in range(1, ADS + 1)
    for view in range(1, VIEWS + 1)
]
TIMES, TIMED_USERS = 150, 15
ALL = sorted(10 * view + rank for view in range(1, VIEWS + 1) for rank in range(1, ADS + 1))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank got. The first has three of the four files, and most of the instances."""
    folder = tmp_path_factory.mktemp("shared")
    parts = {"a": LINES[:100], "b": LINES[100:110], "c": LINES[110:175], "d": LINES[175:]}
    for name, lines in parts.items():
        (folder / f"part-{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    for name, first in (("a", 0), ("b", 1)):
        timed = (timed_line(time) for time in reversed(range(1 + first, TIMES + 1, 2)))
        (folder / f"timed-{name}.txt").write_text("".join(timed))
    program = str(ROOT / "tests/ranks/sharing_program.py")
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS)]
    done = processes.run([*launcher, "--log_dir", str(folder / "log"), program, str(folder)])
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(RANKS)]


def timed_line(time: int) -> str:
    """A line whose search id is its time."""
    return f"1 {'k' * 11}0de01{time:016x} 1 {time} 1 0 1 {1 + time % TIMED_USERS}\n"


def flat(batches: list[list[list[int]]]) -> list[list[int]]:
    return [one for batch in batches for one in batch]


def users(of_ranks: list[dict[str, Any]], what: str) -> list[list[int]]:
    return [[user for _, user in flat(of_rank[what])] for of_rank in of_ranks]


@pytest.mark.slow
def test_page_views_are_those_of_one_rank(found: list[dict[str, Any]]) -> None:
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, of_rank in enumerate(found):
        for batch in of_rank["page views"]:
            views = [view for view, _ in batch]
            for view in set(views):
                ranks[view].append(rank)
                at = views.index(view)
                expected = [[view, 10 * view + ad] for ad in range(1, ADS + 1)]
                assert batch[at : at + ADS] == expected
                assert views.count(view) == ADS
    assert sorted(ranks) == list(range(1, VIEWS + 1))
    assert all(len(once) == 1 for once in ranks.values())
    assert {rank for (rank,) in ranks.values()} == {0, 1}


@pytest.mark.slow
def test_page_views_that_ranks_would_split_are_refused(found: list[dict[str, Any]]) -> None:
    for of_rank in found:
        expected = "preprocess_instance: 2 ranks share the instances of the pass by instance, "
        assert of_rank["split page views"].startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PadBoxSlotDataset", "InMemoryDataset"])
def test_page_views_by_user_are_those_of_one_rank(found: list[dict[str, Any]], name: str) -> None:
    """The instances of a user are in both files."""
    ranks: dict[int, set[int]] = defaultdict(set)
    times: dict[int, list[int]] = defaultdict(list)
    for rank, of_rank in enumerate(found):
        for time, user in flat(of_rank[f"users of {name}"]):
            ranks[user].add(rank)
            times[user].append(time)
    assert sorted(map(len, ranks.values())) == [1] * TIMED_USERS
    assert set.union(*ranks.values()) == {0, 1}
    assert all(of_user == sorted(of_user) for of_user in times.values())
    assert sum(map(len, times.values())) == TIMES


@pytest.mark.slow
def test_without_shuffling_a_rank_trains_its_own_files(found: list[dict[str, Any]]) -> None:
    own = users(found, "own files")
    assert [len(of_rank) for of_rank in own] == [165, 15]
    assert sorted(own[0] + own[1]) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("what", ["shuffled", "shuffled before"])
def test_a_global_shuffle_deals_the_instances(found: list[dict[str, Any]], what: str) -> None:
    assert [of_rank["loaded"] for of_rank in found] == [165, 15]
    shuffled = users(found, what)
    assert sorted(shuffled[0] + shuffled[1]) == ALL
    assert abs(len(shuffled[0]) - len(shuffled[1])) <= RANKS
    assert all(of_rank != sorted(of_rank) for of_rank in shuffled)


@pytest.mark.slow
def test_the_order_is_that_of_a_shuffle_before_loading(found: list[dict[str, Any]]) -> None:
    for of_rank in found:
        assert of_rank["shuffled"] == of_rank["shuffled before"]


@pytest.mark.slow
def test_all_ranks_read_parts_of_the_same_files(found: list[dict[str, Any]]) -> None:
    by_user = users(found, "by user")
    assert sorted(by_user[0] + by_user[1]) == ALL
    assert min(map(len, by_user)) > len(ALL) / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    ["auto", *map(long, ("slot user", "instance", "bytes", "files"))],
)
def test_one_file_a_pass_feeds_both_ranks(data: Path, tmp_path: Path, share: str) -> None:
    alone = ("save.out=''", "checkpoint.copy_to=''")
    settings = ("data.files_per_pass=1", f"data.share={share}", *alone)
    done = launch("train", tmp_path / "run", data, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    of_ranks = [json.loads(line)["ranks"]["by_rank"] for line in lines]
    samples = [[of_ranks[at][rank]["samples"] for rank in range(RANKS)] for at in range(len(lines))]
    assert all(sum(of_pass) == 4000 for of_pass in samples)
    if share == "files":
        assert all(min(of_pass) == 0 for of_pass in samples)
        assert "8 of 8 passes have fewer files than the 2 ranks" in done.stdout + done.stderr
    else:
        assert all(min(of_pass) > (1900 if share != "slot user" else 1000) for of_pass in samples)
    assert summary(tmp_path / "run")["samples"] == 8 * 4000


@pytest.mark.long
def test_a_run_that_shares_instances_ends_with_the_same_bits_after_a_kill(
    data: Path, tmp_path: Path
) -> None:
    """`trainer.max_passes` ends the first start early."""
    settings = (
        f"data.train_files=[{data}/train-*.txt]",
        f"data.test_files=[{data}/test.txt]",
        *("data.files_per_pass=3", "data.share=instance", "data.shuffle=true"),
        *("model.hidden=[16]", "trainer.dense_threads=1"),
    )
    for name in ("whole", "again"):
        done = run_launched(RANKS, "train", tmp_path / name / "run", CONFIG, *settings)
        assert done.returncode == 0, done.stdout + done.stderr
    whole, again = (summary(tmp_path / name / "run") for name in ("whole", "again"))
    assert whole["sparse_digest"] == again["sparse_digest"]
    assert whole["dense_digest"] == again["dense_digest"]


@pytest.mark.slow
def test_mistakes_end_before_training(data: Path, tmp_path: Path) -> None:
    for share, message in (
        ("slot usr", "data.share: no sparse slot 'usr' in .*did you mean"),
        ("slots", "share: expected auto, files, bytes, instance, ins_id, search_id or `slot NAME`"),
        ("search_id", "share: search_id needs log keys: set data.logkey: true"),
    ):
        done = launch("train", tmp_path / "run", data, f"data.share={share}", ranks=1)
        assert done.returncode == 2
        assert message.partition(".*")[0] in done.stdout + done.stderr
