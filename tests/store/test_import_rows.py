"""Rows of a store as the first rows of another: what is kept, and what is as in a new row."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.errors import CorruptionError, OutOfSpaceError
from paddlebox.store.import_rows import FirstVersion, commit_initial, import_rows, open_source
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.tiered_table import TieredTable
from paddlebox.tools.upkeep.report import row_fields
from tests.support.fixtures import OpenTable
from tests.support.inside import head_of

SLOTS = 3
BASE: dict[str, Any] = {
    "embedx_dim": 4,
    "embedx_threshold": 1.0,
    "embed": {"rule": "adagrad"},
    "embedx": {"rule": "std_adagrad"},
}


def push(table: Table, feasigns: np.ndarray, slots: np.ndarray, day: int, seed: int) -> None:
    """One pass: every feasign once, of random gradient, show 1 and click of every third."""
    paddle.disable_static()
    order = np.argsort(np.array([core.mix(int(f)) for f in feasigns], np.uint64))
    feasigns, slots = feasigns[order], slots[order]
    table.begin(table.stage(sorted_unique_keys(feasigns), slots.astype(np.uint16), day=day))
    width = 3 + table.config.embedx_dim
    grad = np.random.default_rng(seed).normal(0, 1, (len(feasigns), width)).astype(np.float32)
    grad[:, 0], grad[:, 1] = 1.0, feasigns % 3 == 0
    ids = paddle.to_tensor(feasigns.view(np.int64))
    ops.push_box_sparse(ids, paddle.to_tensor(grad))
    table.end(seed)
    table.commit(day=day, pass_number=seed)


@pytest.fixture
def source(open_table: Any, tmp_path: Path) -> Any:
    """Makes a store of 3000 rows in three slots, part of them with an embedx, in several passes,
    with a decay that not every row has seen; returns its rows by feasign."""

    def make(fields: dict[str, Any] | None = None, per_slot: bool = False) -> dict[int, Any]:
        table = open_table({**BASE, **(fields or {})}, folder=tmp_path / "old", compaction=None)
        tokens = np.arange(1, 3001, dtype=np.uint64)
        slots = (tokens % SLOTS).astype(np.int64)
        feasigns = tokens
        if per_slot:
            pairs = zip(tokens, slots, strict=True)
            feasigns = np.array([core.feasign_in_slot(int(t), int(s)) for t, s in pairs], np.uint64)
        push(table, feasigns, slots, 20000, 1)
        table.life.end_of_day(20000, 0.5)
        push(table, feasigns[:1000], slots[:1000], 20001, 2)
        push(table, feasigns[500:1500], slots[500:1500], 20001, 3)
        rows = by_feasign(table.first)
        table.close()
        return rows

    return make


def by_feasign(table: TieredTable) -> dict[int, dict[str, Any]]:
    layout = dict(table.native.layout)
    return {
        int(feasign): row_fields(layout, row)
        for feasign, row in zip(*table.read_all(), strict=True)
    }


@pytest.fixture
def convert(open_table: Any, tmp_path: Path) -> Any:
    """Imports the source into a table of these fields; returns the rows by feasign as the store,
    opened again, has them."""

    def run(
        fields: dict[str, Any],
        slots: tuple[int, ...] = (0, 1, 2),
        *,
        keyed_by_slot: bool = False,
        sort_bytes: int = 1 << 20,
        **arguments: Any,
    ) -> dict[int, Any]:
        fields = {**BASE, **fields}
        arguments = {"max_segment_bytes": 1 << 16, "compaction": None, **arguments}
        table = open_table(fields, folder=tmp_path / "new", **arguments)
        with open_source(tmp_path / "old", None) as old:
            imported = import_rows(
                [old],
                table.first,
                slots=slots,
                keyed_by_slot=keyed_by_slot,
                progress=lambda _: None,
                sort_bytes=sort_bytes,
            )
            dense = {"w": np.ones(3, np.float32)}
            first = FirstVersion(imported.segments, dense, day=old.day, events=old.events)
            commit_initial(table, [first])
        digest = table.digest()
        table.close()
        table = open_table(fields, folder=tmp_path / "new", **arguments)
        assert table.digest() == digest
        assert head_of(table).kind == "init"
        assert head_of(table).live_rows == imported.rows
        rows = by_feasign(table.first)
        table.close()
        return rows

    return run


def fresh(open_table: Any, fields: dict[str, Any], rows: dict[int, Any], **arguments: Any) -> Any:
    """The rows of a new table of these fields that got their embedx in their first push."""
    fields = {**BASE, **fields, "embedx_threshold": 0.0}
    table = open_table(fields, **arguments)
    feasigns = np.array(sorted(rows), np.uint64)
    push(table, feasigns, np.zeros(len(feasigns), np.int64), 0, 1)
    return by_feasign(table.first)


def same(found: dict[str, Any], expected: dict[str, Any], *names: str) -> None:
    for name in names:
        assert found[name] == expected[name], name


HEAD = (
    *("slot", "has_embedx", "show", "click", "delta_score", "last_seen_day", "life_seq"),
    "embed_w",
)
EMBEDX = ("embedx_w", "embedx_state")


def some_have_embedx(rows: dict[int, Any]) -> None:
    count = sum(row["has_embedx"] for row in rows.values())
    assert 100 < count < len(rows) - 100


def test_the_same_layout_carries_every_byte(
    source: Callable[..., Any], convert: Callable[..., Any], open_table: OpenTable, tmp_path: Path
) -> None:
    rows = source()
    some_have_embedx(rows)
    assert convert({}) == rows


def test_another_seed_keeps_the_rows_that_there_are(
    source: Callable[..., Any], convert: Callable[..., Any]
) -> None:
    rows = source({"expand_dim": 2})
    assert convert({"expand_dim": 2}, seed=9) == rows


def test_another_width_creates_embedx_as_in_a_new_row(
    source: Callable[..., Any], convert: Callable[..., Any], open_table: OpenTable
) -> None:
    rows = source()
    found = convert({"embedx_dim": 6}, seed=5)
    new = fresh(open_table, {"embedx_dim": 6}, rows, seed=5)
    assert found.keys() == rows.keys()
    for feasign, row in found.items():
        same(row, rows[feasign], *HEAD, "embed_state")
        if row["has_embedx"]:
            same(row, new[feasign], *EMBEDX)
            assert any(row["embedx_w"])
        else:
            assert not any(row["embedx_w"] + row["embedx_state"])


@pytest.mark.parametrize(("old", "new"), [(0, 3), (2, 3), (2, 0), (2, 2)])
def test_expand_is_kept_for_the_same_width_and_created_again_otherwise(
    source: Callable[..., Any],
    convert: Callable[..., Any],
    open_table: OpenTable,
    old: int,
    new: int,
) -> None:
    rows = source({"expand_dim": old})
    found = convert({"expand_dim": new, "embedx_dim": 5}, seed=7)
    made = fresh(open_table, {"expand_dim": new, "embedx_dim": 5}, rows, seed=7)
    for feasign, row in found.items():
        same(row, rows[feasign], *HEAD)
        if not row["has_embedx"]:
            continue
        same(row, made[feasign], *EMBEDX)
        if new:
            same(row, (rows if old == new else made)[feasign], "expand_w", "expand_state")


ADAM = [0.0, 0.0, float(np.float32(0.9)), float(np.float32(0.999))]
STATES = {  # of one weight, and of four: as docs/formats/row.md has them, before any push
    "naive": ([], []),
    "adagrad": ([0.0], [0.0]),
    "std_adagrad": ([0.0], [0.0] * 4),
    "adagrad_v2": ([0.0], [0.0]),
    "adam": (ADAM, [0.0] * 6 + ADAM),
    "shared_adam": (ADAM, ADAM),
}


@pytest.mark.parametrize("rule", STATES)
def test_another_rule_keeps_weights_and_resets_its_state(
    source: Callable[..., Any], convert: Callable[..., Any], rule: str
) -> None:
    rows = source()
    found = convert({"embed": {"rule": rule}, "embedx": {"rule": rule}})
    for feasign, row in found.items():
        before = rows[feasign]
        same(row, before, *HEAD, "embedx_w")
        assert row["embed_state"] == (
            before["embed_state"] if rule == "adagrad" else STATES[rule][0]
        )
        if row["has_embedx"]:
            assert row["embedx_state"] == (
                before["embedx_state"] if rule == "std_adagrad" else STATES[rule][1]
            )


def test_ftrl_begins_where_the_weights_are(
    source: Callable[..., Any], convert: Callable[..., Any]
) -> None:
    """Its weights follow from z: a state of zeros would forget them at the first push."""
    rows = source()
    found = convert({"embedx": {"rule": "ftrl", "learning_rate": 0.5}})
    for feasign, row in found.items():
        assert row["embedx_w"] == rows[feasign]["embedx_w"]
        if row["has_embedx"]:
            z, n = np.array(row["embedx_state"]).reshape(2, 4)
            assert not n.any()
            # w = -z / (beta / rate + l2), beta 1
            np.testing.assert_allclose(-z / 2, row["embedx_w"], rtol=1e-6)


def test_a_rule_whose_rates_differ_keeps_its_state(
    source: Callable[..., Any], convert: Callable[..., Any]
) -> None:
    rows = source()
    assert convert({"embedx": {"rule": "std_adagrad", "learning_rate": 0.9}}) == rows


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_sixteen_bits_round_once_and_stay(
    source: Callable[..., Any], convert: Callable[..., Any], precision: str
) -> None:
    rows = source()
    found = convert({"row_precision": precision})
    step = 2.0**-10 if precision == "float16" else 2.0**-7
    for feasign, row in found.items():
        same(row, rows[feasign], *HEAD, "embed_state", "embedx_state")
        for before, after in zip(rows[feasign]["embedx_w"], row["embedx_w"], strict=True):
            assert math.isclose(before, after, rel_tol=step, abs_tol=2.0**-24)


def test_rows_that_are_packed_come_through_unchanged(
    source: Callable[..., Any], convert: Callable[..., Any]
) -> None:
    rows = source({"row_precision": "bfloat16"})
    assert convert({"row_precision": "bfloat16"}, seed=3) == rows


def test_rows_of_dropped_slots_are_left_out_and_others_get_their_new_number(
    source: Callable[..., Any], convert: Callable[..., Any]
) -> None:
    rows = source()
    found = convert({}, (1, -1, 0))
    kept = {f: row for f, row in rows.items() if row["slot"] != 1}
    assert found.keys() == kept.keys()
    for feasign, row in found.items():
        assert row == {**kept[feasign], "slot": {0: 1, 2: 0}[kept[feasign]["slot"]]}


@pytest.mark.parametrize("sort_bytes", [1 << 12, 1 << 16, 1 << 30])
def test_a_slot_that_moves_takes_its_feasigns_along_in_bounded_memory(
    source: Callable[..., Any], convert: Callable[..., Any], sort_bytes: int, tmp_path: Path
) -> None:
    source(per_slot=True)
    slots = (3, -1, 0)
    found = convert({}, slots, keyed_by_slot=True, sort_bytes=sort_bytes)
    expected = {
        core.feasign_in_slot(token, slots[token % SLOTS])
        for token in range(1, 3001)
        if slots[token % SLOTS] >= 0
    }
    assert found.keys() == expected
    # What a token learned is found under its new feasign.
    with open_source(tmp_path / "old", None) as old:
        before = by_feasign(old)
    for token in range(2, 3001, 3):
        row = found[core.feasign_in_slot(token, 0)]
        assert row == {**before[core.feasign_in_slot(token, 2)], "slot": 0}
    files = {path.name for path in (tmp_path / "new" / "ssd").iterdir()}
    with open_source(tmp_path / "new", None) as new:
        assert files == {segment["file"] for segment in head_of(new).segments}
        assert new.counters()["ssd_rows"] == len(expected)  # no key twice


def test_a_store_that_is_being_trained_gives_its_last_commit(
    source: Callable[..., Any],
    open_table: OpenTable,
    in_new_process: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source()
    table = open_table(BASE, folder=tmp_path / "old", compaction=None)
    table.begin(table.stage(sorted_unique_keys(np.arange(9000, 9100, dtype=np.uint64))))
    found = in_new_process(IMPORT, str(tmp_path), str(head_of(table).version))
    assert found == {"rows": 3000, "version": head_of(table).version, "digest_of_old": True}


IMPORT = """
import json, pathlib, sys
from paddlebox.store.import_rows import FirstVersion, commit_initial
from paddlebox.store.import_rows import import_rows, open_source
from paddlebox.store.table import Table
folder = pathlib.Path(sys.argv[1])
with open_source(folder / "old", int(sys.argv[2])) as old:
    config = old.config.model_copy(update={"name": "new"})
    with Table(config, folder=folder / "new") as new:
        imported = import_rows(
            [old], new.first, slots=[0, 1, 2], keyed_by_slot=False, progress=lambda _: None
        )
        first = FirstVersion(imported.segments, day=old.day, events=old.events)
        commit_initial(new, [first])
        same = new.digest() == old.digest()
        print(json.dumps(
            {"rows": imported.rows, "version": old.head.version, "digest_of_old": same}
        ))
