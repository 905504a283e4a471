"""The manifest's promises: one writer, all or nothing, damage is found, readers change nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError, StoreLockedError
from paddlebox.store import files, manifest_db
from paddlebox.store.files import crc32c, crc32c_by_table, seal, unseal
from paddlebox.store.locks import held_leases
from paddlebox.store.manifest_db import head_payload, rebuild_from_files
from paddlebox.store.record import VersionRecord, frame, unframe, unreferenced
from paddlebox.store.version_store import VersionStore
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]


def add_segment(store: Path, number: int, size: int = 100) -> dict[str, Any]:
    name = f"seg-{number:012d}.seg"
    (store / "ssd" / name).write_bytes(b"s" * size)
    return {
        "id": number,
        "sequence": number,
        "file": name,
        "rows": 5,
        "min_key": 1,
        "max_key": 2**64 - 1,
        "bytes": size,
        "footer_crc": 2**32 - 1,
        "stamp": "0123456789abcdef",
    }


def make_record(store: Path, version: int, segments: list[dict[str, Any]]) -> VersionRecord:
    dense = store / "dense" / f"{version:012d}"
    dense.mkdir(exist_ok=True)
    (dense / "dnn.npz").write_bytes(b"d" * version)
    return VersionRecord(
        version=version,
        parent=version - 1,
        segments=segments,
        layout={"row_bytes": 80, "embedx": 8},
        day=20240101,
        pass_number=version,
        cursor={"file": "part-0", "offset": 17},
        dense={"dnn.npz": {"bytes": version, "crc32c": 5}},
        dense_version=version,
        config_hash="abc",
    )


def commit_versions(store: Path, manifest: VersionStore, count: int) -> list[VersionRecord]:
    head = manifest.newest()
    records = []
    start = head.version if head else 0
    segments = list(head.segments) if head else []
    for version in range(start + 1, start + count + 1):
        segments = [*segments, add_segment(store, version)]
        record = make_record(store, version, segments)
        manifest.append(record)
        records.append(record)
    return records


def snapshot(store: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(store)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def run_child(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def set_byte(path: Path, at: int, change: Callable[[int], int]) -> None:
    data = bytearray(path.read_bytes())
    data[at] = change(data[at])
    path.write_bytes(data)


def test_committed_versions_come_back_after_reopening(tmp_path: Path) -> None:
    store = tmp_path / "a" / "b"  # made with the folders above it
    with VersionStore.open_writer(store) as manifest:
        assert manifest.newest() is None
        records = commit_versions(store, manifest, 3)
        assert manifest.newest() == records[-1]
    with VersionStore.open_writer(store) as manifest:
        assert manifest.newest() == records[-1]
        assert manifest.numbers() == [1, 2, 3]
        assert manifest.version(2) == records[1]
        with pytest.raises(StoreError, match=r"version 9 is not kept; kept are \[1, 2, 3\]"):
            manifest.version(9)


def test_a_reader_changes_no_byte_and_follows_the_writer(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 2)
    before = snapshot(tmp_path)
    with VersionStore.open_reader(tmp_path) as reader:
        head = reader.newest()
        assert head is not None
        assert head.version == 2
        reader.version(1)
        for write in (
            lambda: reader.append(head),
            reader.retention.prune,
            reader.retention.remove_unreferenced,
        ):
            with pytest.raises(StoreError, match="opened for reading"):
                write()
    assert snapshot(tmp_path) == before


@pytest.mark.slow
def test_a_reader_beside_a_committing_and_pruning_writer_never_fails(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path[:0] = ["tests/store"]
from test_manifest import commit_versions
from paddlebox.store.version_store import VersionStore
store = Path(sys.argv[1])
with VersionStore.open_writer(store) as manifest:
    commit_versions(store, manifest, 2)
    print("ready", flush=True)
    for _ in range(100):
        commit_versions(store, manifest, 1)
        manifest.retention.prune()
"""
    child = run_child(code, str(tmp_path))
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    seen = []
    with VersionStore.open_reader(tmp_path) as reader:
        while child.poll() is None:
            head = reader.newest()
            assert head is not None
            seen.append(head.version)
            time.sleep(0.001)
        head = reader.newest()
    assert child.wait() == 0
    assert head is not None
    assert head.version == 102
    assert seen == sorted(seen)


