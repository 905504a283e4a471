"""One dataset whose slots belong to several tables: each trains as if it were alone, and what is
trained does not depend on parts, threads or where the pass lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Slots, TableConfig
from paddlebox.errors import ConfigError, PassError
from tests.support.configs import make_slots
from tests.support.fixtures import OpenTable, WriteLines
from tests.support.instances import SLOTS, multislot_lines

MIB = 1 << 20


def slots_with(**tables: str) -> Slots:
    """SLOTS, these slots in other tables."""
    return SLOTS.model_copy(
        update={
            "slots": tuple(
                slot.model_copy(update={"table": tables.get(slot.name)}) for slot in SLOTS.slots
            )
        }
    )


def config(name: str = "default", **fields: Any) -> TableConfig:
    return TableConfig.model_validate(
        {"name": name, "embedx_dim": 4, "embedx_threshold": 0.0, **fields}
    )


@pytest.fixture
def open_group() -> Iterator[Callable[..., Any]]:
    """open_group(configs, slots, **arguments of TableSet); closed at the test's end."""
    from paddlebox.store.table_set import TableSet

    opened = []

    def make(configs: Any, slots: Slots, **arguments: Any) -> TableSet:
        sizes = {"mem_budget_bytes": 16 * MIB, "hbm_budget_bytes": 64 * MIB}
        opened.append(TableSet(configs, slots=slots, **{**sizes, **arguments}))
        return opened[-1]

    yield make
    for group in opened:
        for table in group.members:
            if table.native is not None and table.native.training:
                table.native.abandon()
        group.close()


@pytest.fixture
def feeding(open_table: Any) -> Iterator[Callable[..., Any]]:
    """feeding(table or group, slots, **init) -> dataset; closed before the tables."""
    from paddlebox.compat.upstream import UpstreamDataset

    opened = []

    def make(table: Any, slots: Slots, **init: Any) -> UpstreamDataset:
        dataset = UpstreamDataset(table, seed=1)
        dataset.init(**{"slots": slots, "batch_size": 32, **init})
        opened.append(dataset)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()


