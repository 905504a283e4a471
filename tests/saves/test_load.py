"""A store made from saves alone, and saves of several tables: row by row what the table held."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paddlebox
from paddlebox import _native
from paddlebox.config import LifeConfig, TableConfig
from paddlebox.config.table import RowPrecision, Rule
from paddlebox.errors import ConfigError, CorruptionError, OutOfSpaceError, StoreError
from paddlebox.saves import Saver, chain_of, donefile, open_save
from paddlebox.saves.reader import Save
from paddlebox.store.import_rows import import_chunks
from paddlebox.store.life import shrink
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from tests.saves.common import FIRST_DAY, Rows, apply, base_of, config, feasigns, open_table, train
from tests.support.configs import make_slots

LIFE_SEQ = 5
WEIGHT, DELTA_SCORE = 6, 3  # words of a row (docs/formats/row.md)


def held(table: Table | TieredTable) -> Rows:
    """All rows without life_seq: what a row has seen is the store's own."""
    found, rows = table.read_all()
    rows[:, LIFE_SEQ] = 0
    return dict(zip(found.tolist(), (row.tobytes() for row in rows), strict=True))


def served(save: Save, table: str = "default") -> Rows:
    return apply([one.parts[table] for one in chain_of(save)])


@pytest.mark.parametrize("precision", [RowPrecision.FLOAT32, RowPrecision.BFLOAT16])
def test_a_store_from_a_base_and_its_deltas_has_their_rows_and_no_deleted_ones(
    precision: RowPrecision, tmp_path: Path
) -> None:
    layout = config(precision)
    with open_table(tmp_path / "old", layout) as table:
        train(table, feasigns(1, 3000), 1)
        saver = Saver(table, tmp_path / "out")
        saver.base()
        train(table, feasigns(2900, 200), 2)
        saver.delta("20240101/delta-2")
        table.life.shrink(FIRST_DAY, min_score=0.6)  # those with five shows and no click
        train(table, feasigns(5000, 10), 3)
        last = saver.delta("20240101/delta-3")
        assert last.meta["deleted"] > 1000
        expected, optimizer = base_of(table), table.load_dense()
    with open_table(tmp_path / "new", layout) as table:
        box = paddlebox.BoxWrapper(table)
        assert box.load_model(str(last.folder)) == len(expected)
        assert held(table) == expected == served(last)
        digest = table.digest()
        assert table.load_dense()["w"].tolist() == optimizer["w"].tolist() == [3, 3, 3]
        assert (table.day, box.load_ssd2mem("20240101")) == (FIRST_DAY, True)
        with pytest.raises(StoreError, match="has version 1, expected an empty store"):
            box.load_model(str(last.folder))
    with open_table(tmp_path / "new", layout) as table:  # it is durable
        assert table.digest() == digest
        train(table, feasigns(1, 20), 4)  # and it goes on: deltas upon the chain too
        following = Saver(table, tmp_path / "out").delta("20240101/delta-4")
        assert apply(chain_of(following)) == base_of(table)


def test_a_loaded_store_trains_on_as_the_old_one_does(tmp_path: Path) -> None:
    """A batch has every row with its optimizer state and its delta_score: the same bits follow."""
    with open_table(tmp_path / "old") as table:
        train(table, feasigns(1, 500), 1)
        batch = Saver(table, tmp_path / "out").batch()
        train(table, feasigns(300, 400), 2)
        expected = held(table)
    with open_table(tmp_path / "new") as other:
        assert paddlebox.BoxWrapper(other).load_model(str(batch.folder)) == 500
        train(other, feasigns(300, 400), 2)
        assert held(other) == expected


def test_a_save_of_slots_without_a_label_is_loaded(tmp_path: Path) -> None:
    slots = b"slots: [{name: spent, type: dense}, {name: user, type: sparse}]"
    with open_table(tmp_path / "old") as table:
        train(table, feasigns(1, 50), 1)
        saver = Saver(table, tmp_path / "out", extra={"slots.yaml": slots, "config.json": b"{}"})
        base = saver.base()
    with open_table(tmp_path / "new") as table:
        assert paddlebox.BoxWrapper(table).load_model(str(base.folder)) == 50
        head = table.first.head
        assert head is not None
        assert [slot["name"] for slot in head.config["slots"]["slots"]] == ["spent", "user"]


def test_a_base_resets_delta_score_and_keeps_the_rest_of_a_row(tmp_path: Path) -> None:
    with open_table(tmp_path / "old") as table:
        train(table, feasigns(1, 100), 1)
        before = held(table)
        base = Saver(table, tmp_path / "out").base()
    with open_table(tmp_path / "new") as table:
        paddlebox.BoxWrapper(table).load_model(str(base.folder))
        after = held(table)
    assert after.keys() == before.keys()
    for feasign, row in after.items():
        was, now = (np.frombuffer(one, np.float32).copy() for one in (before[feasign], row))
        assert was[DELTA_SCORE] > 0
        assert now[DELTA_SCORE] == 0
        was[DELTA_SCORE] = 0
        assert was.tobytes() == now.tobytes()


