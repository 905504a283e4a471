"""`paddlebox store export`: what it writes, what a delta has, and how it goes on after a kill."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.errors import ConfigError, StoreError
from paddlebox.tools.rows import columns, export
from paddlebox.tools.rows.export import Chosen, export_rows
from paddlebox.tools.rows.folder import LocalFolder
from paddlebox.tools.rows.manifest import read_manifest
from paddlebox.tools.rows.parts import PartFormat
from tests.support.shared import own_copy
from tests.tools.rows import small
from tests.tools.rows.small import ids, rows_in

PARQUET = PartFormat.PARQUET


def _make(folder: Path) -> None:
    small.make_run(folder, small.config_of(), ids(1, 900), ids(500, 1200))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_copy(tmp_path_factory, "exported-run", _make)


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "export.json"
    }


def table_of(folder: Path, kind: str = "rows") -> dict[str, Any]:
    parts = sorted((folder / kind).glob("*.parquet"))
    columns: dict[str, Any] = {}
    for part in parts:
        for name, values in pq.read_table(part).to_pydict().items():
            columns.setdefault(name, []).extend(values)
    return columns


def test_parts_hold_every_row_once_in_ranges_of_keys(run: Path, tmp_path: Path) -> None:
    exported = export_rows(run, str(tmp_path / "out"), PARQUET, state=True, part_rows=100)
    manifest = read_manifest(LocalFolder(str(tmp_path / "out")))
    parts = manifest.tables[0].parts
    assert exported.rows == 1200 == sum(part.rows for part in parts)
    assert len(parts) == 12
    assert all(a.last_key + 1 == b.first_key for a, b in pairwise(parts))
    columns = table_of(tmp_path / "out")
    assert {int(feasign) for feasign in columns["feasign"]} == rows_in(run).keys()
    assert sorted(set(columns["slot"])) == ["item", "tag", "user"]
    without = [
        v for v, has in zip(columns["embedx_w"], columns["has_embedx"], strict=True) if not has
    ]
    assert len(without) > 0
    assert not np.any(without)
    assert manifest.is_whole
    assert not (tmp_path / "out" / "progress.json").exists()


def test_rows_can_be_chosen_by_slot_score_and_version(run: Path, tmp_path: Path) -> None:
    def exported(name: str, **arguments: Any) -> dict[str, Any]:
        export_rows(run, str(tmp_path / name), PARQUET, **arguments)
        return table_of(tmp_path / name)

    everything = exported("all")
    users = exported("users", chosen=Chosen(slots=["user"]))
    assert set(users["slot"]) == {"user"}
    assert len(users["slot"]) == everything["slot"].count("user")
    best = exported("best", chosen=Chosen(min_score=0.5))
    # After the decay of a half, a click is worth 0.5 and a show 0.05.
    scores = [
        0.1 * (s - c) + c for s, c in zip(everything["show"], everything["click"], strict=True)
    ]
    assert 0 < len(best["show"]) == sum(np.float32(score) >= 0.5 for score in scores) < 1200
    assert len(exported("first", version=1)["show"]) == 900


def test_a_delta_has_changes_and_deletions_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = small.config_of()
    small.make_run(folder, config, ids(1, 300), ids(200, 400), decay=False)
    with small.open_run(folder, config) as table:
        small.push(table, config, ids(350, 500), 9)
        table.life.shrink(small.DAY + 9, 0.0, 7)  # rows of the first pass alone go
    exported = export_rows(folder, str(tmp_path / "delta"), PARQUET, chosen=Chosen(since=1))
    old, new = rows_in(folder, 1), rows_in(folder)
    changed = {feasign for feasign, row in new.items() if _same(old.get(feasign)) != _same(row)}
    assert {int(f) for f in table_of(tmp_path / "delta")["feasign"]} == changed
    gone = old.keys() - new.keys()
    assert {int(f) for f in table_of(tmp_path / "delta", "deleted")["feasign"]} == gone
    assert exported.deleted == len(gone) == 199


def _same(row: bytes | None) -> bytes:
    """A row without life_seq."""
    return b"" if row is None else row[:20] + row[24:]


def test_an_export_that_died_goes_on_and_ends_with_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    export_rows(run, str(whole), PARQUET, part_rows=100)
    written: list[str] = []
    write = LocalFolder.write

    def dying(folder: LocalFolder, name: str, content: bytes) -> None:
        if len(written) == 9:
            raise KeyboardInterrupt
        written.append(name)
        write(folder, name, content)

    monkeypatch.setattr(LocalFolder, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        export_rows(run, str(killed), PARQUET, part_rows=100)
    with pytest.raises(StoreError, match="the export is not complete"):
        read_manifest(LocalFolder(str(killed)))
    before = {n: (killed / n).stat().st_mtime_ns for n in written if n.startswith("rows/")}
    monkeypatch.setattr(LocalFolder, "write", write)
    with pytest.raises(StoreError, match="with part_rows 100, expected 300"):
        export_rows(run, str(killed), PARQUET, part_rows=300)  # its parts have other ranges
    export_rows(run, str(killed), PARQUET, part_rows=100)
    assert files_in(killed) == files_in(whole)
    kept = [n for n, time in before.items() if (killed / n).stat().st_mtime_ns == time]
    assert len(kept) >= 4  # they were not written again
    assert export_rows(run, str(killed), PARQUET, part_rows=100).rows == 1200  # once more: nothing


def test_another_export_in_the_folder_is_an_error_and_stays(run: Path, tmp_path: Path) -> None:
    export_rows(run, str(tmp_path / "out"), PARQUET)
    before = files_in(tmp_path / "out")
    with pytest.raises(StoreError, match=r"holds another export.* part_format"):
        export_rows(run, str(tmp_path / "out"), PartFormat.NPZ)
    with pytest.raises(StoreError, match="with state false, expected true"):
        export_rows(run, str(tmp_path / "out"), PARQUET, state=True)
    assert files_in(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("chosen", "kind", "message"),
    [
        (Chosen(slots=["usr"]), ConfigError, "did you mean 'user'"),
        (Chosen(since=9), ConfigError, "--since 9: expected a version before 3"),
        (Chosen(since=0), StoreError, "version 0 is not kept; kept are"),
    ],
)
def test_a_choice_of_nothing_writes_nothing(
    run: Path, tmp_path: Path, chosen: Chosen, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        export_rows(run, str(tmp_path / "out"), PARQUET, chosen=chosen)
    assert not (tmp_path / "out").exists()


def test_a_uri_gets_the_same_files(run: Path, tmp_path: Path) -> None:
    export_rows(run, str(tmp_path / "local"), PARQUET, part_rows=300)
    export_rows(run, f"file://{tmp_path}/uri", PARQUET, part_rows=300)
    assert files_in(tmp_path / "local") == files_in(tmp_path / "uri")


def test_the_memory_is_that_of_a_part(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def counted(feasigns: np.ndarray, *rest: Any) -> Any:
        nonlocal most
        most = max(most, len(feasigns))
        return columns.columns_of(feasigns, *rest)

    monkeypatch.setattr(export, "columns_of", counted)
    export_rows(run, str(tmp_path / "out"), PARQUET, part_rows=100)
    assert most < 200  # keys are hashes: a part has about 100
