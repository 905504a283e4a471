"""Whatever is damaged in a store, `verify` names the file with what was expected and found, and who
reads the store gets the right rows and dense state or such an error; never other values, never the
end of the process."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import paddle
import pytest

from paddlebox import _native
from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import manifest_db
from paddlebox.store.checkpoints import name_version
from paddlebox.store.manifest_db import DbChecksum, rebuild_from_files
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.verify import dense_damage, segment_damage, verify
from tests.faults import workload
from tests.support import processes
from tests.support.inside import head_of

ROOT = Path(__file__).resolve().parents[2]
NAMED = "kept"
# What a process writes for others while it lives. Nothing in them counts after its end.
OF_PROCESSES = ("LOCK", "manifest/lock.mdb")
_FEASIGNS = np.arange(1, 3200, dtype=np.uint64)  # the upper ones have no row
_ASKED = _FEASIGNS[np.argsort([_native.core.mix(int(feasign)) for feasign in _FEASIGNS])]


@dataclass(frozen=True)
class Sound:
    folder: Path
    content: dict[str, bytes]  # of `read`
    files: dict[str, bytes]
    needed: frozenset[str]  # by who reads the newest version


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """Of a store with merges, a day's end and a named version."""
    paddle.disable_static()
    folder = tmp_path_factory.mktemp("sound") / "store"
    with workload.open_table(folder) as table:
        for number in range(1, 6):
            workload.train_pass(table, number)
        table.life.end_of_day(20006)
        table.compact()
        workload.train_pass(table, 6)
    with Table(workload.CONFIG, folder=folder, read_only=True) as table:
        head = head_of(table)
    name_version(str(folder), head.version, NAMED)
    shutil.rmtree(folder / "leases")
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    segments = {f"ssd/{segment['file']}" for segment in head.segments}
    dense = {f"dense/{head.dense_version:012d}/{name}" for name in head.dense}
    manifest = {f"MANIFEST-{head.version:012d}", "manifest/data.mdb", "manifest/data.sha256"}
    inodes = {(folder / name).stat().st_ino for name in segments | dense | manifest}
    needed = frozenset(name for name in files if (folder / name).stat().st_ino in inodes)
    return Sound(folder, read(folder), files, needed)


