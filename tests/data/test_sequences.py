"""Sequences of users: what a batch has, from text and columns, in memory and on disk."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox.config import Format, KeySpace, Slots
from paddlebox.config.data import HistoryConfig, Split
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.sequences import SequenceContext, SequenceOptions
from paddlebox.errors import ConfigError, DataError, OutOfSpaceError
from tests.support.configs import make_slots
from tests.support.options import load_options

SLOTS = make_slots(click="label", user={}, item={})
Event = tuple[int, int]  # user (0: none) and time; its item is its number from 1


def lines_of(events: Sequence[Event]) -> list[str]:
    """MultiSlot lines: instance i has item i + 1, and a click if i is odd."""
    return [f"1 {time} 1 {i % 2} 1 {user} 1 {i + 1}" for i, (user, time) in enumerate(events)]


def write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def loaded(
    files: Sequence[str],
    batch_size: int = 1000,
    context: SequenceContext | None = None,
    max_rows: int = 1 << 30,
    data_format: Format = Format.MULTISLOT,
    shuffle_seed: int | None = None,
    budget_bytes: int = 0,
    slots: Slots = SLOTS,
    key_space: KeySpace = KeySpace.SHARED,
    **options: Any,
) -> LoadedPass:
    wanted = SequenceOptions(**{"user": "user", **options})
    given = load_options(
        data_format,
        slots,
        batch_size,
        key_space=key_space,
        shuffle_seed=shuffle_seed,
        budget_bytes=budget_bytes,
        time_column=wanted.time,
        user_sequences=wanted,
    )
    given.check()
    return load(files, given, max_rows, context=context)


class Instance:
    """A place in a sequence of a batch."""

    def __init__(self, item: int, user: int, time: int, position: int, trained: bool) -> None:
        self.item, self.user, self.time = item, user, time
        self.position, self.trained = position, trained

    def __repr__(self) -> str:
        return f"{self.item}" if self.trained else f"({self.item})"


def batches(of: LoadedPass) -> Iterator[list[list[Instance]]]:
    """The sequences of each batch."""
    assert of.sequences is not None
    for number in range(len(of.ranges)):
        for begin, end in of.spans(of.part(number)):
            yield sequences_of(of, begin, end)


def sequences_of(of: LoadedPass, begin: int, end: int) -> list[list[Instance]]:
    assert of.sequences is not None
    inputs = of.sequences.inputs(begin, end)
    feasigns, offsets = of.instances.pack_feasigns(begin, end)
    found = []
    for b in range(end - begin):
        cells = [feasigns[offsets[2 * b + s] : offsets[2 * b + s + 1]].tolist() for s in (0, 1)]
        user = cells[0][0] if cells[0] else 0
        time, position = inputs["box_seq_time"][b, 0], inputs["box_seq_position"][b, 0]
        trained = inputs["box_train_mask"][b, 0] == 1
        found.append(Instance(cells[1][0], user, int(time), int(position), bool(trained)))
    starts = inputs["box_seq_offsets"].tolist()
    assert (starts[0], starts[-1]) == (0, end - begin)
    return [found[a:b] for a, b in itertools.pairwise(starts)]


def texts(of: LoadedPass) -> list[str]:
    """Each batch as a text: (item) is context, | ends a sequence."""
    return [
        " | ".join(" ".join(map(repr, sequence)) for sequence in batch) for batch in batches(of)
    ]


# User 7 has items 1, 2, 4, 6, 7 and 8, user 5 has 3 and 5. Item 2 comes after item 4 in time.
EVENTS = [(7, 10), (7, 30), (5, 11), (7, 20), (5, 11), (7, 40), (7, 50), (7, 60)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "a.txt", lines_of(EVENTS))


def test_users_are_whole_and_ascend_in_time(file: str) -> None:
    assert texts(loaded([file])) == ["1 4 2 6 7 8 | 3 5"]


def test_direct_pieces_are_counted_from_the_last_instance(file: str) -> None:
    of = loaded([file], split=Split.DIRECT, max_length=4)
    assert texts(of) == ["1 4 | 2 6 7 8 | 3 5"]
    assert [[one.position for one in piece] for piece in next(batches(of))] == [
        [0, 1],
        [2, 3, 4, 5],
        [0, 1],
    ]


def test_mask_pieces_overlap_and_train_each_instance_once(file: str) -> None:
    of = loaded([file], split=Split.MASK, max_length=4, overlap=3)
    assert texts(of) == ["1 4 2 | (1) (4) (2) 6 | (4) (2) (6) 7 | (2) (6) (7) 8 | 3 5"]
    assert of.trained == 8
    expected = {"users": 2, "sequences": 5, "context": 9, "longest": 6}
    others = dict.fromkeys(("without_user", "carried", "early", "left_out"), 0)
    assert of.sequences is not None
    assert of.sequences.counts() == {**expected, **others}


def test_a_batch_has_as_many_whole_sequences_as_fit(file: str) -> None:
    cut: dict[str, Any] = {"split": Split.DIRECT, "max_length": 3}
    assert texts(loaded([file], 5, **cut)) == ["1 4 2", "6 7 8 | 3 5"]
    assert texts(loaded([file], 2, **cut)) == ["1 4 2", "6 7 8", "3 5"]  # longer than a batch


def test_context_counts_no_show(file: str, open_dataset: Any) -> None:
    dataset = open_dataset(slots=SLOTS, batch_size=100)
    dataset.set_sequences(SequenceOptions("user", split=Split.MASK, max_length=4, overlap=2))
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()
    (batch,) = dataset.batches()
    dataset.end_pass()
    mask = batch["box_train_mask"]
    assert (mask.dtype, mask.sum()) == (np.float32, 8)
    assert np.array_equal(batch["box_show_click"][:, :1], mask)
    assert np.array_equal(batch["box_show_click"][:, 1:], mask * batch["box_label"])
    assert batch["box_label"].sum() > batch["box_show_click"][:, 1].sum()  # labels stay
    assert batch["box_seq_offsets"].dtype == batch["box_seq_position"].dtype == np.int32
    assert batch["box_seq_time"].dtype == np.int64


class Lists:
    """The lists of users in a pass after others: a plain model of data/sequences.py.

    Args:
        length: of the histories.
        within: the range [begin, end) of times that are trained.
    """

    def __init__(self, length: int = 0, within: tuple[int, int] = (0, 1 << 62)) -> None:
        self._length, self._within = length, within
        self.times: dict[int, int] = {}  # by item
        self.by_user: dict[int, list[int]] = {}  # items; an instance without a user is -item
        self.before: Counter[int] = Counter()  # instances of a user that are not held any more
        self.trained: set[int] = set()

    def add_pass(self, events: Sequence[Event]) -> None:
        (begin, end), first = self._within, len(self.times) + 1
        held: dict[int, list[int]] = defaultdict(list)
        for user, items in self.by_user.items():
            if user > 0 and self._length:
                held[user] = items[-self._length :]
                self.before[user] += len(items) - len(held[user])
        self.trained = set()
        for item, (user, time) in enumerate(events, first):
            self.times[item] = time
            if time < end:
                held[user or -item].append(item)
            if begin <= time < end:
                self.trained.add(item)
        self.by_user = {
            user: sorted(items, key=self.times.__getitem__) for user, items in held.items()
        }


def check_all_once(of: LoadedPass, lists: Lists, most: int) -> None:
    """Check everything that docs/sequences.md promises about the sequences of a pass."""
    trained: Counter[int] = Counter()
    for batch in batches(of):
        for sequence in batch:
            assert any(one.trained for one in sequence)
            assert len(sequence) <= most or most == 0
            assert len({one.user for one in sequence}) == 1
            first = sequence[0]
            user = first.user or -first.item
            own, begin = lists.by_user[user], first.position - lists.before[user]
            assert [one.item for one in sequence] == own[begin : begin + len(sequence)]
            places = range(first.position, first.position + len(sequence))
            assert [one.position for one in sequence] == list(places)
            assert [one.time for one in sequence] == [lists.times[one.item] for one in sequence]
            trained.update(one.item for one in sequence if one.trained)
    assert trained == Counter(lists.trained)


EVENT_LISTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=40)


def write_events(path: Path, events: Sequence[Event], before: int = 0) -> str:
    """before: the number of items of earlier passes."""
    padded = [*[(0, 0)] * before, *events]
    return write(path, lines_of(padded)[before:])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    events=EVENT_LISTS,
    within=st.sampled_from([None, (3, 7), (0, 5)]),
    most=st.integers(1, 9),
    share=st.floats(0, 0.99),
    split=st.sampled_from(list(Split)),
    batch_size=st.integers(1, 30),
    seed=st.sampled_from([None, 3]),
    on_disk=st.booleans(),
)
def test_each_instance_is_trained_once_in_every_split(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Event],
    within: tuple[int, int] | None,
    most: int,
    share: float,
    split: Split,
    batch_size: int,
    seed: int | None,
    on_disk: bool,
) -> None:
    file = write(tmp_path_factory.mktemp("events") / "a.txt", lines_of(events))
    limit = most if split is not Split.NONE else 0
    context = int(most * share) if split is Split.MASK else 0
    of = loaded(
        [file],
        batch_size,
        shuffle_seed=seed,
        budget_bytes=600 if on_disk else 0,
        split=split,
        max_length=limit,
        overlap=context,
        train_times=within,
    )
    assert not on_disk or len(events) < 10 or of.spilled_bytes > 0
    lists = Lists() if within is None else Lists(within=within)
    lists.add_pass(events)
    check_all_once(of, lists, limit)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    passes=st.lists(EVENT_LISTS, min_size=3, max_size=3),
    length=st.integers(1, 6),
    most=st.integers(1, 9),
    share=st.floats(0, 0.99),
    split=st.sampled_from(list(Split)),
    batch_size=st.integers(1, 30),
    seed=st.sampled_from([None, 3]),
    on_disk=st.booleans(),
)
def test_each_instance_is_trained_once_after_histories(
    tmp_path_factory: pytest.TempPathFactory,
    passes: list[list[Event]],
    length: int,
    most: int,
    share: float,
    split: Split,
    batch_size: int,
    seed: int | None,
    on_disk: bool,
) -> None:
    folder, lists = tmp_path_factory.mktemp("passes"), Lists(length)
    arrays: dict[str, np.ndarray] = {}
    limit = most if split is not Split.NONE else 0
    for number, events in enumerate(passes, 1):
        file = write_events(folder / str(number), events, len(lists.times))
        of = loaded(
            [file],
            batch_size,
            context=SequenceContext(number=number, history=arrays),
            shuffle_seed=seed,
            budget_bytes=600 if on_disk else 0,
            split=split,
            max_length=limit,
            overlap=int(most * share) if split is Split.MASK else 0,
            history=HistoryConfig(length=length),
        )
        assert of.history is not None
        arrays = dict(of.history)
        lists.add_pass(events)
        check_all_once(of, lists, limit)


def test_a_pass_over_the_budget_has_the_same_batches(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    events = list(
        zip(
            random.integers(0, 60, 8000).tolist(),
            random.integers(0, 99, 8000).tolist(),
            strict=True,
        )
    )
    files = [
        write(tmp_path / f"{at}", lines_of(events)[at : at + 2000]) for at in range(0, 8000, 2000)
    ]
    cut: dict[str, Any] = {"split": Split.MASK, "max_length": 50, "overlap": 30}
    for seed in (None, 5):
        spilled = loaded(files, 300, shuffle_seed=seed, budget_bytes=200_000, **cut)
        assert spilled.spilled_bytes > 0
        assert texts(spilled) == texts(loaded(files, 300, shuffle_seed=seed, **cut))
        keys, counts, _ = spilled.key_counts()
        other = loaded(files, 300, shuffle_seed=seed, **cut).key_counts()
        assert np.array_equal(keys, other[0])
        assert np.array_equal(counts, other[1])
        assert counts.sum() == sum(2 if user else 1 for user, _ in events)


def test_a_pass_over_the_hbm_budget_is_split_between_batches(file: str) -> None:
    cut: dict[str, Any] = {"split": Split.DIRECT, "max_length": 3}
    of = loaded([file], 3, max_rows=5, **cut)
    assert len(of.ranges) > 1
    assert texts(of) == ["1 4 2", "6 7 8", "3 5"]
    with pytest.raises(OutOfSpaceError, match="the batch of instances"):
        loaded([file], 3, max_rows=3, **cut)


def test_shuffled_users_keep_their_pieces_together(file: str) -> None:
    cut: dict[str, Any] = {"split": Split.DIRECT, "max_length": 2}
    orders = {texts(loaded([file], shuffle_seed=seed, **cut))[0] for seed in range(8)}
    assert orders == {"1 4 | 2 6 | 7 8 | 3 5", "3 5 | 1 4 | 2 6 | 7 8"}


def test_columns_have_the_same_sequences(file: str, tmp_path: Path) -> None:
    users, times = zip(*EVENTS, strict=True)
    columns = {
        "click": [i % 2 for i in range(8)],
        "user": pa.array(users, pa.int64()),
        "item": pa.array(range(1, 9), pa.uint64()),
    }
    csv = tmp_path / "a.csv"
    csv.write_text(
        "click,user,item,ts\n"
        + "".join(f"{i % 2},{u},{i + 1},{t}\n" for i, (u, t) in enumerate(EVENTS))
    )
    assert texts(loaded([str(csv)], data_format=Format.CSV, time="ts")) == texts(loaded([file]))
    for kind in (pa.int64(), pa.uint32(), pa.timestamp("us"), pa.timestamp("s", "UTC")):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({**columns, "ts": pa.array(times, kind)}), path)
        of = loaded([str(path)], data_format=Format.PARQUET, time="ts")
        assert texts(of) == texts(loaded([file]))


class TestBadInput:
    """The table of docs/sequences.md."""

    def test_events_out_of_order_are_sorted(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a", lines_of([(7, 9), (7, 5), (7, 7)]))
        assert texts(loaded([file])) == ["2 3 1"]

    def test_equal_times_keep_the_order_of_the_files(self, tmp_path: Path) -> None:
        lines = lines_of([(7, 5)] * 3)
        files = [write(tmp_path / "b", lines[2:]), write(tmp_path / "a", lines[:2])]
        assert texts(loaded(files)) == ["3 1 2"]

    def test_a_longer_list_is_an_error_without_a_split(self, file: str) -> None:
        with pytest.raises(DataError, match=r"a user has 6 instances, max_length is 5; the first"):
            loaded([file], max_length=5)
        assert texts(loaded([file], max_length=6)) == ["1 4 2 6 7 8 | 3 5"]

    def test_an_instance_without_a_user_is_a_sequence_by_itself(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a", lines_of([(0, 5), (7, 6), (0, 5)]))
        of = loaded([file])
        assert texts(of) == ["1 | 2 | 3"]
        assert of.sequences is not None
        assert of.sequences.counts()["without_user"] == 2

    def test_so_is_an_instance_of_an_invalid_user(self, tmp_path: Path) -> None:
        file = write(tmp_path / "a", lines_of([(7, 5), (8, 6), (7, 7), (8, 7)]))
        assert texts(loaded([file], invalid_users=("7",))) == ["1 | 2 4 | 3"]
        with pytest.raises(ConfigError, match="slot 'user': 'bob': expected a feasign"):
            loaded([file], invalid_users=("bob",))

    def test_invalid_users_are_hashed_and_keyed_like_the_slot(self, tmp_path: Path) -> None:
        hashed = make_slots(click="label", user={"hash": True}, item={})
        path = tmp_path / "a.csv"
        path.write_text("click,user,item,time\n0,bob,1,5\n0,eve,2,6\n0,bob,3,7\n0,eve,4,8\n")
        for space in KeySpace:
            of = loaded(
                [str(path)],
                data_format=Format.CSV,
                slots=hashed,
                key_space=space,
                invalid_users=("bob",),
            )
            assert of.sequences is not None
            assert of.sequences.counts()["without_user"] == 2
            assert of.sequences.counts()["sequences"] == 3
        file = write(tmp_path / "a", lines_of([(7, 5), (8, 6), (7, 7), (8, 7)]))
        of = loaded([file], key_space=KeySpace.PER_SLOT, invalid_users=("7",))
        assert of.sequences is not None
        assert np.diff(of.sequences.plan.starts).tolist() == [1, 2, 1]  # type: ignore[union-attr]

    def test_a_time_in_the_future_is_last_and_reported(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for unit in (1, 10**3, 10**6, 10**9):
            late = 5 * 10**9 * unit  # the year 2128
            file = write(tmp_path / "a", lines_of([(7, late), (7, 5 * unit), (7, 6 * unit)]))
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert texts(loaded([file])) == ["2 3 1"]
            assert f"1 instances have a time later than tomorrow, the latest is {late}" in (
                caplog.text
            )

    @pytest.mark.parametrize("time", ["", "x", "-1", "1.5", str(2**63)])
    def test_a_line_without_a_time_is_malformed(self, tmp_path: Path, time: str) -> None:
        path = tmp_path / "a.csv"
        path.write_text(f"click,user,item,time\n0,7,1,5\n1,7,2,{time}\n")
        with pytest.raises(DataError, match=r"time: '.*' is not an integer in \[0, 2\^63 - 1\]"):
            loaded([str(path)], data_format=Format.CSV)

    def test_a_null_time_in_a_column_is_malformed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        columns = {"click": [0, 1], "user": [7, 7], "item": [1, 2]}
        pq.write_table(pa.table({**columns, "time": pa.array([5, None], pa.int64())}), path)
        with pytest.raises(DataError, match="time: a null"):
            loaded([str(path)], data_format=Format.PARQUET)
        pq.write_table(pa.table({**columns, "time": ["5", "6"]}), path)
        with pytest.raises(DataError, match="expected an integer type, found string"):
            loaded([str(path)], data_format=Format.PARQUET)

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("1 0 1 7 1 2", "slot 'click': '7' is not a label"),  # the label is read as the time
            ("x 5 1 0 1 7 1 2", "time: expected '1 <time>', found 'x'"),
            ("2 5 6 1 0 1 7 1 2", "time: expected '1 <time>', found '2'"),
            ("1 x 1 0 1 7 1 2", "time: 'x' is not an integer"),
        ],
    )
    def test_a_text_line_without_a_time_is_malformed(
        self, tmp_path: Path, line: str, expected: str
    ) -> None:
        file = write(tmp_path / "a", ["1 5 1 0 1 7 1 1", line])
        with pytest.raises(DataError, match=expected):
            loaded([file])

    def test_a_sequence_without_a_trained_instance_is_left_out(self, file: str) -> None:
        of = loaded([file], split=Split.DIRECT, max_length=2, train_times=(30, 55))
        assert texts(of) == ["(4) 2 | 6 7"]
        assert of.trained == 3
        assert of.sequences is not None
        counts = of.sequences.counts()
        assert (counts["early"], counts["left_out"], counts["users"]) == (4, 1, 1)

    def test_a_mask_that_leaves_nothing_is_an_empty_pass(self, file: str) -> None:
        of = loaded([file], train_times=(100, 200))
        assert (texts(of), of.size, of.trained, of.ranges) == ([], 0, 0, [])

    def test_a_user_that_is_no_sparse_slot_is_refused(self, file: str) -> None:
        with pytest.raises(ConfigError, match=r"user: usr: not a sparse slot.*did you mean 'user'"):
            loaded([file], user="usr")


def test_the_range_of_times_depends_on_whether_the_pass_trains(file: str) -> None:
    times: dict[str, Any] = {"train_times": (30, 55), "test_times": (20, 35)}
    assert texts(loaded([file], **times)) == ["(1) (4) 2 6 7"]
    tested = loaded([file], context=SequenceContext(train=False), **times)
    assert texts(tested) == ["(1) 4 2"]


def test_windows_of_a_spilled_pass_are_cut_by_instances(tmp_path: Path) -> None:
    """20 users have 100 instances each, 2000 have one. Each user is a batch."""
    events = [(at % 20 + 1, at) for at in range(2000)] + [(at, at) for at in range(3000, 5000)]
    of = loaded([write(tmp_path / "a", lines_of(events))], 1, budget_bytes=200_000)
    assert of.spilled_bytes > 0
    sizes = np.diff(of.instances._layout.bounds)
    assert len(sizes) > 4
    assert max(sizes) <= 2 * of.size / len(sizes)


def test_a_dataset_without_times_stays_as_it_is(open_dataset: Any) -> None:
    names = [f"I{at}" for at in range(1, 14)], [f"C{at}" for at in range(1, 27)]
    slots = make_slots(
        label="label", **dict.fromkeys(names[0], "dense"), **dict.fromkeys(names[1], "sparse")
    )
    dataset = open_dataset(slots=slots, data_format=Format.CRITEO_TSV)
    before = dataset.options.load
    with pytest.raises(ConfigError, match=r"time \(data\.sequences, set_merge_by_uid"):
        dataset.set_sequences(SequenceOptions("C1"))
    assert dataset.options.load is before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"split": Split.DIRECT}, "split needs max_length"),
        ({"split": Split.MASK, "max_length": 4, "overlap": 4}, "split: expected an overlap of"),
        ({"max_length": 4, "history": HistoryConfig(length=1)}, "history with split none"),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=rf"data\.sequences: {expected}"):
        SequenceOptions("user", **options)


def test_the_order_of_training_is_refused_with_drop_last(open_dataset: Any) -> None:
    dataset = open_dataset(slots=SLOTS, drop_last=True)
    with pytest.raises(ConfigError, match="drop_last with sequences of users"):
        dataset.set_sequences(SequenceOptions("user"))
