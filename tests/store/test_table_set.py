"""Several tables that are committed as one: what a reader or the next run finds is never a table
from one moment and another from the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import LifeConfig, TableConfig
from paddlebox.errors import ConfigError, OutOfSpaceError, PassError, StoreError
from paddlebox.store.compaction import Policy
from paddlebox.store.record import VersionRecord, unreferenced
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore
from tests.support.configs import make_slots
from tests.support.inside import head_of, newest

SLOTS = make_slots(click="label", user={"table": "wide"}, item="sparse")
CONFIGS = (
    TableConfig(embedx_dim=4, embedx_threshold=0.0),
    TableConfig(name="wide", embedx_dim=16, embedx_threshold=0.0),
)
MIB = 1 << 20
OFTEN = Policy(min_bytes=0, merge_depth=2, space_target=1.01)


@contextmanager
def opened(folder: Path | None, configs: Any = CONFIGS, **changes: Any) -> Iterator[TableSet]:
    arguments = {"hbm_budget_bytes": 64 * MIB, "mem_budget_bytes": 8 * MIB, "compaction": None}
    with TableSet(configs, slots=SLOTS, folder=folder, **{**arguments, **changes}) as group:
        yield group


def train(group: TableSet, of_table: dict[str, range], number: int, **fields: Any) -> None:
    """A pass that pushes each feasign once, up to its commit."""
    keys = [sorted_unique_keys(np.array(of_table[name], np.uint64)) for name in group.names]
    slots = [np.full(len(k), 1 - t, np.uint16) for t, k in enumerate(keys)]
    staged = group.stage(np.concatenate(keys), np.concatenate(slots))
    group.begin(staged)
    for table, part in zip(group.members, staged.parts, strict=True):
        ids = part.row_of_key
        width = table.config.embedx_dim + 3
        table.native.push_pooled(
            ids,
            np.arange(len(ids) + 1, dtype=np.int32),
            1,
            True,
            np.ones((len(ids), 2), np.float32),
            np.empty(0, np.int32),
            np.full((len(ids), width), 0.01 * number, np.float32),
        )
    group.end(number)
    group.commit(pass_number=number, dense={"w": np.full(2, number, np.float32)}, **fields)


def first_two(group: TableSet) -> None:
    train(group, {"default": range(1, 50), "wide": range(40, 90)}, 1)
    train(group, {"default": range(30, 70), "wide": range(60, 99)}, 2)


THIRD = {"default": range(1, 99), "wide": range(1, 99)}


def test_a_feasign_has_a_row_in_each_table_and_a_digest_is_that_of_the_content(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "a") as group:
        first_two(group)
        digest, of_each = group.digest(), [table.digest() for table in group.members]
        rows = {table.name: table.read_all() for table in group.members}
    assert sorted(rows["default"][0]) == [*range(1, 70)]
    assert sorted(rows["wide"][0]) == [*range(40, 99)]
    assert rows["wide"][1].shape[1] == rows["default"][1].shape[1] + 12
    # The same, each table by itself.
    with Table(CONFIGS[1], hbm_budget_bytes=64 * MIB) as alone:
        for number, feasigns in ((1, range(40, 90)), (2, range(60, 99))):
            keys = sorted_unique_keys(np.array(feasigns, np.uint64))
            staged = alone.stage(keys, np.zeros(len(keys), np.uint16))
            alone.begin(staged)
            count = len(keys)
            alone.first.native.push_pooled(
                staged.row_of_key,
                np.arange(count + 1, dtype=np.int32),
                1,
                True,
                np.ones((count, 2), np.float32),
                np.empty(0, np.int32),
                np.full((count, 19), 0.01 * number, np.float32),
            )
            alone.end(number)
            alone.commit(pass_number=number)
        assert alone.digest() == of_each[1]
    with opened(None) as group:  # in memory
        first_two(group)
        assert group.digest() == digest
        train(group, THIRD, 3)
        assert group.digest() != digest


def versions(table: TieredTable) -> list[int]:
    return table.versions.numbers()


def test_a_group_of_one_table_is_that_table(tmp_path: Path) -> None:
    slots = SLOTS.model_copy(
        update={"slots": tuple(s.model_copy(update={"table": None}) for s in SLOTS.slots)}
    )
    sizes: dict[str, Any] = {"hbm_budget_bytes": 64 * MIB, "mem_budget_bytes": 8 * MIB}
    with TableSet(CONFIGS[:1], slots=slots, folder=tmp_path, **sizes) as group:
        train(group, {"default": range(1, 50)}, 1)
        digest = group.digest()
        assert head_of(group).tables == {}
    with Table(CONFIGS[0], folder=tmp_path, **sizes) as table:
        assert table.digest() == digest


def test_what_is_committed_opens_again(tmp_path: Path) -> None:
    with opened(tmp_path) as group:
        first_two(group)
        digest = group.digest()
        assert head_of(group).tables == {"wide": 2}
    for read_only in (False, True):
        with opened(tmp_path, read_only=read_only) as group:
            assert group.digest() == digest
            assert group.load_dense()["w"].tolist() == [2, 2]


class Killed(BaseException):
    """What a kill would leave undone."""


@pytest.mark.parametrize("passes", [0, 2])
def test_killed_between_the_commits_of_the_tables_it_opens_at_the_pass_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    commit = VersionStore.append

    def dying(self: VersionStore, record: VersionRecord) -> None:
        if not self.folder.endswith("wide") and record.pass_number == 3:
            raise Killed
        commit(self, record)

    digest = None
    with opened(tmp_path, keep_versions=1) as group:
        if passes:
            first_two(group)
            digest = group.digest()
        monkeypatch.setattr(VersionStore, "append", dying)
        with pytest.raises(Killed):
            train(group, THIRD, 3)
        # The tables are of two moments: nothing may be trained or saved with them.
        with pytest.raises(PassError, match="reopen"):
            group.digest()
        with pytest.raises(PassError, match="reopen"):
            train(group, THIRD, 4)
    monkeypatch.undo()
    with VersionStore.open_reader(tmp_path / "tables" / "wide") as manifest:
        assert newest(manifest).pass_number == 3  # it is ahead
    if passes:
        with opened(tmp_path, read_only=True) as reader:
            assert reader.digest() == digest
    with opened(tmp_path, keep_versions=1) as group:
        assert (group.head.version if group.head else 0) == passes
        heads = [table.head.pass_number if table.head else 0 for table in group.members]
        assert heads == [passes, passes]
        if passes:
            assert group.digest() == digest
        train(group, THIRD, 3)
        again = group.digest()
    with opened(None) as group:  # the result of an undisturbed run
        if passes:
            first_two(group)
        train(group, THIRD, 3)
        assert group.digest() == again


def test_a_disk_full_in_the_first_table_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as group:
        first_two(group)
        digest = group.digest()

        def full(*_: Any, **__: Any) -> None:
            raise OutOfSpaceError("no space")

        monkeypatch.setattr(group.first.versions, "append", full)
        with pytest.raises(OutOfSpaceError):
            train(group, THIRD, 3)
        with pytest.raises(PassError, match="reopen"):
            train(group, THIRD, 4)
    with opened(tmp_path) as group:
        assert group.digest() == digest


def test_merges_never_drop_what_the_first_table_names(tmp_path: Path) -> None:
    """A merge makes versions of its own; those that the first table's kept versions name stay, and
    on opening the merged one, which holds the same rows, is not thrown away."""
    with opened(tmp_path, compaction=OFTEN, keep_versions=1) as group:
        first_two(group)
        digest = group.digest()
        group.members[1].compactor.compact(full=True)
        named = head_of(group).tables["wide"]
        merged = head_of(group.members[1]).version
        assert merged > named
        assert {named, merged} <= set(versions(group.members[1]))
        with opened_elsewhere(tmp_path) as found:
            assert found == digest
    with opened(tmp_path) as group:
        assert head_of(group.members[1]).version == merged
        assert group.digest() == digest
        train(group, THIRD, 3)
        assert head_of(group).tables["wide"] == merged + 1


@contextmanager
def opened_elsewhere(folder: Path) -> Iterator[str]:
    """The digest that another process reads."""
    from tests.conftest import run_python

    code = f"""