def push(members: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pulls, and pushes a gradient that is a function of what was pulled; by table, the pulled."""
    pulled = {}
    for number, table in enumerate(members):
        suffix = f"_{table.name}" if number else ""
        ids, offsets, plan = (batch[f"box_{n}{suffix}"] for n in ("ids", "offsets", "plan"))
        instances = len(batch["box_label"])
        slots = (len(offsets) - 1) // instances
        out = np.empty((instances, slots * (table.config.embedx_dim + 3)), np.float32)
        table.native.pull_pooled(ids, offsets, slots, True, out)
        grad = (0.01 + 0.1 * out).astype(np.float32)
        table.native.push_pooled(ids, offsets, slots, True, batch["box_show_click"], plan, grad)
        pulled[table.name] = out
    return pulled


SESSIONS = [f"1 {n % 2} 2 0 0 1 {n // 4 + 1} 2 {n // 3 + 1} 9" for n in range(1000)]


@pytest.mark.parametrize("sequences", [[], ["words"]], ids=["pooled", "id by id"])
def test_lists_that_repeat_are_pulled_once_from_each_table(
    open_group: Callable[..., Any],
    feeding: Callable[..., Any],
    write_lines: WriteLines,
    tmp_path: Path,
    sequences: list[str],
) -> None:
    """To the same bits, in memory and on disk."""
    paddle = pytest.importorskip("paddle")
    from paddlebox.nn.pooled_slots import PooledSlots

    paddle.disable_static()
    file, outcomes = write_lines("sessions", SESSIONS), []
    age = {"type": "dense", "dim": 2}
    slots = make_slots(click="label", age=age, user={"table": "wide"}, words={"max_length": 2})
    for init in (
        {},
        {"dedup_slots": ["user", "words"]},
        {"dedup_slots": ["user", "words"], "budget_bytes": 8 << 10},
    ):
        group = open_group([config(), config("wide", embedx_dim=8)], slots)
        dataset = feeding(group, slots, spill_dir=tmp_path, sequences=sequences, **init)
        cells = 2 if sequences else 1
        layers = [PooledSlots(cells, 4, table="default"), PooledSlots(1, 8, table="wide")]
        dataset.set_filelist([file])
        pulled = []
        for _ in range(2):
            dataset.load_into_memory()
            dataset.begin_pass()
            for batch in dataset.batches():
                for layer, suffix in zip(layers, ("", "_wide"), strict=True):
                    names = (f"box_ids{suffix}", f"box_offsets{suffix}")
                    fed = (*names, "box_show_click", f"box_plan{suffix}")
                    out = layer(*(paddle.to_tensor(batch[name]) for name in fed))
                    pulled.append(out.numpy().tobytes())
                    (out.square() * 0.1 + out).mean().backward()
            dataset.end_pass()
        assert (dataset.stats.spilled_bytes > 0) == ("budget_bytes" in init)
        group.wait_commit()
        outcomes.append((pulled, group.digest()))
        saved = dataset.stats.dedup
        if init:  # of 667 words that repeat a list of 2, and 750 users of 1, some begin a batch
            # Id by id, a batch has the first word of each list once, and the second, 9, once.
            low, high = (1600, 2000 - 334 - 32) if sequences else (2 * 600, 2 * 667)
            assert low + 700 <= saved["rows"] <= high + 750
            assert saved["row_bytes"] > 4 * 7 * saved["rows"]  # the rows of users are wider
        else:
            assert saved == {"lists": 0, "ids": 0, "bytes": 0}
        dataset.close()
        group.close()
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_passes_on_disk_are_the_same_in_any_order(
    open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str], tmp_path: Path
) -> None:
    slots, digests = slots_with(user="wide"), set()
    for on_disk in (False, True):
        group = open_group([config(), config("wide", embedx_dim=8)], slots)
        dataset = feeding(group, slots, spill_dir=tmp_path)
        dataset.local_shuffle("slot", slot="user")
        dataset.set_filelist([files[0]])
        dataset.load_into_disk() if on_disk else dataset.load_into_memory()
        dataset.begin_pass()
        assert (dataset.stats.spilled_bytes > 0) == on_disk
        for batch in dataset.batches():
            push(group.members, batch)
        dataset.end_pass()
        group.wait_commit()
        digests.add(group.digest())
        dataset.close()
        group.close()
    assert len(digests) == 1


def train(dataset: Any, table: Any, *passes: str) -> list[dict[str, np.ndarray]]:
    """The passes, each loaded while the one before trains. What was pulled, batch by batch."""
    pulled = []
    dataset.set_filelist([passes[0]])
    dataset.preload_into_memory()
    for following in (*passes[1:], None):
        dataset.begin_pass()
        if following is not None:
            dataset.set_filelist([following])
            dataset.preload_into_memory()
        pulled += [push(table.members, batch) for batch in dataset.batches()]
        dataset.end_pass()
    table.wait_commit()
    return pulled


def rows_of(table: Any) -> dict[int, bytes]:
    feasigns, rows = table.read_all()
    return {int(f): row.tobytes() for f, row in zip(feasigns, rows, strict=True)}


@pytest.fixture
def files(write_lines: Any) -> list[str]:
    return [write_lines(f"{n}.txt", multislot_lines(500, seed=n)) for n in (1, 2, 3)]


def test_tables_of_one_width_train_as_one_table_does(
    open_table: OpenTable,
    open_group: Callable[..., Any],
    feeding: Callable[..., Any],
    files: list[str],
) -> None:
    """Slots that share no feasign: which table has them shows nowhere, to the bit."""
    table = open_table()
    dataset = feeding(table, SLOTS)
    one = [pulled["default"] for pulled in train(dataset, table, *files)]
    rows = rows_of(table)
    dataset.close()
    table.close()
    slots = slots_with(words="more")
    group = open_group([config(), config("more")], slots)
    two = train(feeding(group, slots), group, *files)
    for together, parts in zip(one, two, strict=True):
        np.testing.assert_array_equal(together, np.hstack([parts["default"], parts["more"]]))
    assert {**rows_of(group.members[0]), **rows_of(group.members[1])} == rows
    assert len(rows) == sum(len(rows_of(member)) for member in group.members)


def test_a_feasign_of_two_tables_has_a_row_of_each_width(
    open_group: Callable[..., Any], feeding: Callable[..., Any], write_lines: WriteLines
) -> None:
    slots = slots_with(user="wide")
    group = open_group([config(), config("wide", embedx_dim=16)], slots)
    file = write_lines("a.txt", ["1 1 2 0 0 1 7 2 7 8", "1 0 2 0 0 1 9 1 7"])
    dataset = feeding(group, slots)
    train(dataset, group, file)
    words, users = (member.read_all() for member in group.members)
    shows = [dict(zip(f.tolist(), r[:, 1].tolist(), strict=True)) for f, r in (words, users)]
    assert shows == [{7: 2.0, 8: 1.0}, {7: 1.0, 9: 1.0}]
    assert users[1].shape[1] - words[1].shape[1] == 12
    assert dataset.stats.unique_feasigns == 4
    assert dataset.stats.hits["new"] == 4
    assert {name: hits["new"] for name, hits in dataset.stats.hits_of.items()} == {
        "default": 2,
        "wide": 2,
    }


@pytest.mark.parametrize("wide", ["user", "words"])
def test_parts_threads_and_spilling_show_nowhere(
    open_group: Callable[..., Any],
    feeding: Callable[..., Any],
    files: list[str],
    tmp_path: Path,
    wide: str,
) -> None:
    slots = slots_with(**{wide: "wide"})
    configs = [config(), config("wide", embedx_dim=32)]

    def run(hbm_budget_bytes: int = 64 * MIB, shuffled: bool = False, **init: Any) -> Any:
        group = open_group(
            configs, slots, hbm_budget_bytes=hbm_budget_bytes, threads=init.get("thread_num", 1)
        )
        dataset = feeding(group, slots, spill_dir=tmp_path, **init)
        if shuffled:
            dataset.local_shuffle()
        train(dataset, group, *files)
        found = SimpleNamespace(digest=group.digest(), stats=dataset.stats)
        dataset.close()
        group.close()
        return found

    for shuffled in (False, True):
        whole = run(shuffled=shuffled)
        assert whole.stats.parts == 1
        parts = run(128 << 10, shuffled=shuffled)
        assert parts.stats.parts > 1
        spilled = run(shuffled=shuffled, budget_bytes=64 << 10)
        assert spilled.stats.spilled_bytes > 0
        both = run(128 << 10, shuffled, budget_bytes=64 << 10, thread_num=4)
        assert both.stats.parts == parts.stats.parts
        assert both.stats.spilled_bytes > 0
        shared = run(shuffled=shuffled, dedup_slots=["user", "words"], thread_num=4)
        digests = {found.digest for found in (whole, parts, spilled, both, shared)}
        assert len(digests) == 1


def test_a_table_over_its_share_of_the_budget_splits_the_pass(
    open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str]
) -> None:
    """The limit is that of each table, not of all keys together."""
    slots = slots_with(user="wide")

    def limits(share: float) -> tuple[int, list[int]]:
        configs = [config(share=share), config("wide", share=1)]
        group = open_group(configs, slots, hbm_budget_bytes=512 << 10, mem_budget_bytes=512 * MIB)
        dataset = feeding(group, slots)
        dataset.set_filelist([files[0]])
        dataset.load_into_memory()
        found = len(dataset._stager.next.loaded.ranges), group.max_pass_rows
        dataset.close()
        group.close()
        return found

    parts, rows = limits(1)
    assert parts == 1
    assert min(rows) > 500
    parts, rows = limits(9)  # room for all keys together, but not for the users
    assert parts > 1
    assert rows[0] > 1000 > 499 > rows[1]


def test_an_evaluation_changes_no_table(
    open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str]
) -> None:
    slots = slots_with(user="wide")
    group = open_group([config(), config("wide", embedx_dim=8)], slots)
    train(feeding(group, slots), group, files[0])
    before = group.digest()
    test = feeding(group, slots)
    test.set_test_mode(True)
    test.set_filelist([files[1]])
    test.load_into_memory()
    test.begin_pass()
    batches = list(test.batches())
    test.end_pass()
    for name in ("box_ids", "box_ids_wide"):
        ids = np.concatenate([batch[name] for batch in batches])
        assert -1 in ids  # feasigns that were not trained have no row
        assert ids.max() > 0
    assert group.digest() == before


def test_an_abandoned_pass_leaves_every_table_at_the_commit_before(
    open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str], tmp_path: Path
) -> None:
    slots = slots_with(user="wide")
    configs = [config(), config("wide", embedx_dim=8)]
    group = open_group(configs, slots, folder=tmp_path)
    dataset = feeding(group, slots)
    train(dataset, group, files[0])
    before = group.digest()
    dataset.set_filelist([files[1]])
    dataset.load_into_memory()
    dataset.begin_pass()
    push(group.members, next(dataset.batches()))
    dataset.abandon_pass()
    dataset.set_filelist([files[1]])
    dataset.load_into_memory()
    dataset.begin_pass()
    with pytest.raises(PassError, match="reopen"):
        next(dataset.batches())
    dataset.close()
    group.close()
    assert open_group(configs, slots, folder=tmp_path).digest() == before


def test_a_pass_that_is_given_up_before_it_begins_frees_every_table(
    open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str]
) -> None:
    slots = slots_with(user="wide")
    counting = {"min_count": 2}
    group = open_group([config(admission=counting), config("wide")], slots)
    given_up = feeding(group, slots)
    given_up.set_filelist([files[0]])
    given_up.load_into_memory()
    given_up.close()
    train(feeding(group, slots), group, *files)
    again = group.digest()
    group.close()
    group = open_group([config(admission=counting), config("wide")], slots)
    train(feeding(group, slots), group, *files)
    assert group.digest() == again


class TestMistakes:
    def test_a_slot_of_a_table_that_is_not_there(
        self, open_table: OpenTable, open_group: Callable[..., Any], feeding: Callable[..., Any]
    ) -> None:
        slots = slots_with(user="wide")
        with pytest.raises(ConfigError, match="slot 'user': no table 'wide'; there are: default"):
            feeding(open_table(), slots)
        with pytest.raises(ConfigError, match="slot 'user': no table 'wide'; did you mean 'wild'"):
            open_group([config(), config("wild")], slots)

    def test_a_table_without_slots(self, open_group: Callable[..., Any]) -> None:
        with pytest.raises(ConfigError, match="table 'wide' has no sparse slot"):
            open_group([config(), config("wide")], SLOTS)
        with pytest.raises(ConfigError, match=r"the default table .* has no sparse slot"):
            open_group([config(), config("wide")], slots_with(user="wide", words="wide"))

    def test_slots_of_other_tables_than_those_that_were_opened(
        self, open_group: Callable[..., Any], feeding: Callable[..., Any]
    ) -> None:
        group = open_group([config(), config("wide")], slots_with(user="wide"))
        with pytest.raises(ConfigError, match="belong to other tables than when the tables"):
            feeding(group, slots_with(words="wide"))

    def test_a_variable_that_no_table_feeds(
        self, open_group: Callable[..., Any], feeding: Callable[..., Any], files: list[str]
    ) -> None:
        slots = slots_with(user="wide")
        group = open_group([config(), config("wide")], slots)
        label = SimpleNamespace(name="box_label", shape=(-1, 1), dtype="float32")
        ids = SimpleNamespace(name="box_ids_wide", shape=(-1,), dtype="int32")
        dataset = feeding(group, slots, use_var=[label, ids])
        dataset.set_filelist([files[0]])
        dataset.load_into_memory()
        dataset.begin_pass()
        feed = next(dataset.batches())
        assert sorted(feed) == ["box_ids_wide", "box_label"]
        dataset.abandon_pass()
        ids.name = "box_ids_wild"
        wrong = feeding(group, slots, use_var=[label, ids])
        wrong.set_filelist([files[0]])
        with pytest.raises(ValueError, match="'box_ids_wild' is neither a slot"):
            wrong.preload_into_memory()