def test_a_day_that_had_ended_before_the_save_does_not_end_again(tmp_path: Path) -> None:
    life: dict[str, Any] = {"show_click_decay_rate": 0.5, "delete_threshold": 0.01}
    for ended in (True, False):
        folder = tmp_path / str(ended)
        with open_table(folder / "old", config(**life)) as table:
            train(table, feasigns(1, 20), 1)
            if ended:
                table.life.shrink_table()
            base = Saver(table, folder / "out").base()
        with open_table(folder / "new", config(**life)) as table:
            paddlebox.BoxWrapper(table).load_model(str(base.folder))
            rows = held(table)
            assert table.life.begin_day(FIRST_DAY + 1) is not ended
            assert (held(table) == rows) is ended


def test_a_save_that_cannot_be_loaded_is_an_error_and_the_store_stays_empty(tmp_path: Path) -> None:
    with open_table(tmp_path / "old") as table:
        train(table, feasigns(1, 3000), 1)
        base = Saver(table, tmp_path / "out").base()
    wide = config().model_copy(update={"embedx_dim": 8})
    rule = config().embed.model_copy(update={"rule": Rule.ADAGRAD_V2})
    other_rule = config().model_copy(update={"embed": rule})
    refused: list[tuple[Path | None, TableConfig, type[Exception], str]] = [
        (tmp_path / "x", wide, ConfigError, "rows of table default have layout"),
        (tmp_path / "x", other_rule, ConfigError, "rows of table default have embed.rule"),
        (None, config(), StoreError, "has no store of its own to load into"),
    ]
    for folder, layout, error, text in refused:
        with open_table(folder, layout) as table, pytest.raises(error, match=text):
            paddlebox.BoxWrapper(table).load_model(str(base.folder))
    with open_table(tmp_path / "new") as table:
        _native.core.inject_write_fault(9000, errno.ENOSPC)
        try:
            with pytest.raises(OutOfSpaceError):
                paddlebox.BoxWrapper(table).load_model(str(base.folder))
        finally:
            _native.core.inject_write_fault(-1, 0)
        assert table.head is None
    segment = next((base.folder / "000").iterdir())
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    with open_table(tmp_path / "new") as table:
        with pytest.raises(CorruptionError, match=segment.name):
            paddlebox.BoxWrapper(table).load_model(str(base.folder))
        assert table.head is None
    with open_table(tmp_path / "new") as table:
        data[5000] ^= 1
        segment.write_bytes(data)
        assert paddlebox.BoxWrapper(table).load_model(str(base.folder)) == 3000