def test_reading_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store here"):
        VersionStore.open_reader(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    code = """
import sys
from paddlebox.store.version_store import VersionStore
manifest = VersionStore.open_writer(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""
    child = run_child(code, str(tmp_path))
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with pytest.raises(StoreLockedError, match=f"process {child.pid} on "):
        VersionStore.open_writer(tmp_path)
    with pytest.raises(StoreLockedError):
        rebuild_from_files(tmp_path)
    VersionStore.open_reader(tmp_path).close()
    child.kill()
    child.communicate()
    VersionStore.open_writer(tmp_path).close()  # the lock died with its process


def test_a_forked_child_neither_uses_the_manifest_nor_keeps_its_lock(tmp_path: Path) -> None:
    code = """
import os, sys, time
from paddlebox.errors import StoreError
from paddlebox.store.version_store import VersionStore
def say(line):  # in one piece: print may write its newline apart
    os.write(1, f"{line}\\n".encode())
manifest = VersionStore.open_writer(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        manifest.newest()
    except StoreError as error:
        say(error)
    manifest.close()
    with VersionStore.open_reader(sys.argv[1]):
        say("opened again")
    time.sleep(60)
say(child)
sys.stdin.read()
"""
    parent = run_child(code, str(tmp_path))
    assert parent.stdout is not None
    lines = [parent.stdout.readline() for _ in range(3)]
    numbers = [int(line) for line in lines if line.strip().isdigit()]
    assert numbers, lines
    child = numbers[0]
    try:
        assert any("may not be used in its child" in line for line in lines)
        assert "opened again\n" in lines
        parent.kill()
        parent.wait()
        VersionStore.open_writer(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_one_process_opens_a_store_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with VersionStore.open_writer(tmp_path / "store") as manifest:
        for open_again in (VersionStore.open_writer, VersionStore.open_reader):
            with pytest.raises(StoreError, match="open in this process already"):
                open_again(tmp_path / "link")
        assert manifest.newest() is None
    with pytest.raises(StoreError, match="is closed"):
        manifest.newest()
    VersionStore.open_reader(tmp_path / "link").close()


def test_killed_between_the_file_and_the_transaction_the_store_opens_at_the_last_commit(
    tmp_path: Path,
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = ["tests/store"]
from test_manifest import commit_versions
from paddlebox.store.version_store import VersionStore
store = Path(sys.argv[1])
manifest = VersionStore.open_writer(store)
commit_versions(store, manifest, int(sys.argv[2]))
manifest._db.put = lambda pairs: os.kill(os.getpid(), signal.SIGKILL)
commit_versions(store, manifest, 1)
"""
    for committed in (0, 2):
        store = tmp_path / str(committed)
        child = run_child(code, str(store), str(committed))
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        leftovers = [
            f"MANIFEST-{committed + 1:012d}",
            f"dense/{committed + 1:012d}/dnn.npz",
            f"ssd/seg-{committed + 1:012d}.seg",
        ]
        assert (store / leftovers[0]).exists()
        with VersionStore.open_writer(store) as manifest:
            head = manifest.newest()
            assert (head.version if head else 0) == committed
            assert unreferenced(manifest.folder, manifest.records()) == leftovers
            assert manifest.retention.remove_unreferenced() == leftovers
            assert unreferenced(manifest.folder, manifest.records()) == []
            commit_versions(store, manifest, 1)
            head = manifest.newest()
            assert head is not None
            assert head.version == committed + 1


def test_unreferenced_files_go_and_referenced_ones_stay(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 2)
        before = snapshot(tmp_path)
        extra = [
            "MANIFEST-000000000003.tmp",
            "dense/000000000002/other.npz",
            "dense/000000000009/dnn.npz",
            "ssd/seg-000000000009.seg",
            "ssd/seg-000000000010.seg.tmp",
        ]
        for name in extra:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        assert manifest.retention.remove_unreferenced() == extra
        assert snapshot(tmp_path) == before
        assert not (tmp_path / "dense/000000000009").exists()


def test_prune_drops_old_versions_with_their_files(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 5)
        assert manifest.retention.prune(keep=2) == [1, 2, 3]
        assert manifest.retention.prune(keep=2) == []
        assert manifest.numbers() == [4, 5]
        assert files.manifest_versions(str(tmp_path)) == [4, 5]
        assert sorted(os.listdir(tmp_path / "dense")) == ["000000000004", "000000000005"]
        assert len(os.listdir(tmp_path / "ssd")) == 5  # the kept versions name them all
        with pytest.raises(ValueError, match="keep=0"):
            manifest.retention.prune(keep=0)


def test_a_pass_is_kept_by_what_life_made_after_it(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        for _ in range(3):  # versions 1 and 2 of a pass, 3 and 4 of the next
            (made,) = commit_versions(tmp_path, manifest, 1)
            manifest.append(made.following("life"))
            manifest.retention.prune(keep=9)
        assert manifest.numbers() == [2, 4, 6]


def test_compactions_keep_no_version_of_their_own(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        records = commit_versions(tmp_path, manifest, 3)
        merged = records[-1].following("compaction", segments=[add_segment(tmp_path, 9)])
        manifest.append(merged)
        manifest.append(merged.following("compaction"))
        # The newest version of each of the newest two passes.
        assert manifest.retention.prune(keep=2) == [1, 3, 4]
        assert manifest.numbers() == [2, 5]
        # Segment 3 was of version 3 alone; dense/3 is still the dense state of version 5.
        assert not (tmp_path / "ssd/seg-000000000003.seg").exists()
        assert (tmp_path / "ssd/seg-000000000001.seg").exists()
        assert sorted(os.listdir(tmp_path / "dense")) == ["000000000002", "000000000003"]
        kinds = [entry["kind"] for entry in manifest.journal()]
        assert kinds == ["pass", "pass", "pass", "compaction", "compaction"]


def test_a_value_that_was_lost_or_swapped_is_corruption(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        records = commit_versions(tmp_path, manifest, 3)
        manifest._db.put([(b"version/000000000002", None)])
        with pytest.raises(CorruptionError, match=r"holds .*\[1, 3\].*names \[1, 2, 3\]"):
            manifest.numbers()
        manifest._db.put([(b"version/000000000002", records[0].to_payload())])
        with pytest.raises(CorruptionError, match="is not the one that 'head' names"):
            manifest.version(2)


_READER = """
import sys, time
from paddlebox.store.version_store import VersionStore
with VersionStore.open_reader(sys.argv[1]) as manifest:
    record = manifest.pin()
    print(record.version, flush=True)
    sys.stdin.readline()
    import os
    missing = [s["file"] for s in record.segments
               if not os.path.exists(os.path.join(sys.argv[1], "ssd", s["file"]))]
    print(missing, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_reader_keeps_its_version_until_it_goes(tmp_path: Path, killed: bool) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 2)
        reader = run_child(_READER, str(tmp_path))
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "2\n"
        assert [(lease.pid, lease.version) for lease in held_leases(manifest.folder)] == [
            (reader.pid, 2)
        ]
        for _ in range(20):
            head = manifest.newest()
            assert head is not None
            number = head.version + 1
            record = make_record(tmp_path, number, [add_segment(tmp_path, number)])
            manifest.append(record)
            manifest.retention.prune(keep=1)
        assert manifest.numbers() == [2, 22]
        print(file=reader.stdin, flush=True)
        assert reader.stdout.readline() == "[]\n"
        if killed:
            reader.kill()
        else:
            print(file=reader.stdin, flush=True)
        reader.wait()
        assert manifest.retention.prune(keep=1) == [2]
        assert held_leases(manifest.folder) == []
        assert os.listdir(tmp_path / "leases") == []
        assert sorted(os.listdir(tmp_path / "ssd")) == ["seg-000000000022.seg"]


def test_a_commit_out_of_order_or_of_absent_files_is_refused(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 1)
        before = snapshot(tmp_path)
        for version, parent in ((3, 2), (3, 1), (2, 0), (1, 1), (1, 0)):
            refused = f"commit of version {version} after {parent}, expected 2 after 1"
            with pytest.raises(StoreError, match=refused):
                manifest.append(VersionRecord(version, parent, [], {}, 0))
        segment = {"file": "seg-000000000077.seg", "bytes": 100}
        with pytest.raises(StoreError, match=r"seg-000000000077.seg, which is missing"):
            manifest.append(VersionRecord(2, 1, [segment], {}, 0))
        segment = {"file": "seg-000000000001.seg", "bytes": 99}
        with pytest.raises(StoreError, match="of 99 bytes, found 100"):
            manifest.append(VersionRecord(2, 1, [segment], {}, 0))
        with pytest.raises(StoreError, match="not JSON"):
            manifest.append(VersionRecord(2, 1, [], {}, 0, cursor={"x": float("nan")}))
        assert snapshot(tmp_path) == before


def test_a_full_disk_leaves_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 1)
        segments = [add_segment(tmp_path, 1), add_segment(tmp_path, 2)]
        record = make_record(tmp_path, 2, segments)
        before = snapshot(tmp_path)

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OutOfSpaceError, match="MANIFEST-000000000002"):
                manifest.append(record)
        assert snapshot(tmp_path) == before
        head = manifest.newest()
        assert head is not None
        assert head.version == 1
        manifest.append(record)
    with VersionStore.open_reader(tmp_path) as reader:
        assert reader.newest() == record


def test_the_map_grows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_db, "_MAP_BYTES", 64 << 10)
    with VersionStore.open_writer(tmp_path) as manifest:
        big = VersionRecord(1, 0, [], {}, 0, cursor={"text": "x" * 500_000})
        manifest.append(big)
        assert manifest.newest() == big
    with VersionStore.open_reader(tmp_path) as reader:
        assert reader.newest() == big


def test_threads_may_share_a_manifest(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 1)
        errors: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    assert manifest.newest() is not None
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            commit_versions(tmp_path, manifest, 1)
            manifest.retention.prune()
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []


def test_a_changed_byte_of_the_manifest_file_is_corruption(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 1)
        path = tmp_path / "MANIFEST-000000000001"
        sound = path.read_bytes()
        for at in [*range(60), *range(60, len(sound), 7)]:
            set_byte(path, at, lambda byte: byte ^ (1 << (at % 8)))  # noqa: B023
            with pytest.raises(CorruptionError, match=r"MANIFEST-000000000001.*rebuild_from_files"):
                manifest.newest()
        for damaged in (sound[:-1], sound + b"x", b"", sound[:20]):
            path.write_bytes(damaged)
            with pytest.raises(CorruptionError):
                manifest.newest()
        path.unlink()
        with pytest.raises(CorruptionError, match=r"is missing.*rebuild_from_files"):
            manifest.newest()
        path.write_bytes(sound)
        manifest.newest()


def test_a_changed_byte_of_an_lmdb_value_is_corruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_db, "_RETRY_SECONDS", 0.0)
    with VersionStore.open_writer(tmp_path) as manifest:
        record = commit_versions(tmp_path, manifest, 1)[0]
    data = tmp_path / "manifest" / "data.mdb"
    (tmp_path / "manifest" / "data.sha256").unlink()  # so that LMDB opens the file
    sound = data.read_bytes()
    head = head_payload(1, {1: crc32c(record.to_payload())})
    for value in (seal(record.to_payload()), seal(head)):
        at = sound.rfind(value)  # its live copy
        assert at >= 0
        for offset in [*range(min(12, len(value))), *range(12, len(value), 31)]:
            set_byte(data, at + offset, lambda byte: byte ^ 16)
            for opener in (VersionStore.open_reader, VersionStore.open_writer):
                with pytest.raises(CorruptionError, match=r"has CRC32C.*rebuild_from_files"):
                    opener(tmp_path)
            data.write_bytes(sound)
    VersionStore.open_writer(tmp_path).close()


@pytest.mark.parametrize("damage", ["value", "whole file", "folder gone", "emptied"])
def test_the_manifest_is_rebuilt_from_its_files(tmp_path: Path, damage: str) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        records = commit_versions(tmp_path, manifest, 3)
    data = tmp_path / "manifest" / "data.mdb"
    if damage == "value":
        crcs = {record.version: crc32c(record.to_payload()) for record in records}
        set_byte(data, data.read_bytes().rfind(seal(head_payload(3, crcs))), lambda byte: byte ^ 1)
    elif damage == "whole file":
        data.write_bytes(b"\xff" * data.stat().st_size)
    elif damage == "emptied":
        data.write_bytes(b"")
    else:
        data.unlink()
    for opener in (VersionStore.open_reader, VersionStore.open_writer):
        with pytest.raises(CorruptionError, match="rebuild_from_files"):
            opener(tmp_path)
    assert rebuild_from_files(tmp_path) == records[-1]
    with VersionStore.open_writer(tmp_path) as manifest:
        assert manifest.numbers() == [1, 2, 3]
        assert manifest.version(2) == records[1]
        commit_versions(tmp_path, manifest, 1)


def test_rebuilding_takes_the_newest_version_that_is_whole(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        records = commit_versions(tmp_path, manifest, 3)
    (tmp_path / "ssd" / "seg-000000000003.seg").write_bytes(b"short")
    assert rebuild_from_files(tmp_path) == records[1]
    (tmp_path / "ssd" / "seg-000000000001.seg").unlink()
    with pytest.raises(CorruptionError, match="no whole version"):
        rebuild_from_files(tmp_path)


def test_rebuilding_saves_a_newest_version_whose_file_is_damaged(tmp_path: Path) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        records = commit_versions(tmp_path, manifest, 2)
    set_byte(tmp_path / "MANIFEST-000000000002", 80, lambda byte: byte ^ 1)
    with pytest.raises(CorruptionError, match="MANIFEST-000000000002"):
        VersionStore.open_reader(tmp_path)
    assert rebuild_from_files(tmp_path) == records[1]
    with VersionStore.open_writer(tmp_path) as manifest:
        assert manifest.newest() == records[1]


def test_another_format_is_not_reported_as_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has format 1, expected 2: open the store with") as raised:
        unframe(frame(b"something else", 1), "x")
    assert not isinstance(raised.value, CorruptionError)
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 1)
        payload = b'{"format":3,"new":1}'
        (tmp_path / "MANIFEST-000000000001").write_bytes(frame(payload))
        head = head_payload(1, {1: crc32c(payload)})
        manifest._db.put([(b"version/000000000001", payload), (b"head", head)])
        with pytest.raises(StoreError, match="has format 3, expected 2") as raised:
            manifest.newest()
        assert not isinstance(raised.value, CorruptionError)


def test_the_bytes_are_those_of_the_format_page() -> None:
    assert crc32c_by_table(b"123456789") == 0xE3069283
    payload = b'{"version":1}'
    page = (ROOT / "docs/formats/manifest.md").read_text()
    line, _, rest = frame(payload).partition(b"\n")
    assert line.rpartition(b" ")[0] == b"PBXMANIFEST 2 13"
    assert f"`{line.rpartition(b' ')[2].decode()}`" in page
    assert rest == payload
    assert seal(b"123456789") == b"\x83\x92\x06\xe3123456789"
    assert unseal(seal(b""), "x") == b""
    with pytest.raises(CorruptionError):
        unseal(b"\x00\x00", "x")


@pytest.mark.parametrize("torn", [b"", b"\0" * 8192, b"\xde" * 100])
def test_a_store_whose_creation_was_cut_short_is_created_again(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "data.mdb").write_bytes(torn)
    with VersionStore.open_writer(tmp_path) as manifest:
        assert manifest.newest() is None
    (tmp_path / "manifest" / "data.mdb").write_bytes(b"\0" * 8192)
    (tmp_path / "ssd" / "seg-000000000001.seg").write_bytes(b"rows")
    with pytest.raises(CorruptionError):
        VersionStore.open_writer(tmp_path)
    assert (tmp_path / "ssd" / "seg-000000000001.seg").exists()


CUT = """
import os, sys
import paddlebox._native
from paddlebox.errors import CorruptionError
from paddlebox.store.manifest_db import ManifestDb

db = ManifestDb(sys.argv[1], writable=False)
os.truncate(os.path.join(sys.argv[1], "manifest", "data.mdb"), 8192)
try:
    db.read(lambda values: values.keys(b""))
except CorruptionError as error:
    print(error)
"""


def test_a_manifest_that_is_cut_short_while_it_is_open_is_an_error_and_no_signal(
    tmp_path: Path,
) -> None:
    with VersionStore.open_writer(tmp_path) as manifest:
        commit_versions(tmp_path, manifest, 3)
    done = processes.run(["-c", CUT, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert "rebuild_from_files" in done.stdout


def test_versions_are_read_before_paddle_is_imported() -> None:
    """A run reads its store before it chooses the settings that Paddle reads at its import."""
    program = "import sys, paddlebox.store.version_store; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
