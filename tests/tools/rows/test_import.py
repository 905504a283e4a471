"""`paddlebox store import` of exports: the same rows again, conflicts, and bad input."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import Config, HbmPlace
from paddlebox.errors import (
    ConfigError,
    CorruptionError,
    DataError,
    OutOfSpaceError,
    PaddleBoxError,
    StoreError,
)
from paddlebox.ranks import adopt_stores
from paddlebox.ranks.reshard import write_range
from paddlebox.store import import_rows
from paddlebox.store.files import crc32c
from paddlebox.store.group import ALL_KEYS, key_ranges
from paddlebox.store.rank_stores import rank_versions, store_of_rank
from paddlebox.store.stamped import stamped
from paddlebox.store.stored_rows import StoredRows
from paddlebox.tools.rows import given, receive
from paddlebox.tools.rows.export import Chosen, export_rows
from paddlebox.tools.rows.parts import PartFormat
from paddlebox.tools.rows.receive import Target, into_existing
from paddlebox.tools.rows.sources import open_rows
from paddlebox.tools.upkeep import cli
from paddlebox.training.config_changes import description
from paddlebox.training.opening import table_options
from tests.ranks.threads import coordination, one_at_a_time
from tests.support.configs import make_slots, write_config
from tests.support.inside import head_of
from tests.support.shared import once
from tests.tools.rows import small
from tests.tools.rows.small import digest_of, ids, make_run, open_run, rows_in


def _make(folder: Path) -> None:
    make_run(folder / "run", small.config_of(), ids(1, 900), ids(500, 1200))
    for part_format in PartFormat:
        to = str(folder / part_format.value)
        export_rows(folder / "run", to, part_format, state=True, part_rows=100)
    config = small.config_of()
    shrunk = Path(shutil.copytree(folder / "run", folder / "shrunk"))
    with open_run(shrunk, config) as table:
        table.life.shrink(small.DAY + 2, 0.0, 0)  # rows of the first pass alone go
    since = Chosen(since=1)
    export_rows(shrunk, str(folder / "delta"), PartFormat.NPZ, chosen=since, part_rows=100)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "rows-to-import", _make)


@pytest.fixture
def export(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "npz", tmp_path / "export"))


@pytest.fixture
def delta(made: Path, tmp_path: Path) -> Path:
    """Changes and deletions since the first version."""
    return Path(shutil.copytree(made / "delta", tmp_path / "delta"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with some of the rows of the export, and others."""
    return make_run(tmp_path / "run", small.config_of(), ids(800, 1500), decay=False)


def empty_run(folder: Path, **sections: Any) -> Path:
    """A run without a row of the export, at the same day."""
    config = small.config_of(**sections)
    make_run(folder, config, ids(5000, 5000), ids(5000, 5000), decay=False)
    return folder


@pytest.mark.parametrize("part_format", PartFormat)
def test_an_import_gives_the_rows_of_the_export(
    made: Path, tmp_path: Path, part_format: PartFormat
) -> None:
    to = empty_run(tmp_path / "to")
    imported = into_existing(to, open_rows(str(made / part_format.value)))
    assert (imported.read, imported.new, imported.replaced) == (1200, 1200, 0)
    expected = rows_in(made / "run")
    found = rows_in(to)
    assert found.keys() - expected.keys() == {int(small.feasigns_of(ids(5000, 5000))[0])}
    # The runs have other numbers of life events, so life_seq, word 5, differs.
    assert {f: without_seq(found[f]) for f in expected} == {
        f: without_seq(row) for f, row in expected.items()
    }


def without_seq(row: bytes) -> bytes:
    return row[:20] + row[24:]


def test_parts_in_another_order_are_the_same_rows(export: Path, tmp_path: Path) -> None:
    """The names of the files say nothing."""
    names = sorted(path.name for path in (export / "rows").iterdir())
    turned = dict(zip(names, reversed(names), strict=True))
    for name in names:
        (export / "rows" / name).rename(export / "rows" / f"{turned[name]}.new")
    for name in names:
        (export / "rows" / f"{name}.new").rename(export / "rows" / name)
    rewrite(export, lambda part: part.update(file=f"rows/{turned[Path(part['file']).name]}"))
    one, other = empty_run(tmp_path / "one"), empty_run(tmp_path / "other")
    into_existing(one, open_rows(str(export)))
    into_existing(other, open_rows(str(export.parent / "export")))
    assert digest_of(one) == digest_of(other)