@pytest.fixture
def store(sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(manifest_db, "_RETRY_SECONDS", 0.0)
    subprocess.run(["cp", "-a", str(sound.folder), str(tmp_path / "store")], check=True)
    return tmp_path / "store"


def read(store: Path) -> dict[str, bytes]:
    """All that the newest version holds: each row in the order of keys, each row again by its key,
    for which filters and fences are asked, and the dense state."""
    with workload.open_table(store, read_only=True) as table:
        return content_of(table)


def content_of(table: Table) -> dict[str, bytes]:
    feasigns, rows = table.read_all()
    found, looked_up = table.first.lookup(_ASKED)
    head = head_of(table)
    return {
        "position": f"{head.pass_number} {head.day} {head.cursor} {head.events}".encode(),
        "feasigns": feasigns.tobytes(),
        "rows": rows.tobytes(),
        "found": found.tobytes(),
        "looked up": looked_up[found].tobytes(),
        **{f"dense {name}": array.tobytes() for name, array in table.load_dense().items()},
    }


def check(store: Path, sound: Sound, name: str) -> str:
    """Reads a store in which one file is damaged; returns the error, or "" where all is right."""
    try:
        assert read(store) == sound.content, name
        return ""
    except StoreError as error:
        return str(error)


def check_with(store: Path, sound: Sound, name: str, damaged: bytes | None) -> str:
    """`check` with other contents of a file, or without the file."""
    path = store / name
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    try:
        return check(store, sound, name)
    finally:
        path.write_bytes(sound.files[name])


class Flipped:
    """A byte of a file that is another one inside the context."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self._path, self._chance = path, chance
        self._fd = os.open(path, os.O_RDWR)

    def at(self, offset: int) -> Flipped:
        self._at, self._was = offset, os.pread(self._fd, 1, offset)
        return self

    def __enter__(self) -> None:
        other = self._was[0] ^ self._chance.choice((255, 1 << self._chance.randrange(8)))
        os.pwrite(self._fd, bytes([other]), self._at)

    def __exit__(self, *_: object) -> None:
        os.pwrite(self._fd, self._was, self._at)

    def close(self) -> None:
        os.close(self._fd)


def flipped(content: bytes, at: int, chance: random.Random) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def kind_of(name: str) -> str:
    """Files of one kind have one format, and one check."""
    path = Path(name)
    if path.parts[0] == "checkpoints":
        return "a name's " + kind_of(str(Path(*path.parts[2:])))
    return "MANIFEST" if path.name.startswith("MANIFEST-") else path.suffix or path.name


def own_check(store: Path, name: str) -> Callable[[], list[str]]:
    """What `verify` does with one file: returns what it says of it. The records, which name the
    file, are read beforehand, so that not all of the store is read for each byte."""
    path, kind = store / name, kind_of(name).removeprefix("a name's ")
    with VersionStore.open_reader(store) as manifest:
        records = manifest.records()
    if kind == ".seg":
        segment = next(s for r in records for s in r.segments if s["file"] == path.name)
        return lambda: [damage.message for damage in segment_damage(path.parents[1], segment)]
    if kind in (".bin", ".json"):
        record = next(r for r in records if r.dense_version == int(path.parent.name))
        return lambda: [damage.message for damage in dense_damage(path.parents[2], record)]
    actions: dict[str, Callable[[], object]] = {
        "MANIFEST": lambda: VersionRecord.read(str(path)),
        ".mdb": DbChecksum(str(path.parent)).check,
        ".sha256": DbChecksum(str(path.parent)).check,
    }
    return lambda: _error_of(actions[kind])


def _error_of(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except StoreError as error:
        return [str(error)]
    return []


@dataclass(frozen=True)
class Strides:
    """Every how many bytes one is changed."""

    heads: int = 1  # of small files, of the ends of others, and of what each page begins with
    index: int = 1  # fences, filters, pages of LMDB
    rows: int = 1


def offsets(store: Path, name: str, strides: Strides) -> Iterator[int]:
    """The bytes of a file that are changed."""
    size, rows, page = (store / name).stat().st_size, 0, 4096
    if kind_of(name).endswith(".seg"):
        shape = _native.core.SegmentFile(str(store / name)).shape
        page = int(shape["block_bytes"])
        rows = int(shape["blocks"]) * page
    for at in range(size):
        is_head = size <= 4096 or at < 160 or at >= size - 512 or at % page < 16
        stride = strides.heads if is_head else strides.rows if at < rows else strides.index
        if at % stride == 0:
            yield at


def every_byte(sound: Sound, store: Path, strides: Strides) -> dict[str, int]:
    """Changes bytes of every file, one at a time; returns how many by kind."""
    chance, tried = random.Random(7), dict[str, int]()
    for name in sorted(sound.files.keys() - set(OF_PROCESSES)):
        own = own_check(store, name)
        assert own() == []
        byte = Flipped(store / name, chance)
        for at in offsets(store, name, strides):
            with byte.at(at):
                said = own()
            assert said, f"{name}: byte {at} was changed, and nothing noticed"
            assert all(Path(name).name in text or "block" in text for text in said), said
            assert all("expected" in text for text in said), said
            tried[kind_of(name)] = tried.get(kind_of(name), 0) + 1
        byte.close()
        assert own() == []
    return tried


KINDS = {
    ".seg", ".bin", ".json", "MANIFEST", ".mdb", ".sha256",
    "a name's MANIFEST", "a name's .seg", "a name's .bin", "a name's .json",
}  # fmt: skip


def test_a_changed_byte_of_any_file_is_named(sound: Sound, store: Path) -> None:
    assert every_byte(sound, store, Strides(97, 997, 4001)).keys() == KINDS


@pytest.mark.slow
def test_every_byte_of_heads_and_small_files_is_named(sound: Sound, store: Path) -> None:
    assert sum(every_byte(sound, store, Strides(1, 29, 301)).values()) > 10_000


@pytest.mark.long
def test_every_byte_of_any_file_is_named(sound: Sound, store: Path) -> None:
    size = sum(len(content) for name, content in sound.files.items() if name not in OF_PROCESSES)
    assert sum(every_byte(sound, store, Strides()).values()) == size


def use_what_is_damaged(sound: Sound, store: Path, tries: int) -> None:
    """Changes bytes of every file, and looks at the store as a whole and at all that it holds."""
    chance = random.Random(8)
    for name in sorted(sound.files):
        byte = Flipped(store / name, chance)
        for _ in range(tries if sound.files[name] else 0):
            with byte.at(chance.randrange(len(sound.files[name]))):
                error, damage = check(store, sound, name), verify(store).damage
            if name in sound.needed:
                assert Path(name).name in error
                assert "expected" in error
            else:
                assert error == ""
            where = [f"{one.file}: {one.message}" for one in damage]
            assert any(Path(name).name in text for text in where) or name in OF_PROCESSES, name
        byte.close()
    assert check(store, sound, "") == ""
    assert verify(store).damage == []


def test_what_is_damaged_is_never_used(sound: Sound, store: Path) -> None:
    use_what_is_damaged(sound, store, 1)


@pytest.mark.slow
def test_what_is_damaged_is_never_used_at_many_places(sound: Sound, store: Path) -> None:
    use_what_is_damaged(sound, store, 12)


def test_what_processes_leave_for_each_other_counts_for_nothing_later(
    sound: Sound, store: Path
) -> None:
    (store / "leases").mkdir(exist_ok=True)
    for damaged in (b"", b"\xff" * 100, b"%020d\n" % 1):
        for name in (*OF_PROCESSES, "leases/123-0123456789abcdef"):
            (store / name).write_bytes(damaged)
        with workload.open_table(store) as table:
            assert content_of(table) == sound.content


def test_a_writer_does_not_bless_what_was_damaged_since_it_opened_the_store(store: Path) -> None:
    with workload.open_table(store) as table:
        data = store / "manifest" / "data.mdb"
        byte = Flipped(data, random.Random(9))
        with byte.at(data.stat().st_size - 1), pytest.raises(CorruptionError, match=r"data\.mdb: "):
            workload.train_pass(table, 9)
            table.load_dense()
            table.digest()
        byte.close()


def test_a_store_whose_last_transaction_has_no_checksum_opens(sound: Sound, store: Path) -> None:
    checksum = DbChecksum(str(store / "manifest"))
    with pytest.raises(ZeroDivisionError), checksum.transaction():
        raise ZeroDivisionError  # the power fails
    assert read(store) == sound.content
    with workload.open_table(store) as table:
        workload.train_pass(table, 9)
    data = bytearray((store / "manifest/data.mdb").read_bytes())
    data[-1] ^= 1
    (store / "manifest/data.mdb").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"data\.mdb: expected \d+ bytes with SHA-256"):
        read(store)


def segments(sound: Sound, store: Path) -> list[str]:
    with Table(workload.CONFIG, folder=store, read_only=True) as table:
        assert table.head is not None
        return [f"ssd/{s['file']}" for s in table.head.segments]


def test_every_block_of_every_segment(sound: Sound, store: Path) -> None:
    chance = random.Random(1)
    names = segments(sound, store)
    for name in names:
        content = sound.files[name]
        blocks = int(_native.core.SegmentFile(str(store / name)).shape["blocks"])
        for page in range(len(content) // 4096):
            at = page * 4096 + chance.randrange(4096)
            error = check_with(store, sound, name, flipped(content, at, chance))
            assert Path(name).name in error
            if page < blocks:
                assert f"block {page} at offset {page * 4096}" in error
    assert sum(len(sound.files[name]) // 4096 for name in names) >= 20


def test_files_that_are_torn_missing_or_swapped(sound: Sound, store: Path) -> None:
    # Those in checkpoints/ are links to the others.
    for name in [n for n in sound.files if n not in OF_PROCESSES and not n.startswith("check")]:
        content = sound.files[name]
        torn: list[bytes | None] = [
            content[:-1],
            content[: len(content) // 2],
            b"",
            content + b"\0",
        ]
        if not name.endswith(".sha256"):  # without it, the next commit writes it
            torn.append(None)
        for damaged in torn:
            error = check_with(store, sound, name, damaged)
            assert (Path(name).name in error) if name in sound.needed else not error, name
    for first, second in itertools.pairwise(segments(sound, store)):
        error = check_with(store, sound, first, sound.files[second])
        assert Path(first).name in error


def test_every_value_of_a_manifest_without_a_checksum(sound: Sound, store: Path) -> None:
    chance = random.Random(3)
    path = store / "manifest"
    (path / "data.sha256").unlink()
    with lmdb.open(str(path)) as env, env.begin() as txn:
        values = {bytes(key): bytes(value) for key, value in txn.cursor()}
    assert len(values) > 6
    newest = b"version/" + max(key for key in values if key.startswith(b"version/"))[8:]
    for key, value in values.items():
        others = [other for name, other in values.items() if name != key]
        # Bits flipped all over, the value of another key, none at all, an empty one.
        changes: list[bytes | None] = [
            flipped(value, at, chance) for at in range(0, len(value), max(1, len(value) // 12))
        ]
        for damaged in [*changes, chance.choice(others), None, b"", value[:-1]]:
            with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
                txn.delete(key)
                if damaged is not None:
                    txn.put(key, damaged)
            error = ""
            try:
                assert read(store) == sound.content
            except CorruptionError as caught:
                error = str(caught)
            if key in (b"head", newest):
                assert "manifest" in error
            with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
                txn.put(key, value)
    assert read(store) == sound.content


_CHILD = """
import sys
from pathlib import Path
from tests.faults.test_corruption import digest_of, read
try:
    print(digest_of(read(Path(sys.argv[1]))))
except Exception as error:
    print(type(error).__name__)
"""


def digest_of(content: dict[str, bytes]) -> str:
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()


@pytest.mark.slow
def test_damaged_pages_of_lmdb_without_a_checksum_never_give_other_rows(
    sound: Sound, store: Path
) -> None:
    # LMDB trusts its pages, so a child reads: it may fail, or even die, but not tell other rows.
    (store / "manifest" / "data.sha256").unlink()
    chance = random.Random(4)
    data = store / "manifest" / "data.mdb"
    content = data.read_bytes()
    for _ in range(6):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        data.write_bytes(damaged)
        told = processes.run(["-c", _CHILD, str(store)]).stdout.split()
        right = digest_of(sound.content)
        assert not told or told[-1] == right or told[-1].endswith("Error")
    rebuild_from_files(store)
    assert read(store) == sound.content


@pytest.mark.parametrize("after", [0, 5000, 20000, 60000])
def test_a_full_disk_stops_the_commit_and_nothing_else(store: Path, after: int) -> None:
    paddle.disable_static()
    with workload.open_table(store) as table:
        workload.train_part(table, 7)
        before = table.head
        _native.core.inject_write_fault(after, 28)
        has_pass = True
        try:
            with pytest.raises(OutOfSpaceError, match=r"seg-.*no space to write"):
                while True:
                    table.commit(pass_number=7)
                    has_pass = False
                    workload.train_part(table, 7)
                    has_pass = True
        finally:
            _native.core.inject_write_fault(-1, 0)
        head = table.head
        assert head is not None
        assert before is not None
        assert head.version >= before.version
        # There is room again. If a merge met the full disk first, the next pass did not begin.
        if not has_pass:
            workload.train_part(table, 7)
        table.commit(pass_number=7)
        assert head_of(table).version > head.version
        content = content_of(table)
    assert read(store) == content