"""


def test_a_damaged_block_ends_the_import(
    source: Callable[..., Any], convert: Callable[..., Any], tmp_path: Path
) -> None:
    source()
    file = max((tmp_path / "old" / "ssd").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[2000] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match=file.name):
        convert({})


def test_what_was_imported_without_its_commit_is_gone_at_the_next_start(
    source: Callable[..., Any], open_table: OpenTable, tmp_path: Path
) -> None:
    source()
    table = open_table({**BASE, "name": "other"}, folder=tmp_path / "other")
    with open_source(tmp_path / "old", None) as old:
        import_rows(
            [old], table.first, slots=(0, 1, 2), keyed_by_slot=False, progress=lambda _: None
        )
    assert table.head is None  # nothing is named before the commit
    table.close()
    table = open_table({**BASE, "name": "other"}, folder=tmp_path / "other")
    assert not list((tmp_path / "other" / "ssd").iterdir())


def test_a_disk_without_room_is_reported_before_anything_is_written(
    source: Callable[..., Any], convert: Callable[..., Any], tmp_path: Path
) -> None:
    source()
    with pytest.raises(OutOfSpaceError, match=r"3000 rows of .* need \d+ bytes, \d+ are free"):
        convert({}, disk_budget_bytes=1 << 16)
    assert not list((tmp_path / "new" / "ssd").iterdir())