def rewrite(export: Path, change: Any) -> None:
    """Changes each part in export.json."""

    def change_parts(fields: dict[str, Any]) -> None:
        for table in fields["tables"]:
            for part in (*table["parts"], *table["deletions"]):
                change(part)

    rewrite_all(export, change_parts)


def rewrite_all(export: Path, change: Any) -> None:
    """Changes export.json, and its checksum."""
    fields = json.loads((export / "export.json").read_text())
    change(fields)
    fields = stamped(fields, fields["format"])
    (export / "export.json").write_text(json.dumps(fields, indent=1, sort_keys=True))


def test_an_imported_row_replaces_the_one_of_the_run_and_others_stay(made: Path, run: Path) -> None:
    before = rows_in(run)
    imported = into_existing(run, open_rows(str(made / "parquet")))
    assert (imported.new, imported.replaced) == (799, 401)
    after, given_rows = rows_in(run), rows_in(made / "run")
    assert {f: without_seq(after[f]) for f in given_rows} == {
        f: without_seq(row) for f, row in given_rows.items()
    }
    assert {f: after[f] for f in before.keys() - given_rows.keys()} == {
        f: before[f] for f in before.keys() - given_rows.keys()
    }
    assert rows_in(run, 1) == before  # the version before the import stays
    with open_run(run, small.config_of()) as table:
        head = head_of(table)
        assert (head.kind, head.live_rows, head.pass_number) == ("import", 1500, 1)
        assert table.load_dense()["w"].tolist() == [[2, 2, 2], [2, 2, 2]]


def test_what_is_not_given_is_as_in_a_new_row(made: Path, tmp_path: Path) -> None:
    """Without --state, a row has the optimizer state of a new row, and the day of the run."""
    export_rows(made / "run", str(tmp_path / "out"), PartFormat.PARQUET)
    to = empty_run(tmp_path / "to")
    into_existing(to, open_rows(str(tmp_path / "out")))
    expected, found = rows_in(made / "run"), rows_in(to)
    for feasign, row in expected.items():
        old, new = np.frombuffer(row, np.float32), np.frombuffer(found[feasign], np.float32)
        kept = [1, 2, 6, *range(8, 12)]  # show, click, embed_w and embedx_w
        assert old[kept].tobytes() == new[kept].tobytes()
        assert new[3] == new[7] == new[12] == 0  # delta_score and the states
        assert new.view(np.uint32)[4] == small.DAY + 2


def test_a_delta_brings_another_run_to_the_same_rows(tmp_path: Path) -> None:
    config = small.config_of()
    run = make_run(tmp_path / "run", config, ids(1, 300), decay=False)
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    with open_run(run, config) as table:
        small.push(table, config, ids(200, 400), 6)
        table.life.shrink(small.DAY + 6, 0.0, 3)  # rows of the first pass alone go
    export_rows(run, str(tmp_path / "delta"), PartFormat.TEXT, state=True, chosen=Chosen(since=1))
    imported = into_existing(copy, open_rows(str(tmp_path / "delta")))
    assert imported.deleted == 199
    expected, found = rows_in(run), rows_in(copy)
    assert found.keys() == expected.keys()
    assert [without_seq(found[f]) for f in expected] == [without_seq(r) for r in expected.values()]
    with open_run(copy, config) as table:
        assert head_of(table).live_rows == 201


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[::-1], "is not in the order of keys for table"),
        (lambda f: np.concatenate([f[:1], f[:-1]]), "is there twice for table"),
        (lambda f: f + np.uint64(1), "expected a key of"),
    ],
)
def test_deletions_are_checked_as_rows_are(
    change: Any, message: str, delta: Path, run: Path
) -> None:
    before = digest_of(run)
    _columns(delta, lambda c: c.update(feasign=change(c["feasign"])), "deletions", 0)
    with pytest.raises(DataError, match=message):
        into_existing(run, open_rows(str(delta)))
    assert digest_of(run) == before


