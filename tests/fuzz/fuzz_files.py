"""Damaged and forged files of a store, a copy, a save, rank parity, the parsed cache and training
data: a reader returns what was written, or raises an error of ours, and touches nothing outside its
folder.

    python tests/fuzz/fuzz_files.py --count 2000 [--seed N]

Each file is mutated in one of two ways: some bytes change, or, in a record, a value becomes a
hostile one and the checksums are made right again. Each is read in a process of its own. With right
checksums, content may differ from what was written; nothing else may. Plain text has no checksums:
it is read as the same text compressed, and every line is an instance or a bad line.
"""

from __future__ import annotations

import argparse
import bz2
import gc
import gzip
import hashlib
import json
import logging
import lzma
import os
import random
import re
import resource
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlebox import ops
from paddlebox.config import Format, TableConfig
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import load
from paddlebox.errors import PaddleBoxError
from paddlebox.saves.meta import META, _text_of
from paddlebox.saves.reader import chain_of, open_save
from paddlebox.saves.saver import Saver
from paddlebox.store import copies, parity_set
from paddlebox.store.files import crc32c
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.parity_set import (
    ParitySet,
    RankFiles,
    SetFile,
    SetWriter,
    block_bytes,
    hex_crc,
)
from paddlebox.store.record import frame, unframe
from paddlebox.store.stamped import checksum
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.tiered_table import stored_table
from paddlebox.store.version_store import VersionStore
from tests.data.test_formats_columnar import contents
from tests.support.instances import SLOTS, multislot_lines
from tests.support.options import load_options

_CPU_S, _WALL_S = 20, 300  # for one file
_BUDGET = 1 << 30  # bytes of the feeder, and of the parsed cache
_TEXT = "".join(f"{line}\n" for line in multislot_lines(400)).encode()
_CSV = b"click,age,user,words\n" + b"".join(
    b"%d,0.5|%d,%d,%d|%d\n" % (n % 2, n, n * n + 1, n + 1, 7 * n + 2) for n in range(400)
)
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
_SAME, _OTHER, _REFUSED, _WRONG, _OUTSIDE = 0, 3, 4, 5, 6  # exit codes of a reading process
_HOSTILE: list[Any] = [
    "/etc/passwd", "../../outside", "..", "", "a\0b", "x" * 300, -1, 0, 2**31, 2**63, 2**64, 2**70,
    1.5, None, True, [], {}, [[]], "base", {"../../outside": {"bytes": 1, "crc32c": 1}}, "é", 1e308,
]  # fmt: skip


# ---- sound files


def make(root: Path) -> None:
    """A store of two passes, a copy, a chain of saves, sets of rank parity, a parsed cache, and
    text."""
    paddle.disable_static()
    config = TableConfig(embedx_dim=2, embedx_threshold=0.0)
    store = root / "store" / "store"
    table = Table(config, folder=store, mem_budget_bytes=1 << 20, compaction=None)
    with table:
        saver = Saver(table, root / "save")
        for number in (1, 2):
            feasigns = np.arange(number * 50, number * 50 + 100, dtype=np.uint64)
            table.begin(table.stage(sorted_unique_keys(feasigns), day=19000))
            grad = np.full((len(feasigns), 5), 0.25, np.float32)
            ops.push_box_sparse(paddle.to_tensor(feasigns.astype(np.int64)), paddle.to_tensor(grad))
            table.end(number)
            table.commit(pass_number=number, day=19000, dense={"w": np.arange(9.0)})
            (saver.delta if number > 1 else saver.base)()
    with VersionStore.open_reader(store) as manifest:
        record = manifest.newest()
    assert record is not None
    copies.copy_version(str(store), record, str(root / "copy"))
    _make_rank_parity(root / "rank_parity", store, parity_set.protected_files(str(store), record))
    _make_parsed(root / "parsed", root / "input")
    for suffix, compress in {"": lambda text: text, **_COMPRESS}.items():
        folder = root / f"text{suffix}"
        folder.mkdir()
        (folder / f"a{suffix}").write_bytes(compress(_TEXT))
        (folder / f"a.csv{suffix}").write_bytes(compress(_CSV))


def _make_parsed(folder: Path, file: Path) -> None:
    """The parsed cache of a file that stays as it is."""
    file.write_bytes(_TEXT)
    os.utime(file, (1e9, 1e9))  # the cache does not trust a file of just now
    (folder / "cache").mkdir(parents=True)
    (folder / "input").write_text(str(file))
    read_parsed(folder)


def _make_rank_parity(folder: Path, store: Path, sizes: dict[str, int]) -> None:
    content = b"".join((store / name).read_bytes() for name in sizes)
    size = block_bytes(2, len(content))
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    part = RankFiles(2, 2, tuple(sizes.items()), "".join(map(hex_crc, blocks)))
    whole = ParitySet(1, size, (), {0: part, 1: part})
    folder.mkdir()
    for name in sizes:
        path = folder / "000000000001" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store / name, path)
    with SetWriter(folder / "000000000001.set") as writer:
        for block in blocks:
            writer.append(block)
        writer.finish(0, whole)