import json
from pathlib import Path
from tests.store.test_table_set import opened
with opened(Path({str(folder)!r}), read_only=True) as group:
    print(json.dumps(group.digest()))
"""
    yield run_python(code)


def test_a_reader_keeps_the_versions_of_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as group:
        first_two(group)
        digest = group.digest()
    # A reader's leases, without its tables: LMDB opens an environment once in a process.
    from paddlebox.store.locks import Lease

    lease = Lease(str(tmp_path))
    lease.pin(2)
    with opened(tmp_path, keep_versions=1) as group:
        for number in (3, 4, 5):
            train(group, THIRD, number)
        assert set(versions(group.first)) == {2, 5}
        assert set(versions(group.members[1])) == {2, 5}
    with opened(tmp_path, read_only=True, version=2) as group:
        assert group.digest() == digest
    lease.release()
    with opened(tmp_path, keep_versions=1) as group:
        train(group, THIRD, 6)
        assert versions(group.members[1]) == [6]


def test_a_table_of_a_group_by_itself_forgets_nothing(tmp_path: Path) -> None:
    """A tool that merges one of the stores does not know which versions are named."""
    with opened(tmp_path) as group:
        first_two(group)
        digest = group.digest()
    with Table(CONFIGS[1], folder=tmp_path / "tables" / "wide", keep_versions=1) as alone:
        alone.compact(full=True)
        assert 2 in versions(alone.first)
    with opened(tmp_path) as group:
        assert group.digest() == digest


def test_days_end_in_every_table_by_its_own_settings(tmp_path: Path) -> None:
    keeps = LifeConfig(show_click_decay_rate=1.0, delete_threshold=0.0)
    fades = LifeConfig(show_click_decay_rate=0.5, delete_threshold=0.9)
    configs = [
        config.model_copy(update={"life": life})
        for config, life in zip(CONFIGS, (keeps, fades), strict=True)
    ]
    with opened(tmp_path, configs) as group:
        train(group, {"default": range(1, 9), "wide": range(1, 9)}, 1, day=20000)
        assert not group.life.begin_day(20000)
        assert group.life.begin_day(20001)
        assert not group.life.shrink_table()  # that day has ended
        assert [len(table.read_all()[0]) for table in group.members] == [8, 0]
        assert head_of(group).kind == "life"
        assert head_of(group).tables == {"wide": head_of(group.members[1]).version}
    with opened(tmp_path, configs) as group:
        assert [len(table.read_all()[0]) for table in group.members] == [8, 0]


def killed(*_: Any) -> None:
    raise Killed


def test_killed_between_the_days_ends_of_the_tables_no_day_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as group:
        train(group, THIRD, 1, day=20000)
        digest = group.digest()
        monkeypatch.setattr(group.first.versions, "add_events", killed)
        with pytest.raises(Killed):
            group.life.shrink_table()
    with opened(tmp_path) as group:
        assert group.digest() == digest
        assert group.life.shrink_table()
        assert [len(table.events) for table in group.members] == [2, 2]


def test_admission_counts_each_table_by_its_own_settings() -> None:
    admitting = CONFIGS[1].model_copy(
        update={"admission": CONFIGS[1].admission.model_copy(update={"min_count": 3})}
    )
    with opened(None, [CONFIGS[0], admitting]) as group:
        keys = [sorted_unique_keys(np.arange(1, 5, dtype=np.uint64))] * 2
        slots = np.repeat([1, 0], 4).astype(np.uint16)
        counts = np.array([1, 1, 1, 1, 2, 3, 4, 1], np.uint32)
        assert group.counts_keys
        group.count_keys(np.concatenate(keys), counts, slots)
        staged = group.stage(np.concatenate(keys), slots)
        assert staged.refused == 2
        assert (staged.row_of_key[4:] >= 0).tolist() == [False, True, True, False]
        assert staged.hits["new"] == 6
        assert staged.hits_of["wide"]["new"] == 2
        group.drop_staged(staged)


def test_stores_and_configs_that_do_not_fit_say_so(tmp_path: Path) -> None:
    with opened(tmp_path) as group:
        first_two(group)
    other = CONFIGS[1].model_copy(update={"name": "wider"})
    slots = SLOTS.model_copy(
        update={
            "slots": tuple(s.model_copy(update={"table": s.table and "wider"}) for s in SLOTS.slots)
        }
    )
    with pytest.raises(ConfigError, match="has rows in tables wide, which extra_tables lacks"):
        TableSet([CONFIGS[0], other], slots=slots, folder=tmp_path)
    with pytest.raises(ConfigError, match="slot 'user': no table 'wide'; did you mean 'wider'"):
        TableSet([CONFIGS[0], other], slots=SLOTS)
    with pytest.raises(ConfigError, match="expected different names"):
        TableSet([CONFIGS[0], CONFIGS[0]], slots=SLOTS)
    with pytest.raises(ConfigError, match=r"its share of mem\.budget_bytes"):
        TableSet(CONFIGS, slots=SLOTS, mem_budget_bytes=3 * MIB // 2)
    with pytest.raises(ConfigError, match=r"embedx_dim.* by --init-from"):
        TableSet(
            [CONFIGS[0], CONFIGS[1].model_copy(update={"embedx_dim": 8})],
            slots=SLOTS,
            folder=tmp_path,
        )
    with opened(tmp_path):  # none of them has kept a lock
        pass


def test_a_version_that_a_reader_holds_is_not_rewound_under_it(tmp_path: Path) -> None:
    with opened(tmp_path) as group:
        first_two(group)
    from paddlebox.store.locks import Lease

    lease = Lease(str(tmp_path / "tables" / "wide"))
    lease.pin(2)
    with (
        VersionStore.open_writer(tmp_path / "tables" / "wide") as manifest,
        pytest.raises(StoreError, match="version 2 must be dropped"),
    ):
        manifest.retention.rewind(1)
    lease.release()
    with VersionStore.open_writer(tmp_path / "tables" / "wide") as manifest:
        assert manifest.retention.rewind(1) == [2]
        manifest.retention.remove_unreferenced()
        assert newest(manifest).version == 1
        assert [entry["version"] for entry in manifest.journal()] == [1]
        assert unreferenced(manifest.folder, manifest.records()) == []


def test_shares_divide_the_budgets() -> None:
    small, large = (c.model_copy(update={"share": s}) for c, s in zip(CONFIGS, (1, 3), strict=True))
    with opened(None) as even:
        rows = even.max_pass_rows
    with opened(None, [small, large]) as group:
        assert group.max_pass_rows[0] < rows[0]
        assert group.max_pass_rows[1] > rows[1]
        natives = [table.native for table in group.members]
        taken = [native.max_pass_rows * native.pass_bytes_per_row for native in natives]
        assert taken[1] / taken[0] == pytest.approx(3, rel=0.01)


def test_lookup_gives_the_fields_of_rows_in_the_order_that_is_asked_for() -> None:
    with Table(CONFIGS[0]) as table:
        keys = sorted_unique_keys(np.array([3, 5, 2**64 - 1], np.uint64))
        table.begin(table.stage(keys, np.array([1, 2, 7], np.uint16)))
        feasigns, rows = _pushed(table)
        found, fields = table.lookup(np.array([5, 4, -1, 3]))
    assert found.tolist() == [True, False, True, True]
    of = {int(feasign): row for feasign, row in zip(feasigns, rows, strict=True)}
    expected = [of[5], np.zeros_like(of[5]), of[2**64 - 1], of[3]]
    assert fields["show"].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert fields["has_embedx"].tolist() == found.tolist()
    slot_of = dict(zip(core.feasigns_of(keys).tolist(), [1, 2, 7], strict=True))
    assert fields["slot"].tolist() == [slot_of[5], 0, slot_of[2**64 - 1], slot_of[3]]
    assert fields["embed_w"].tolist() == [float(row[6]) for row in expected]
    assert np.array_equal(fields["embedx_w"], [row[8:12] for row in expected])


@pytest.mark.parametrize("wrong", [np.array([1.5]), np.array([[1]])])
def test_lookup_takes_a_list_of_integers(wrong: np.ndarray) -> None:
    with Table(CONFIGS[0]) as table, pytest.raises(ValueError, match=r"expected \(n\) integers"):
        table.lookup(wrong)


def _pushed(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Pushes each row of the open pass once; returns all rows."""
    ids = np.arange(3, dtype=np.int32)
    table.first.native.push_pooled(
        ids,
        np.arange(4, dtype=np.int32),
        1,
        True,
        np.ones((3, 2), np.float32),
        np.empty(0, np.int32),
        np.full((3, 7), 0.25, np.float32),
    )
    table.end()
    table.commit()
    return table.read_all()
