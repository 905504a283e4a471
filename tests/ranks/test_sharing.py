"""How ranks share the instances of a pass. The ranks are threads."""

from __future__ import annotations

import gzip
import re
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format
from paddlebox.config.data import ShareBy
from paddlebox.data import loader, sharing
from paddlebox.data.loader import load
from paddlebox.data.pipeline import StageTimes
from paddlebox.data.reader import read_chunks
from paddlebox.data.sharing import Share
from paddlebox.data.sources import open_source
from paddlebox.errors import ConfigError, DataError, OutOfSpaceError, RankError
from paddlebox.ranks.world import World
from tests.ranks.threads import coordination
from tests.support.configs import make_slots
from tests.support.options import load_options

SLOTS = make_slots(click="label", user="sparse", words="sparse")
ROWS, USERS, VIEWS, CHUNK_BYTES, BATCH = 3000, 90, 400, 4096, 16
Instance = tuple[str, float, int, tuple[int, ...]]  # id, label, user, words


def instance(number: int) -> tuple[str, Instance]:
    """The line of an instance, and what it says. One in ten has no user."""
    user = 0 if number % 10 == 0 else 1 + number * 7919 % USERS
    key = f"{number:011d}0de01{number * 31 % VIEWS:016x}"
    words = tuple(range(200 + number % 3, 203 + number % 5))
    line = f"1 {key} 1 {number % 2} 1 {user} {len(words)} {' '.join(map(str, words))}"
    return line, (key, float(number % 2), user, words)