# ---- readers: what they return covers the whole content


def read_store(folder: Path, version: int = -1) -> Any:
    with VersionStore.open_reader(folder / "store") as manifest:
        record = manifest.records()[version]
        manifest.pin(record.version)
    settings = {"read_only": True, "version": record.version}
    with stored_table(folder / "store", record, name="fuzz", **settings) as table:
        dense = {name: array.tobytes() for name, array in table.load_dense().items()}
        return table.digest(), dense


def repair_store(folder: Path) -> Any:
    rebuild_from_files(folder / "store")
    return read_store(folder)


def read_copy(folder: Path) -> Any:
    copies.copied_versions(str(folder))
    copies.restore(str(folder), folder.parent / "restored")
    return read_store(folder.parent / "restored")


def read_save(folder: Path) -> Any:
    digest = hashlib.sha256()
    for save in chain_of(open_save(folder / "20220108" / "delta-2")):
        for name, array in save.dense().items():
            digest.update(name.encode() + array.tobytes())
        for keys, rows in save.chunks():
            digest.update(keys.tobytes() + rows.tobytes())
        for deleted in save.deleted():
            digest.update(deleted.tobytes())
        for name in save.meta["files"]:
            digest.update(save.file(name))
    return digest.hexdigest()


def read_rank_parity(folder: Path) -> Any:
    with SetFile(folder / "000000000001.set") as one:
        one.check()
        return [one.row(number) for number in range(one.set.rows)]


def _loaded(file: Path, cache: ParsedCache | None = None, bad_ratio: float = 0.0) -> Any:
    """The lines of a file, those that are bad, and all instances."""
    form = Format.CSV if ".csv" in file.name else Format.MULTISLOT
    options = load_options(form, SLOTS, 16, threads=2, max_bad_line_ratio=bad_ratio, cache=cache)
    found = load([str(file)], options, _BUDGET)
    return found.lines, found.bad_lines, found.size, contents(found)


def read_parsed(folder: Path) -> Any:
    cache = ParsedCache(folder / "cache", _BUDGET)
    found = _loaded(Path((folder / "input").read_text()), cache)
    return cache.hits, found


def read_compressed(folder: Path) -> Any:
    return [_loaded(path) for path in sorted(folder.iterdir())]


def read_text(folder: Path) -> Any:
    """Whether any text is read as it is when compressed, and no line is lost."""
    for path in sorted(folder.iterdir()):
        packed = folder.with_name("packed") / f"{path.name}.gz"
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress(path.read_bytes()))
        both = [_outcome(path), _outcome(packed)]
        assert both[0] == both[1], f"{path}: {both}"
        if isinstance(both[0], tuple):
            lines, bad, size, _ = both[0]
            header = path.name.startswith("a.csv")
            assert lines == header + bad + size, f"{path}: {lines} lines, {bad} bad, {size} read"
    return True


def _outcome(file: Path) -> Any:
    try:
        return _loaded(file, bad_ratio=1.0)
    except PaddleBoxError as error:
        return type(error).__name__


READERS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("store", read_store, r"store/(MANIFEST-\d+|ssd/.*|dense/.*|manifest/data.(mdb|sha256))"),
    ("store", repair_store, r"store/(MANIFEST-\d+|ssd/.*|dense/.*)"),
    ("copy", read_copy, r"(data|checkpoints)/.*"),
    ("save", read_save, r".*/(meta\.json|seg-.*|dense/.*)"),
    ("rank_parity", read_rank_parity, r"[^/]*\.set|[^/]*/(ssd|dense)/.*"),
    ("parsed", read_parsed, r"cache/.*"),
    *((f"text{suffix}", read_compressed, ".*") for suffix in _COMPRESS),
    ("text", read_text, ".*"),
]


# ---- mutations


