"""Whatever is damaged in a store, reading it gives the right rows or an error that names the place;
never other rows, never the end of the process."""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import lmdb
import paddle
import pytest

from paddlebox import _native
from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import manifest_db
from paddlebox.store.rebuild import rebuild_from_files
from paddlebox.store.table import Table
from tests.faults import workload
from tests.support import processes
from tests.support.inside import head_of

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sound:
    folder: Path
    digest: str
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    paddle.disable_static()
    folder = tmp_path_factory.mktemp("sound") / "store"
    with workload.open_table(folder) as table:
        for number in range(1, 7):
            workload.train_pass(table, number)
        table.end_of_day(20006)
        table.compact()
        digest = table.digest()
    shutil.rmtree(folder / "leases")
    files = {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name not in ("LOCK", "lock.mdb")
    }
    return Sound(folder, digest, files)


@pytest.fixture
def store(sound: Sound, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound.folder, tmp_path / "store"))


def read(store: Path) -> str:
    """All of the newest version."""
    with Table(workload.CONFIG, folder=store, read_only=True) as table:
        table.load_dense()
        return table.digest()


def check(store: Path, sound: Sound, name: str, damaged: bytes | None) -> str:
    """Reads the store with one file damaged; returns the error, or "" where the rows are right."""
    path = store / name
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    try:
        assert read(store) == sound.digest, name
        return ""
    except (StoreError, ValueError) as error:
        return str(error)
    finally:
        path.write_bytes(sound.files[name])


def flipped(content: bytes, at: int, chance: random.Random) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << chance.randrange(8)
    return bytes(damaged)


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
            error = check(store, sound, name, flipped(content, at, chance))
            assert Path(name).name in error
            if page < blocks:
                assert f"block {page} at offset {page * 4096}" in error
    assert sum(len(sound.files[name]) // 4096 for name in names) >= 20


def test_files_that_are_torn_missing_or_swapped(sound: Sound, store: Path) -> None:
    names = segments(sound, store)
    for name in [*names, *(n for n in sound.files if n.startswith(("dense", "MANIFEST")))]:
        content = sound.files[name]
        for damaged in (content[:-1], content[: len(content) // 2], b"", content + b"\0", None):
            error = check(store, sound, name, damaged)
            # Files of versions before the newest are not read.
            if name in names:
                assert Path(name).name in error
    for first, second in itertools.pairwise(names):
        error = check(store, sound, first, sound.files[second])
        assert Path(first).name in error


def test_every_region_of_the_newest_manifest_file(
    sound: Sound, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_db, "_RETRY_SECONDS", 0.0)
    chance = random.Random(2)
    newest = max(n for n in sound.files if n.startswith("MANIFEST"))
    content = sound.files[newest]
    for at in range(0, len(content), 41):
        assert newest in check(store, sound, newest, flipped(content, at, chance))


def test_every_value_of_the_manifest(
    sound: Sound, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_db, "_RETRY_SECONDS", 0.0)
    chance = random.Random(3)
    path = store / "manifest"
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
                assert read(store) == sound.digest
            except CorruptionError as caught:
                error = str(caught)
            if key in (b"head", newest):
                assert "manifest" in error
            with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
                txn.put(key, value)
    assert read(store) == sound.digest


_CHILD = """
import sys
from pathlib import Path
from tests.faults.test_corruption import read
try:
    print(read(Path(sys.argv[1])))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_damaged_pages_of_lmdb_never_give_other_rows(sound: Sound, store: Path) -> None:
    # LMDB trusts its pages, so a child reads: it may fail, or even die, but not tell other rows.
    chance = random.Random(4)
    data = store / "manifest" / "data.mdb"
    content = data.read_bytes()
    for _ in range(6):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        data.write_bytes(damaged)
        told = processes.run(["-c", _CHILD, str(store)]).stdout.split()
        assert not told or told[-1] == sound.digest or told[-1].endswith("Error")
    rebuild_from_files(store)
    assert read(store) == sound.digest


@pytest.mark.parametrize("after", [0, 5000, 20000, 60000])
def test_a_full_disk_stops_the_commit_and_nothing_else(store: Path, after: int) -> None:
    paddle.disable_static()
    with workload.open_table(store) as table:
        workload.train_part(table, 7)
        before = table.head
        _native.core.inject_write_fault(after, 28)
        try:
            with pytest.raises(OutOfSpaceError, match=r"seg-.*no space to write"):
                while True:
                    table.commit(pass_number=7)
                    workload.train_part(table, 7)
        finally:
            _native.core.inject_write_fault(-1, 0)
        head = table.head
        assert head is not None
        assert before is not None
        assert head.version >= before.version
        table.commit(pass_number=7)  # there is room again
        assert head_of(table).version > head.version
        digest = table.digest()
    assert read(store) == digest