INSTANCES = [instance(number) for number in range(ROWS)]
ALL = Counter(told for _, told in INSTANCES)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many rounds."""
    monkeypatch.setattr(loader, "read_chunks", partial(read_chunks, chunk_bytes=CHUNK_BYTES))


def text_of(rows: Sequence[tuple[str, Instance]]) -> bytes:
    return "".join(f"{line}\n" for line, _ in rows).encode()


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "rows.txt"
    path.write_bytes(text_of(INSTANCES))
    return str(path)


def loaded_by(
    files: Sequence[str],
    share: Share,
    ranks: int = 4,
    seed: int = 3,
    per_host: int = 0,
    **options: Any,
) -> list[list[Instance]]:
    """The instances of each rank, in their order. per_host: ranks of a host; 0: all."""
    given = {"logkey": True, "threads": 2, **options}
    chosen = load_options(Format.MULTISLOT, SLOTS, BATCH, share=share, **given)

    def on(world: World) -> list[Instance]:
        own = files[world.rank :: world.size] if share.own_files else files
        found = load(own, chosen, 1 << 30, world=world, times=StageTimes(None, seed))
        return told(found.instances)

    return coordination(ranks, on, per_host)


def told(instances: Any) -> list[Instance]:
    found: list[Instance] = []
    for begin in range(0, instances.size, BATCH):
        found += told_of_batch(instances, begin, min(begin + BATCH, instances.size))
    return found


def told_of_batch(instances: Any, begin: int, end: int) -> list[Instance]:
    feasigns, offsets = instances.pack_feasigns(begin, end)
    nowhere = np.zeros(instances.unique_keys, np.int32)
    labels = instances.pack_batch(begin, end, nowhere, 0, 0)["label"]
    found: list[Instance] = []
    for number, key in enumerate(instances.ins_ids(begin, end)):
        at = offsets[2 * number : 2 * number + 3]
        user = feasigns[at[0] : at[1]].tolist()
        words = tuple(feasigns[at[1] : at[2]].tolist())
        found.append((key, float(labels[number, 0]), (user or [0])[0], words))
    return found


def flat(of_ranks: list[list[Instance]]) -> list[Instance]:
    return [one for of_rank in of_ranks for one in of_rank]


def ranks_of(of_ranks: list[list[Instance]], group: Any) -> dict[Any, set[int]]:
    """The ranks that have instances of each group."""
    found: dict[Any, set[int]] = {}
    for rank, of_rank in enumerate(of_ranks):
        for one in of_rank:
            found.setdefault(group(one), set()).add(rank)
    return found


@pytest.mark.parametrize("by", ["bytes", "instance", "ins_id", "search_id", "slot"])
@pytest.mark.parametrize("packed", [False, True])
def test_each_instance_has_one_rank(tmp_path: Path, by: str, packed: bool) -> None:
    """A file that can be read in parts, or not, and one that is smaller than a chunk."""
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    content = text_of(INSTANCES[:-20])
    first.write_bytes(gzip.compress(content) if packed else content)
    second.write_bytes(text_of(INSTANCES[-20:]))
    share = Share(ShareBy(by), "user" if by == "slot" else "")
    of_ranks = loaded_by([str(first), str(second)], share)
    assert Counter(flat(of_ranks)) == ALL
    sizes = [len(of_rank) for of_rank in of_ranks]
    if by in ("bytes", "instance"):
        assert max(sizes) <= 1.02 * min(sizes)
    assert min(sizes) > ROWS / 8


def test_instances_are_dealt_evenly_and_by_chance(text: str) -> None:
    of_ranks = loaded_by([text], Share(ShareBy.INSTANCE))
    sizes = [len(of_rank) for of_rank in of_ranks]
    assert max(sizes) - min(sizes) <= 4  # one for each rank that reads a part
    numbers = [int(one[0][:11]) for one in of_ranks[0]]
    assert min(Counter(number % 4 for number in numbers).values()) > ROWS / 4 / 8
    assert loaded_by([text], Share(ShareBy.INSTANCE), seed=4) != of_ranks


@pytest.mark.parametrize("by", ["bytes", "instance", "search_id"])
def test_shares_do_not_depend_on_hosts(text: str, by: str) -> None:
    share = Share(ShareBy(by))
    assert loaded_by([text], share, per_host=2) == loaded_by([text], share)


@pytest.mark.parametrize(
    ("share", "group"),
    [
        (Share(ShareBy.SEARCH_ID), lambda one: one[0][16:]),
        (Share(ShareBy.INS_ID), lambda one: one[0]),
        (Share(ShareBy.SLOT, "user"), lambda one: one[2] or one[0]),
        (Share(ShareBy.SLOT, "words"), lambda one: one[3][0]),
    ],
)
def test_groups_stay_whole(text: str, share: Share, group: Any) -> None:
    of_groups = ranks_of(loaded_by([text], share), group)
    assert all(len(ranks) == 1 for ranks in of_groups.values())
    assert {rank for ranks in of_groups.values() for rank in ranks} >= {0, 1}


@pytest.mark.parametrize("by", ["instance", "search_id"])
@pytest.mark.parametrize("budget_bytes", [0, 1 << 17])
def test_a_rank_has_its_instances_in_the_order_of_the_files(
    tmp_path: Path, by: str, budget_bytes: int
) -> None:
    """In memory and on disk. So a page view has its instances in the order of one rank."""
    files = []
    for number, begin in enumerate((0, 1300, 1400, 1410)):
        path = tmp_path / f"part-{number}"
        path.write_bytes(text_of(INSTANCES[begin : (1300, 1400, 1410, ROWS)[number]]))
        files.append(str(path))
    options: dict[str, Any] = {"budget_bytes": budget_bytes, "spill_dir": tmp_path}
    for own_files in (False, True):
        of_ranks = loaded_by(files, Share(ShareBy(by), own_files=own_files), 3, **options)
        assert Counter(flat(of_ranks)) == ALL
        assert all(of_rank == sorted(of_rank) for of_rank in of_ranks)


def test_chunks_of_a_round_are_sent_as_one_where_no_other_rank_has_one_between_them() -> None:
    places = [(0, 1, 4), (0, 1, 5), (0, 1, 6), (0, 1, 8), (2, 0, 0), (2, 0, 4), (3, 0, 0)]
    rows = [10, 0, 20, 30, sharing._MOST_TOGETHER, 5, 5]
    chunks: list[Any] = [
        sharing.OwnChunk(SimpleNamespace(instances=n), sharing.Place(*place), True)
        for place, n in zip(places, rows, strict=True)
    ]
    assert [len(found) for found in sharing._successive(chunks)] == [2, 1, 1, 1, 1]
    del chunks[1:3]
    chunks[1:1] = [chunks[0]._replace(place=sharing.Place(0, 1, n)) for n in (5, 6, 7)]
    assert [len(found) for found in sharing._successive(chunks)] == [5, 1, 1, 1]
    large = chunks[0]._replace(columns=SimpleNamespace(instances=sharing._MOST_TOGETHER))
    assert [len(found) for found in sharing._successive([large, chunks[1]])] == [1, 1]


def test_instances_without_a_user_are_dealt(text: str) -> None:
    of_ranks = loaded_by([text], Share(ShareBy.SLOT, "user"))
    without = [sum(one[2] == 0 for one in of_rank) for of_rank in of_ranks]
    assert min(without) > ROWS / 10 / 8


def test_the_order_depends_neither_on_threads_nor_on_chance(text: str) -> None:
    share = Share(ShareBy.SEARCH_ID)
    orders = [loaded_by([text], share, threads=threads) for threads in (1, 3, 3)]
    assert orders[0] == orders[1] == orders[2]


def test_ranks_that_read_their_own_files_exchange_what_they_read(tmp_path: Path) -> None:
    files = []
    for number in range(3):  # the fourth rank reads nothing
        path = tmp_path / f"part-{number}"
        path.write_bytes(text_of(INSTANCES[number * 1000 : (number + 1) * 1000]))
        files.append(str(path))
    of_ranks = loaded_by(files, Share(ShareBy.INSTANCE, own_files=True))
    assert Counter(flat(of_ranks)) == ALL
    sizes = [len(of_rank) for of_rank in of_ranks]
    assert max(sizes) - min(sizes) <= 4


@pytest.mark.parametrize(
    ("row_group", "even"), [(50, True), (ROWS, True), (1000, True), (1700, False)]
)
def test_row_groups_feed_all_ranks(tmp_path: Path, row_group: int, even: bool) -> None:
    """If ranks would get 1 and 2 row groups, one rank reads them all and deals their rows."""
    path = tmp_path / "rows.parquet"
    columns = {
        "click": pa.array([told[1] for _, told in INSTANCES], pa.float32()),
        "user": pa.array([[told[2]] for _, told in INSTANCES], pa.list_(pa.uint64())),
        "words": pa.array([list(told[3]) for _, told in INSTANCES], pa.list_(pa.uint64())),
        "logkey": pa.array([told[0] for _, told in INSTANCES]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=row_group)
    options = load_options(
        Format.PARQUET,
        SLOTS,
        16,
        logkey=True,
        share=Share(ShareBy.BYTES),
    )
    of_ranks = coordination(
        2, lambda world: told(load([str(path)], options, 1 << 30, world=world).instances)
    )
    assert Counter(flat(of_ranks)) == ALL
    assert all(of_rank == sorted(of_rank) for of_rank in of_ranks)
    sizes = sorted(map(len, of_ranks))
    assert sizes == ([ROWS / 2] * 2 if even else [ROWS - 1700, 1700])


def test_one_rank_is_as_without_shares(text: str) -> None:
    for by in ("files", "instance"):
        assert loaded_by([text], Share(ShareBy(by)), ranks=1) == [[one for _, one in INSTANCES]]


def errors_of(
    files: Sequence[str], options: Sequence[dict[str, Any]], by: ShareBy = ShareBy.INSTANCE
) -> dict[int, DataError | RankError | OutOfSpaceError]:
    """The errors of two ranks, each with its own file and options. With BYTES, all ranks should
    have the same file."""
    said: dict[int, DataError | RankError | OutOfSpaceError] = {}

    def on(world: World) -> None:
        chosen = load_options(
            Format.MULTISLOT,
            SLOTS,
            BATCH,
            logkey=True,
            **{"share": Share(by, own_files=by is not ShareBy.BYTES), **options[world.rank]},
        )
        try:
            load([files[world.rank]], chosen, 1 << 30, world=world)
        except (DataError, RankError, OutOfSpaceError) as error:
            said[world.rank] = error

    coordination(2, on)
    return said


def test_an_error_of_one_rank_is_told_to_all(tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(text_of(INSTANCES[:1500]) + b"nonsense\n" * 200)
    said = errors_of([text, str(bad)], [{}, {}])
    assert isinstance(said[1], DataError)
    assert isinstance(said[0], RankError)
    assert "rank 1 could not load the pass: DataError: 200 of 1700 lines" in str(said[0])


def test_a_file_that_one_rank_does_not_find_is_told_to_all(text: str, tmp_path: Path) -> None:
    said = errors_of([text, str(tmp_path / "none.txt")], [{}, {}])
    assert isinstance(said[1], DataError)
    assert isinstance(said[0], RankError)
    assert re.match("rank 1 could not load the pass: .*none.txt", str(said[0]))


def test_ranks_that_share_by_different_rules_all_say_so(text: str) -> None:
    other = {"share": Share(ShareBy.INS_ID, own_files=True)}
    said = errors_of([text, text], [{}, other])
    told = "share: rank 1 has ins_id, expected instance as on rank 0"
    assert all(str(error).startswith(told) for error in said.values())
    assert len(said) == 2


def test_a_file_that_ranks_see_with_different_sizes_is_named(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file of a network file system that one rank's cache does not have whole."""
    seen = iter([b"", b"\n"])
    lock = threading.Lock()

    def open_stale(path: str, retries: int) -> Any:
        with lock, Path(path).open("ab") as file:
            file.write(next(seen))
            file.flush()
            return open_source(path, retries)

    monkeypatch.setattr(sharing, "open_source", open_stale)
    said = errors_of([text, text], [{}, {}], ShareBy.BYTES)
    assert len(said) == 2
    assert all(str(error).startswith(f"{text}: rank 1 has ") for error in said.values())