def test_slots_are_found_by_name_and_feasigns_move_with_them(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = make_slots(click="label", tag={"hash": True}, user="sparse")  # no item
    monkeypatch.setattr(small, "SLOTS", slots)
    to = make_run(tmp_path / "to", small.config_of(), decay=False)
    with open_run(to, small.config_of()) as table:
        feasign = np.array([core.feasign_in_slot(7, 0)], np.uint64)
        table.begin(table.stage(core.keys_of(feasign), np.zeros(1, np.uint16)))
        table.end(1)
        table.commit(
            pass_number=1, cursor={"pass": 1}, config=description(small.config_of(), slots)
        )
    imported = into_existing(to, open_rows(str(made / "parquet")))
    assert imported.refused == {"slot item, which the run lacks": 400}
    rows = rows_in(to)
    user, tag = core.feasign_in_slot(3, 1), core.feasign_in_slot(2, 0)  # 0 and 2 before
    old = rows_in(made / "run")
    assert rows[user][4:20] == old[core.feasign_in_slot(3, 0)][4:20]
    assert rows[tag][4:20] == old[core.feasign_in_slot(2, 2)][4:20]
    assert np.frombuffer(rows[user], np.uint16)[0] == 1


def test_rows_that_the_run_would_not_look_up_are_refused_and_counted(
    export: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_table(fields: dict[str, Any]) -> None:
        fields["tables"].append({**fields["tables"][0], "name": "wide"})

    rewrite_all(export, add_table)
    monkeypatch.setattr(Target, "own", {"user", "tag"})
    imported = into_existing(run, open_rows(str(export)))
    assert imported.refused == {
        "table wide, which the run lacks": 1200,
        "slot item, which the run has in another table": 400,
    }
    assert (imported.read, imported.new + imported.replaced) == (2400, 800)
    monkeypatch.setattr(Target, "own", set())
    imported = into_existing(run, open_rows(str(export)))
    assert sum(imported.refused.values()) == imported.read == 2400


def test_a_new_run_gets_the_settings_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables may be on a GPU, which Paddle must know before it is imported."""
    places = []

    def working(config: Config) -> AbstractContextManager[None]:
        places.append(config.hbm.place)
        return nullcontext()

    monkeypatch.setattr(cli, "working", working)
    config = write_config(tmp_path, hbm={"place": "gpu"})
    run, source = str(tmp_path / "new"), str(tmp_path / "nothing")
    assert cli.store_main(["import", run, source, "-c", str(config)]) == 4
    assert cli.store_main(["import", run, source]) == 4
    assert places == [HbmPlace.GPU]


def test_a_delta_is_not_a_new_run(delta: Path) -> None:
    target: Any = SimpleNamespace(table=SimpleNamespace(head=None))
    with pytest.raises(ConfigError, match=r"is a delta since version 1, .* and then the delta"):
        open_rows(str(delta)).of_table(target)


def of_two_ranks(folder: Path, run: Path) -> Path:
    """The rows of a run in the stores of two ranks."""
    config = small.config_in(run)
    for rank, own in enumerate(key_ranges(2)):
        source = [(run / "store", 1)]
        to = store_of_rank(folder / "store", rank)
        options = table_options(config)
        write_range(source, config.tables, own, to, version=2, ranks=2, options=options)
    return folder


def versions_of(run: Path) -> list[tuple[Path, int]]:
    return [(store, record.version) for store, record in rank_versions(run / "store")]


def test_the_rows_of_several_ranks_change_together_or_not_at_all(
    made: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, source = of_two_ranks(tmp_path / "ranks", run), open_rows(str(made / "npz"))
    before = versions_of(ranks)
    assert [version for _, version in before] == [2, 2]
    for module, name in (
        (receive, "commit_added"),
        (adopt_stores._Adoption, "_finish_own"),
        (adopt_stores, "_put_in_place"),  # the next start finishes this one
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, dies)
            into_existing(ranks, source)
        assert versions_of(ranks) == before
    imported = into_existing(ranks, source)
    assert (imported.new, imported.replaced) == (0, 1200)
    assert versions_of(ranks) == [(ranks / "store", imported.version)]
    into_existing(run, source)
    assert digest_of(ranks) == digest_of(run)
    assert not list(ranks.glob("ranks/1/store*"))
    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    config = small.config_in(run)
    roots = [ranks, tmp_path / "other-host"]
    coordination(2, lambda world: adopt_stores.take_over(roots[world.rank], config, world))
    shutil.copytree(roots[1] / "ranks", ranks / "ranks", dirs_exist_ok=True)
    assert [store for store, _ in versions_of(ranks)] == [store for store, _ in before]
    with StoredRows(rank_versions(ranks / "store")) as stored:
        feasigns, rows = stored.read(*ALL_KEYS)
    assert dict(zip(feasigns.tolist(), map(bytes, rows), strict=True)) == rows_in(run)


def dies(*_: Any) -> None:
    raise KeyboardInterrupt


def test_rows_in_any_order_are_sorted_in_bounded_memory(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = empty_run(tmp_path / "one"), empty_run(tmp_path / "other")
    source = open_rows(str(made / "npz"))
    into_existing(one, source)
    of_table = source.of_table
    monkeypatch.setattr(source, "of_table", lambda target: replace(of_table(target), rows=None))
    monkeypatch.setattr(given, "_SORT_BYTES", 64 * 150)
    monkeypatch.setattr(given, "_MERGED_ROWS", 100)
    into_existing(other, source)
    assert digest_of(one) == digest_of(other)
    assert not (other / "import.tmp").exists()


# ---- bad input: one error, and nothing applied


def _columns(export: Path, change: Any, kind: str = "parts", number: int = 1) -> None:
    """Changes the columns of a part, as another program would have written them."""
    fields = json.loads((export / "export.json").read_text())
    part = fields["tables"][0][kind][number]
    path = export / part["file"]
    with np.load(path) as stored:
        columns = {name: stored[name].copy() for name in stored.files}
    change(columns)
    np.savez(path.with_suffix(""), allow_pickle=False, **columns)
    path.with_suffix(".npz").rename(path)
    content = path.read_bytes()

    def changed(of: dict[str, Any]) -> None:
        if of["file"] == part["file"]:
            of.update(bytes=len(content), crc32c=crc32c(content), rows=len(columns["feasign"]))

    rewrite(export, changed)


def _cut(export: Path) -> None:
    path = next((export / "rows").iterdir())
    path.write_bytes(path.read_bytes()[:-5])


BAD: dict[str, tuple[Any, type[PaddleBoxError], str]] = {
    "NaN": (
        lambda e: _columns(e, lambda c: c["embedx_w"].__setitem__((3, 2), np.nan)),
        DataError,
        r"part-00001.npz: embedx_w of feasign \d+: expected finite numbers, found .*nan",
    ),
    "negative shows": (
        lambda e: _columns(e, lambda c: c["show"].__setitem__(3, -1)),
        DataError,
        "show of feasign .*: expected counts of at least 0",
    ),
    "a key twice": (
        lambda e: _columns(e, lambda c: c["feasign"].__setitem__(3, c["feasign"][2])),
        DataError,
        r"feasign \d+ is there twice for table",
    ),
    "a key out of range": (
        lambda e: _columns(e, lambda c: c["feasign"].__setitem__(3, 1)),
        DataError,
        "part-00001.npz: feasign 1: expected a key of",
    ),
    "a slot that is not one": (
        lambda e: _columns(e, lambda c: c["slot"].__setitem__(3, 7)),
        DataError,
        "part-00001.npz: column slot: expected at most 2, found 7",
    ),
    "half an embedx": (
        lambda e: _columns(e, lambda c: c["has_embedx"].__setitem__(3, 2)),
        DataError,
        "part-00001.npz: column has_embedx: expected at most 1, found 2",
    ),
    "a state without its weights": (
        lambda e: rewrite_all(e, lambda f: f["tables"][0]["columns"].pop("embed_w")),
        CorruptionError,
        "export.json: .* embed_state has no meaning without embed_w",
    ),
    "a column of another width": (
        lambda e: rewrite_all(e, lambda f: f["tables"][0]["columns"].update(embedx_w=3)),
        ConfigError,
        "column embedx_w of table 'default': expected a width of 4, as in table .*, found 3",
    ),
    "a layout without a rule": (
        lambda e: rewrite_all(e, lambda f: f["tables"][0]["layout"].pop("embedx")),
        CorruptionError,
        "export.json: does not describe an export: KeyError",
    ),
    "rows that are not a number": (
        lambda e: rewrite(e, lambda part: part.update(rows="7")),
        CorruptionError,
        "export.json: .*rows is '7', expected an integer",
    ),
    "a dense state outside": (
        lambda e: rewrite_all(e, lambda f: f["dense"].update(file="../dense.npz")),
        CorruptionError,
        "the file of the dense state is '../dense.npz', expected a name",
    ),
    "another width": (
        lambda e: _columns(e, lambda c: c.update(embedx_w=c["embedx_w"][:, :3].copy())),
        DataError,
        r"part-00001.npz: column embedx_w: expected float32 of shape \(\d+, 4\), found",
    ),
    "a truncated part": (_cut, CorruptionError, r"expected \d+ bytes with CRC32C .*, found"),
    "a missing part": (
        lambda e: (e / "rows/part-00001.npz").unlink(), StoreError, "part-00001.npz: is missing",
    ),
    "a damaged manifest": (
        lambda e: (e / "export.json").write_text(
            (e / "export.json").read_text().replace('"version": 3', '"version": 2')
        ),
        CorruptionError,
        "export.json: has CRC32C .*, expected",
    ),
    "another format": (
        lambda e: (e / "export.json").write_text(json.dumps(stamped({}, 7))),
        StoreError,
        "has format 7, expected 1",
    ),
    "no export": (shutil.rmtree, StoreError, "expected the folder of `paddlebox store"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_error_and_nothing_is_applied(what: str, export: Path, run: Path) -> None:
    change, kind, message = BAD[what]
    before, files = digest_of(run), sorted((run / "store" / "ssd").iterdir())
    change(export)
    with pytest.raises(kind, match=message):
        into_existing(run, open_rows(str(export)))
    assert digest_of(run) == before  # opening the store removes files that no version names
    assert sorted((run / "store" / "ssd").iterdir()) == files
    assert not (run / "import.tmp").exists()


def test_a_table_of_another_width_and_another_key_space_are_errors(
    export: Path, tmp_path: Path
) -> None:
    wide = empty_run(tmp_path / "wide", table={"embedx_dim": 8})
    with pytest.raises(ConfigError, match=r"embedx_w .* a width of 8, as in table .*, found 4"):
        into_existing(wide, open_rows(str(export)))
    shared = empty_run(tmp_path / "shared", data={"key_space": "shared"})
    with pytest.raises(
        ConfigError, match=r"expected rows of data.key_space shared, found per_slot"
    ):
        into_existing(shared, open_rows(str(export)))


def test_an_import_that_dies_before_its_commit_leaves_the_run_as_it_was(
    export: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_of(run)

    monkeypatch.setattr(receive, "commit_added", dies)
    with pytest.raises(KeyboardInterrupt):
        into_existing(run, open_rows(str(export)))
    monkeypatch.undo()
    assert digest_of(run) == before
    into_existing(run, open_rows(str(export)))
    assert digest_of(run) != before


def test_a_full_disk_is_an_error_before_a_row_is_written(
    export: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest_of(run)

    def full(*_: Any) -> None:
        raise OutOfSpaceError("no room")

    monkeypatch.setattr(import_rows, "_check_room", full)
    with pytest.raises(OutOfSpaceError, match="no room"):
        into_existing(run, open_rows(str(export)))
    assert digest_of(run) == before