def test_rows_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    with open_table(tmp_path / "new") as table:
        rows = np.zeros((2, table.first.row_bytes // 4), np.float32)
        for chunks in (
            [(np.array([2, 1], np.uint64), rows)],
            [(np.array([5, 6], np.uint64), rows), (np.array([6, 7], np.uint64), rows)],
        ):
            with pytest.raises(ValueError, match="expected ascending keys"):
                import_chunks(table.first, iter(chunks), 4)
        with pytest.raises(ValueError, match="2 keys and 3 floats"):
            import_chunks(table.first, iter([(np.array([1, 2], np.uint64), rows[:1, :3])]), 2)


# ---- several tables

SLOTS = make_slots(click="label", user={"table": "wide"}, item="sparse")
LIFE = LifeConfig(delta_threshold=0.0, base_threshold=0.15)
TABLES = (
    TableConfig(embedx_dim=4, embedx_threshold=0.0, life=LIFE),
    TableConfig(name="wide", embedx_dim=16, embedx_threshold=0.0, life=LIFE),
)


@contextmanager
def group(folder: Path | None, tables: Any = TABLES) -> Iterator[TableSet]:
    with TableSet(
        tables, slots=SLOTS, folder=folder, hbm_budget_bytes=64 << 20, mem_budget_bytes=8 << 20
    ) as opened:
        yield opened


def train_both(tables: TableSet, of_table: dict[str, range], number: int) -> None:
    """A pass that pushes each feasign once, two shows and a click, up to its commit."""
    keys = [sorted_unique_keys(np.array(of_table[name], np.uint64)) for name in tables.names]
    slots = [np.full(len(k), 1 - t, np.uint16) for t, k in enumerate(keys)]
    staged = tables.stage(np.concatenate(keys), np.concatenate(slots), day=FIRST_DAY)
    tables.begin(staged)
    for table, part in zip(tables.members, staged.parts, strict=True):
        ids = part.row_of_key
        table.native.push_pooled(
            ids,
            np.arange(len(ids) + 1, dtype=np.int32),
            1,
            True,
            np.tile(np.array([2, 1], np.float32), (len(ids), 1)),
            np.empty(0, np.int32),
            np.full((len(ids), table.config.embedx_dim + 3), 0.01 * number, np.float32),
        )
    tables.end(number)
    dense = {"w": np.full(2, number, np.float32)}
    tables.commit(pass_number=number, day=FIRST_DAY, dense=dense)


def saved(tables: TableSet, out: Path) -> Save:
    """A base, a delta with deletions in one table, and one more."""
    train_both(tables, {"default": range(1, 50), "wide": range(40, 90)}, 1)
    box = paddlebox.BoxWrapper(tables, extra={"slots.yaml": b"slots"})
    box.save_base(f"{out}/20240101/0", f"{out}/20240101/base")
    train_both(tables, {"default": range(30, 70), "wide": range(60, 99)}, 2)
    # A click and two shows score 1.1: the rows of the second table go.
    life = tables.members[1].config.life
    tables.life.append([[], [shrink(life, FIRST_DAY, min_score=2.0)]])
    first = open_save(box.save_delta(f"{out}/20240101/delta-2"))
    assert [part.meta["deleted"] for part in first.parts.values()] == [0, 20]
    train_both(tables, {"default": range(100, 110), "wide": range(40, 45)}, 3)
    return open_save(box.save_delta(f"{out}/20240101/delta-3"))


@pytest.mark.parametrize("stored", [True, False])
def test_the_chain_of_several_tables_is_what_each_of_them_holds(
    stored: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with group(tmp_path / "store" if stored else None) as tables:
        last = saved(tables, out)
        for table in tables.members:
            assert served(last, table.name) == base_of(table)
            assert len(base_of(table)) > 10
        assert last.dense().keys() == ({"w"} if stored else set())
        box = paddlebox.BoxWrapper(tables)
        merged = open_save(box.merge_model(str(last.folder), f"{out}/20240101/merged"))
        for table in tables.members:
            assert apply([merged.parts[table.name]]) == base_of(table)
        last_save = box.last_save(str(out))
        assert last_save is not None
        assert last_save.name == merged.name
        assert (out / "20240101" / "base" / "tables" / "wide" / "000").is_dir()
        line = (out / "xbox_base_done.txt").read_text().splitlines()[0]
        base = open_save(out / "20240101" / "base")
        assert f'"record_count": "{base.rows}"' in line
        assert base.rows == 49 + 50
        batch = open_save(out / "20240101" / "0")
        assert [part.meta["rows"] for part in batch.parts.values()] == [49, 50]
        assert [done.name for done in donefile.read(out, "delta")] == [
            "20240101/delta-2",
            "20240101/delta-3",
        ]


def test_several_tables_are_loaded_in_one_commit(tmp_path: Path) -> None:
    with group(tmp_path / "old") as tables:
        last = saved(tables, tmp_path / "out")
        expected = {table.name: base_of(table) for table in tables.members}
    with group(tmp_path / "new") as tables:
        count = paddlebox.BoxWrapper(tables).load_model(str(last.folder))
        assert count == sum(map(len, expected.values()))
    with group(tmp_path / "new") as tables:
        assert {table.name: held(table) for table in tables.members} == expected
        assert tables.load_dense()["w"].tolist() == [3, 3]
        assert tables.head is not None
        assert tables.head.tables == {"wide": 1}
        train_both(tables, {"default": range(1, 9), "wide": range(1, 9)}, 4)
    with group(tmp_path / "killed") as tables:
        first = tables.members[0]
        first.versions.record = lambda *_, **__: (_ for _ in ()).throw(StoreError("dies here"))  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="dies here"):
            paddlebox.BoxWrapper(tables).load_model(str(last.folder))
    with group(tmp_path / "killed") as tables:  # nothing of it is there
        assert all(table.head is None for table in tables.members)
        assert paddlebox.BoxWrapper(tables).load_model(str(last.folder)) == count
    text = "has tables default, wide, the table has default"
    with open_table(tmp_path / "one") as table, pytest.raises(ConfigError, match=text):
        paddlebox.BoxWrapper(table).load_model(str(last.folder))


def test_a_damaged_table_of_a_save_is_found(tmp_path: Path) -> None:
    with group(None) as tables:
        last = saved(tables, tmp_path)
    meta = last.folder / "tables" / "wide" / "meta.json"
    other = tmp_path / "20240101" / "base" / "tables" / "wide" / "meta.json"
    meta.write_bytes(other.read_bytes())
    with pytest.raises(CorruptionError, match="table wide has CRC32C"):
        open_save(last.folder)
    meta.unlink()
    with pytest.raises(StoreError, match="holds no complete save"):
        open_save(last.folder)