def test_a_rank_that_cannot_keep_its_share_ends_all(text: str) -> None:
    said = errors_of([text, text], [{}, {"budget_bytes": 1 << 14}])
    assert isinstance(said[1], OutOfSpaceError)
    assert isinstance(said[0], RankError)
    assert "rank 1 could not load the pass: it cannot keep its share" in str(said[0])


def test_memory_is_bounded_by_rounds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    exchange = World.exchange

    def counted(world: World, out: Sequence[Any]) -> list[Any]:
        sent.append(sum(len(message) for message in out))
        return exchange(world, out)

    monkeypatch.setattr(World, "exchange", counted)
    loaded_by([text], Share(ShareBy.INSTANCE))
    assert len(sent) == 4 * 4  # rounds of each rank
    assert max(sent) < 1.2 * sharing._CHUNKS_A_ROUND * CHUNK_BYTES


class TestMistakes:
    @pytest.fixture
    def dataset(self, open_dataset: Any) -> Any:
        return open_dataset(slots=SLOTS)

    @pytest.mark.parametrize(
        ("by", "slot", "message"),
        [
            ("auto", "", "share 'auto', slot '': expected one of files, bytes, instance"),
            ("slot", "", "and a slot with slot only"),
            ("bytes", "user", "and a slot with slot only"),
            (
                "slot",
                "usr",
                "share: usr: not a sparse slot; expected user, words; did you mean",
            ),
            ("ins_id", "", r"no ins_id: set_parse_ins_id\(True\)"),
            ("search_id", "", r"no search_id: .*set_parse_logkey\(True\)"),
        ],
    )
    def test_a_share_that_makes_no_sense(
        self, dataset: Any, by: str, slot: str, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            dataset.set_share(by, slot=slot)

    def test_a_table_of_one_rank_in_a_job_of_several(
        self, dataset: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
        with pytest.raises(ConfigError, match="the job has 2 ranks, but the table is one of 1"):
            dataset.global_shuffle()