def damage(data: bytes, rng: random.Random) -> bytes:
    """Other bytes, as a disk or a torn write leaves them."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 4))):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(5)
        if what == 0:
            del out[at:]
        elif what == 1:
            out[at : at + 4096] = bytes(min(4096, len(out) - at))
        elif what == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 64))
        elif what == 3:
            del out[at : at + rng.randrange(1, 64)]
        elif at < len(out):
            out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def _replace(value: Any, rng: random.Random) -> Any:
    """The value with one hostile value, or name, at a random place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            name = str(rng.choice(_HOSTILE[:6]))
            return {name if k == key else k: v for k, v in value.items()}
        return {**value, key: _replace(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _replace(value[at], rng), *value[at + 1 :]]
    return rng.choice(_HOSTILE)


def forge(path: Path, data: bytes, rng: random.Random) -> bytes | None:
    """A record with a hostile value and right checksums; None if the file is no record."""
    if data.startswith(b"PBXMANIFEST "):
        payload = _replace(json.loads(unframe(data, "")), rng)
        return frame(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode())
    if path.name == META:
        fields = _replace(json.loads(data), rng)
        if not isinstance(fields, dict):
            return json.dumps(fields).encode()
        fields["crc32c"] = checksum(fields)
        return _text_of(fields) if "format" in fields else json.dumps(fields).encode()
    if path.suffix == ".set":
        size = int.from_bytes(data[-24:-16], "little")
        text = parity_set._json(_replace(json.loads(data[-24 - size : -24]), rng))
        head, version = len(text).to_bytes(8, "little"), data[-12:-8]
        crc = crc32c(text + head + version).to_bytes(4, "little")
        return data[: -24 - size] + text + head + crc + data[-12:]
    return None


def read_mutated(
    sound: Path, work: Path, rng: random.Random, expected: dict[Any, list[str]]
) -> str:
    """Mutates one file and reads all; returns what happened. Raises: AssertionError."""
    name, reader, pattern = rng.choice(READERS)
    folder = work / name
    shutil.copytree(sound / name, folder)
    (work / "outside").write_bytes(b"outside")
    inside = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    path = folder / rng.choice([p for p in inside if re.fullmatch(pattern, p)])
    data, forged = path.read_bytes(), None
    if rng.random() < 0.6:
        forged = forge(path, data, rng)
    if forged is not None or rng.random() < 0.95:
        path.write_bytes(forged if forged is not None else damage(data, rng))
    else:
        path.unlink()
        path.symlink_to(work / "outside")
    code = in_child(lambda: _read(reader, folder, expected[name, reader]))
    what = f"{reader.__name__}, {path.relative_to(work)}, {'forged' if forged else 'damaged'}"
    assert code in (_SAME, _OTHER, _REFUSED), f"{what}: exit code {code}"
    assert code != _OTHER or forged is not None, f"{what}: other content, and no error"
    known = {"outside", name, "restored", "packed"}
    assert {p.name for p in work.iterdir()} <= known, f"{what}: wrote outside its folder"
    assert (work / "outside").read_bytes() == b"outside", f"{what}: changed a file outside"
    return f"{name} {reader.__name__}: {['same', '', '', 'other', 'refused'][code]}"


def in_child(call: Callable[[], int]) -> int:
    """The exit code of a process that makes the call; below 0: the signal that ended it.

    This process runs no reader: its threads would be missing in the next child.
    """
    child = os.fork()
    if child == 0:
        gc.disable()
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))  # other processes may be busy
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_WALL_S)
        try:
            os._exit(call())
        except BaseException:
            traceback.print_exc()
            os._exit(_WRONG)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def digest_of(found: Any) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _read(reader: Callable[[Path], Any], folder: Path, expected: Any) -> int:
    try:
        return _SAME if digest_of(reader(folder)) in expected else _OTHER
    except PaddleBoxError:
        return _REFUSED


def make_and_read(root: Path) -> int:
    """Makes the sound files, and writes what readers may return: the digests of a reader."""
    make(root / "sound")
    expected = []
    for name, reader, _ in READERS:
        shutil.copytree(root / "sound" / name, root / "once" / name)
        found = [reader(root / "once" / name)]
        if reader is repair_store:  # it may take an older version
            with VersionStore.open_reader(root / "once" / name / "store") as manifest:
                older = range(len(manifest.numbers()) - 1)
            found += [read_store(root / "once" / name, n) for n in older]
        if reader is read_parsed:  # a damaged entry is not read, and the file is parsed again
            assert found[0][0] == 1, "the parsed cache was not read"
            found.append((0, found[0][1]))
        expected.append([digest_of(each) for each in found])
        shutil.rmtree(root / "once")
    (root / "expected.json").write_text(json.dumps(expected))
    return _SAME


def run(seed: int, count: int) -> Counter[str]:
    """Reads `count` mutated files. Raises: AssertionError that lists the seeds."""
    found: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        assert in_child(lambda: make_and_read(root)) == _SAME
        digests = json.loads((root / "expected.json").read_text())
        expected = {
            (name, reader): of for (name, reader, _), of in zip(READERS, digests, strict=True)
        }
        for number in range(count):
            work = root / "work"
            work.mkdir()
            try:
                found[
                    read_mutated(root / "sound", work, random.Random(seed + number), expected)
                ] += 1
            except AssertionError as error:
                wrong.append(f"--seed {seed + number} --count 1: {error}")
            finally:
                shutil.rmtree(work)
    assert not wrong, "\n".join(wrong)
    return found


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    logging.disable(logging.WARNING)
    for line, times in sorted(run(chosen.seed, chosen.count).items()):
        print(f"{times:6} {line}")
