"""Names, numbers and links in the files of a store, a copy or a save that somebody has made up."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.saves import donefile
from paddlebox.saves.meta import _FIELDS, FORMAT, _text_of, parse_meta
from paddlebox.store import checked, copies, files
from paddlebox.store.locks import held_leases
from paddlebox.store.record import VersionRecord, frame
from paddlebox.store.stamped import checksum
from paddlebox.store.version_store import VersionStore
from tests.fuzz import fuzz_files
from tests.support.marks import long, slow

SEGMENT = {
    "id": 1, "sequence": 1, "file": "seg-000000000001.seg", "rows": 1, "min_key": 5, "max_key": 5,
    "bytes": 4, "footer_crc": 1, "stamp": "0a",
}  # fmt: skip
RECORD = VersionRecord(1, 0, [SEGMENT], {}, 1, dense={"dense.bin": {"bytes": 2, "crc32c": 3}})


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"dense": {name: {"bytes": 1, "crc32c": 1}}}
            for name in ("/etc/x", "../x", "..", ".", "", "a\0b")
        ),
        *({"tables": {name: 1}} for name in ("/etc", "../..", "a/b")),
        *(
            {"dense": {"dense.bin": {"bytes": size, "crc32c": 1}}}
            for size in (-1, 1.0, True, 2**63)
        ),
        *({"segments": [SEGMENT | {"file": name}]} for name in ("../../x", "seg-1.seg")),
        *({"segments": [SEGMENT | {"stamp": stamp}]} for stamp in ("../../x", "", "0" * 99)),
        {"segments": [SEGMENT | {"rows": 2**63}]},
        {"segments": [SEGMENT | {"max_key": 4}]},
        {"segments": [SEGMENT, SEGMENT]},
        {"dense_version": -1},
        {"bytes_written": {"pass": []}},
        {"events": [{"seq": 1, "kind": "decay"}]},
        {"events": [{"seq": 0, "kind": "weight_decay", "embed_decay": 1, "embedx_decay": 1}]},
        {"events": [{"seq": 2, "kind": "weight_decay", "embed_decay": 1, "embedx_decay": 1}] * 2},
    ],
)
def test_a_record_with_an_impossible_name_or_number_is_refused(changes: dict[str, Any]) -> None:
    assert VersionRecord.from_payload(RECORD.to_payload(), "r") == RECORD
    forged = dataclasses.replace(RECORD, **changes)
    with pytest.raises(CorruptionError, match="not a version record"):
        VersionRecord.from_payload(forged.to_payload(), "r")


@pytest.mark.parametrize("crc", [1.0, -1, 2**32, "0x1", None])
def test_a_save_whose_parent_has_an_impossible_checksum_is_refused(crc: Any) -> None:
    names = {"kind": "delta", "name": "20240101/delta-2", "base": "20240101/base"}
    fields: dict[str, Any] = dict.fromkeys(_FIELDS, 1)
    fields |= {"segments": [], "deletions": [], "dense": {}, "files": {}}
    fields |= {**names, "layout": {"embedx_dim": 2}, "format": FORMAT}
    fields["created_at"] = "2024-01-01T00:00:00+00:00"
    fields["parent"] = {"name": names["base"], "crc32c": 7}
    fields["crc32c"] = checksum(fields)
    assert parse_meta(_text_of(fields), "m") == fields
    fields["parent"]["crc32c"] = crc
    fields["crc32c"] = checksum(fields)
    with pytest.raises(CorruptionError, match="crc32c of the parent is"):
        parse_meta(_text_of(fields), "m")


@pytest.mark.parametrize("path", ["/etc/passwd", "ssd/../x", "tables/../ssd/seg-000000000001.seg"])
def test_a_parity_set_names_only_files_of_a_store(path: str) -> None:
    assert checked.inside("tables/a/ssd/seg-000000000001.seg")
    with pytest.raises(ValueError, match="expected a"):
        checked.inside(path)


@pytest.mark.parametrize("where", ["/a/../..", "/a/20240101/..", "/a/b/c"])
def test_a_donefile_names_only_saves(where: str) -> None:
    line = f"20240101\t1\t/a/20240101/1/\t1\t0\n20240101\t1\t{where}/\t1\t0\n"
    with pytest.raises(CorruptionError, match="line 2"):
        donefile.parse(line.encode(), "batch", "donefile.txt")


def commit(store: Path, number: int) -> VersionRecord:
    with VersionStore.open_writer(store) as manifest:
        (store / "ssd" / "seg-000000000001.seg").write_bytes(b"abcd")
        record = (manifest.newest() or VersionRecord(0, 0, [], {}, 0)).following(
            "pass", pass_number=number, segments=[SEGMENT] if number == 1 else []
        )
        manifest.append(record)
        return record


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    commit(store, 1)
    commit(store, 2)
    (store / "ssd").rename(outside)
    with VersionStore.open_writer(store) as manifest:
        (store / "ssd").rmdir()
        (store / "ssd").symlink_to(outside)
        with pytest.raises(StoreError, match="cannot drop versions"):
            manifest.retention.prune(keep=1)
        with pytest.raises(StoreError, match="cannot remove unreferenced files"):
            manifest.retention.remove_unreferenced()
    assert (outside / "seg-000000000001.seg").exists()
    with pytest.raises(StoreError, match="ssd: expected a folder, found a link"):
        VersionStore.open_writer(store)


def test_restore_takes_the_highest_version_and_reads_no_link(tmp_path: Path) -> None:
    for number, created in ((1, "2099-01-01T00:00:00+00:00"), (2, "2024-01-01T00:00:00+00:00")):
        commit(tmp_path / "store", number)
        with VersionStore.open_reader(tmp_path / "store") as manifest:
            head = manifest.pin()
            assert head is not None
            copies.copy_version(str(tmp_path / "store"), head, str(tmp_path / "copy"))
        path = tmp_path / "copy" / "checkpoints" / copies.label_of(head)
        path.write_bytes(frame(dataclasses.replace(head, created_at=created).to_payload()))
        os.utime(path, (4e9 - number, 4e9 - number))  # the clock was ahead before version 2
    first = copies.label_of(RECORD)
    assert copies.restore(str(tmp_path / "copy"), tmp_path / "a").version == 2
    assert copies.restore(str(tmp_path / "copy"), tmp_path / "b", first).version == 1
    (data,) = (tmp_path / "copy" / "data").iterdir()
    data.rename(tmp_path / "secret")
    data.symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match="is a link to"):
        copies.restore(str(tmp_path / "copy"), tmp_path / "c", first)


def test_a_version_is_read_without_a_lease_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "store", 1)

    def refused(code: int) -> Any:
        def makedirs(*_: Any, **__: Any) -> None:
            raise OSError(code, os.strerror(code))

        return makedirs

    monkeypatch.setattr(os, "makedirs", refused(errno.EROFS))
    with VersionStore.open_reader(tmp_path / "store") as manifest:
        found = manifest.pin()
        assert found is not None
        assert found.version == 1
    assert held_leases(str(tmp_path / "store")) == []
    monkeypatch.setattr(os, "makedirs", refused(errno.EACCES))
    with (
        VersionStore.open_reader(tmp_path / "store") as manifest,
        pytest.raises(StoreError, match="needs write permission"),
    ):
        manifest.pin()


@pytest.mark.parametrize("count", [slow(40), long(2000)])
def test_mutated_files_are_read_as_they_were_or_refused(count: int) -> None:
    found = fuzz_files.run(1, count)
    assert sum(found.values()) == count
    assert sum(times for what, times in found.items() if what.endswith("refused")) > count // 2


def test_a_folder_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "kept")
    files.remove(str(tmp_path / "a"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
