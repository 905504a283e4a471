"""Where files come from: folders, globs, URIs with retries; compressed, changing, or gone."""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import os
import random
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from paddlebox.config import Format
from paddlebox.data.listing import expand
from paddlebox.data.loader import load
from paddlebox.data.reader import read_chunks
from paddlebox.errors import DataError
from paddlebox.store import remote as file_systems
from tests.data.test_hostile_folder import CRITEO_SLOTS
from tests.support.instances import SLOTS
from tests.support.options import load_options

LINES = b"".join(b"1 1 2 0.5 1.5 1 %d 2 %d 4\n" % (i + 1, i * 7919 % 65521) for i in range(20000))


def text_of(path: object, **options: Any) -> bytes:
    return b"".join(chunk.data for chunk in read_chunks(str(path), **options))


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data).to_pybytes()


# ---- compression


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        gzip.compress(LINES),
        gzip.compress(LINES[:999]) + gzip.compress(LINES[999:]),
        gzip.compress(LINES) + b"\0" * 1000,
        zstd(LINES),
        zstd(LINES[:999]) + zstd(LINES[999:]),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstd(LINES),
        bz2.compress(LINES),
        bz2.compress(LINES[:999], 1) + bz2.compress(b"") + bz2.compress(LINES[999:]) + b"\0" * 9,
        lzma.compress(LINES),
        lzma.compress(LINES[:999]) + b"\0" * 4 + lzma.compress(LINES[999:]) + b"\0" * 8,
        b"\xef\xbb\xbf" + LINES,
        gzip.compress(b"\xef\xbb\xbf" + LINES),
    ],
    ids=[
        "plain",
        "gzip",
        "gzip members",
        "gzip padded",
        "zstd",
        "zstd frames",
        "zstd skip frame",
        "bz2",
        "bz2 members",
        "xz",
        "xz members",
        "BOM",
        "BOM in gzip",
    ],
)
def test_compression_is_told_by_content_and_gives_the_same_lines(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(content)
    assert text_of(path) == LINES
    assert text_of(path, chunk_bytes=1000) == LINES


def flipped(data: bytes) -> bytes:
    return (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0xFF]) + data[len(data) // 2 + 1 :]
    )


@pytest.mark.parametrize(
    ("content", "codec"),
    [
        (gzip.compress(LINES)[:20000], "gzip"),
        (gzip.compress(LINES)[:-3], "gzip"),
        (flipped(gzip.compress(LINES)), "gzip"),
        (gzip.compress(LINES) + b"more", "gzip"),
        (gzip.compress(LINES)[:2], "gzip"),
        (zstd(LINES)[:20000], "zstd"),
        (zstd(LINES) + b"more", "zstd"),
        *(
            (content, codec)
            for codec, packed in (("bz2", bz2.compress(LINES)), ("xz", lzma.compress(LINES)))
            for content in (
                packed[:9000],
                packed[:-3],
                flipped(packed),
                packed + b"more",
                packed + packed[:20],
            )
        ),
    ],
)
def test_a_damaged_stream_names_the_file_and_the_offset(
    tmp_path: Path, content: bytes, codec: str
) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(content)
    expected = rf"a\.dat: damaged {codec} stream, at or before byte \d+ of {len(content)}, after"
    with pytest.raises(DataError, match=expected):
        text_of(path)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_mutated_stream_is_an_error_or_has_the_same_lines(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    rng, lines = random.Random(11), LINES[:3000]
    packed = pack(lines[:1000]) + pack(lines[1000:])
    for _ in range(40):
        content = bytearray(packed)
        for at in rng.sample(range(10, len(content)), rng.randrange(3)):  # magic bytes stay
            content[at] ^= rng.randrange(1, 256)
        del content[rng.randrange(10, 2 * len(content)) :]
        (tmp_path / "a.dat").write_bytes(content)
        found, said = lines, "damaged"
        try:
            found = text_of(tmp_path / "a.dat", chunk_bytes=rng.choice([1000, 1 << 20]))
        except DataError as error:
            said = str(error)
        # The same lines: a flipped bit in the time of a header, for example.
        assert found == lines
        assert "damaged" in said


def tarred(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.csv")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", data)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"click": [1]}), file)
    return file.getvalue()


CONTAINERS = {
    "a zip archive": ("a.dat", zipped(LINES)),
    "a 7z archive": ("a.dat", b"7z\xbc\xaf\x27\x1c\0\4" + bytes(30)),
    "a tar archive": ("a.dat", tarred(LINES)),
    "a tar archive of gzip": ("a.dat", gzip.compress(tarred(LINES))),
    "a gzip stream of bz2": ("a.dat", bz2.compress(gzip.compress(LINES))),
    "a bz2 stream of xz": ("a.dat", lzma.compress(bz2.compress(LINES))),
    "a zip archive of zstd": ("a.dat", zstd(zipped(LINES))),
    "an lz4 stream": ("a.dat", pa.Codec("lz4").compress(LINES).to_pybytes()),
    "a snappy stream": ("a.dat", b"\xff\x06\0\0sNaPpY" + LINES),
    "an lzma stream": ("a.dat", lzma.compress(LINES, lzma.FORMAT_ALONE)),
    "bytes of brotli": ("a.csv.br", pa.Codec("brotli").compress(LINES).to_pybytes()),
    "bytes of snappy": ("a.SNAPPY", pa.Codec("snappy").compress(LINES).to_pybytes()),
    "a Parquet file": ("a.dat", parquet()),
    "an Avro file": ("a.dat", b"Obj\x01" + bytes(30)),
}
TEXT_FORMATS = ["multislot", "feasign_slot", "slot_value", "criteo_tsv", "csv"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_is_not_read_is_named_for_every_format(tmp_path: Path, name: str) -> None:
    file, content = CONTAINERS[name]
    path = tmp_path / file
    path.write_bytes(content)
    for data_format in TEXT_FORMATS:
        slots = CRITEO_SLOTS if data_format == "criteo_tsv" else SLOTS
        options = load_options(Format(data_format), slots, 2, max_bad_line_ratio=1.0)
        expected = rf"{file}: expected text, found {name.partition(' of ')[0]}.*: [a-z]+"
        with pytest.raises(DataError, match=expected):
            load([str(path)], options, 1 << 20)


def test_text_with_the_name_of_a_compression_is_read(tmp_path: Path) -> None:
    for name in ("a.br", "a.zip", "a.gz", "a.bz2"):
        (tmp_path / name).write_bytes(LINES)
        assert text_of(tmp_path / name) == LINES


# ---- files that change


def test_a_file_that_grows_while_read_is_an_error_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    chunks = read_chunks(str(path), chunk_bytes=1000)
    next(chunks)
    with path.open("ab") as file:
        file.write(b"x" * 10)
    with pytest.raises(DataError, match=f"a.txt: changed .* {len(LINES)} .* {len(LINES) + 10} now"):
        list(chunks)


def test_a_file_that_disappears_while_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    chunks = read_chunks(str(path), chunk_bytes=1000)
    next(chunks)
    path.unlink()
    with pytest.raises(DataError, match=f"a.txt: disappeared .* had {len(LINES)} bytes"):
        list(chunks)


# ---- folders and globs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ["b.txt", "a.txt", ".h.txt", "_SUCCESS", "_t.txt", "c.txt.tmp", "c.txt.crc"]
    names += ["day=2/z.txt", "_temporary/y.txt", "a b.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LINES[:100])
    return tmp_path


def test_a_folder_is_its_files_without_hidden_and_temporary_ones(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        files = expand([str(folder)])
    assert [os.path.relpath(f, folder) for f in files] == [
        "a b.txt",
        "a.txt",
        "b.txt",
        "day=2/z.txt",
    ]
    assert "6 hidden or temporary files are left out" in caplog.text
    assert "_SUCCESS" in caplog.text


def test_a_glob_leaves_them_out_unless_it_asks_for_them(folder: Path) -> None:
    def named(pattern: str) -> list[str]:
        return [Path(f).name for f in expand([str(folder / pattern)])]

    assert named("*") == ["a b.txt", "a.txt", "b.txt"]
    assert named("*.tmp") == ["c.txt.tmp"]
    assert named("_t*") == ["_t.txt"]
    assert named("*/z.txt") == ["z.txt"]
    assert named(".h.txt") == [".h.txt"]  # a file that is named is read


def test_files_keep_the_order_of_the_list(folder: Path) -> None:
    files = [str(folder / "b.txt"), str(folder / "a.txt"), (folder / "b.txt").as_uri()]
    assert expand(files) == files


@pytest.mark.parametrize("pattern", ["nothing", "nothing*", "_temporary"])
def test_what_matches_no_file_is_named(folder: Path, pattern: str) -> None:
    (folder / "_temporary" / "y.txt").rename(folder / "_temporary" / "_y.txt")
    with pytest.raises(DataError, match=pattern.replace("*", r"\*")):
        expand([str(folder / pattern)])
    with pytest.raises(DataError, match=pattern.replace("*", r"\*")):
        expand([f"{folder.as_uri()}/{pattern}"])


# ---- URIs


def test_a_uri_of_a_folder_or_glob_gives_uris_that_can_be_read(folder: Path) -> None:
    files = expand([folder.as_uri()])
    assert [f.removeprefix(folder.as_uri()) for f in files] == [
        "/a%20b.txt",
        "/a.txt",
        "/b.txt",
        "/day=2/z.txt",
    ]
    assert [text_of(f) for f in files] == [LINES[:100]] * 4
    assert expand([f"{folder.as_uri()}/*.txt"]) == files[:3]
    assert expand([f"{folder.as_uri()}/*/z.txt"]) == files[3:]


class FailingHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A remote system whose requests fail `failures` times before one works."""

    def __init__(self, failures: int) -> None:
        self.system = fs.LocalFileSystem()
        self.left = self.failures = failures
        self.requests = 0

    def _fail(self) -> None:
        self.requests += 1
        if self.left:
            self.left -= 1
            raise OSError("connection reset")
        self.left = self.failures

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._fail()
        return self.system.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._fail()
        return self.system.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(FailingFile(self, path), mode="r")

    def _unused(self, *args: Any) -> Any:
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _unused
    delete_file = move = copy_file = open_input_stream = _unused
    open_output_stream = open_append_stream = _unused


class FailingFile:
    def __init__(self, handler: FailingHandler, path: str) -> None:
        self.handler, self.file, self.closed = handler, io.FileIO(path), False

    def read(self, size: int = -1) -> bytes:
        self.handler._fail()
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.closed = True


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """remote(failures) -> (URI of the folder that holds a.txt, the handler, the waits made)."""

    def make(failures: int) -> tuple[str, FailingHandler, list[float]]:
        handler, waits = FailingHandler(failures), list[float]()
        (tmp_path / "a.txt").write_bytes(LINES)
        monkeypatch.setattr(
            file_systems,
            "filesystem_of",
            lambda uri: (fs.PyFileSystem(handler), uri.removeprefix("hdfs://nn:8020")),
        )
        monkeypatch.setattr(time, "sleep", waits.append)
        return f"hdfs://nn:8020{tmp_path}", handler, waits

    return make


@pytest.mark.parametrize("packed", [False, True])
def test_requests_that_fail_are_made_again_and_give_the_same_bytes(
    remote: Callable[..., Any], tmp_path: Path, packed: bool
) -> None:
    uri, handler, waits = remote(failures=2)
    if packed:
        (tmp_path / "a.txt").write_bytes(gzip.compress(LINES))
    (file,) = expand([uri], retries=2)
    assert text_of(file, retries=2, chunk_bytes=100_000) == LINES
    assert handler.requests % 3 == 0
    assert handler.requests >= 12
    assert waits[:2] == [0.5, 1.0]


def test_the_last_attempt_that_fails_is_an_error_with_the_cause(remote: Callable[..., Any]) -> None:
    uri, _, waits = remote(failures=3)
    with pytest.raises(DataError, match=r"a\.txt: cannot read, after 3 .*connection reset"):
        text_of(f"{uri}/a.txt", retries=2)
    assert len(waits) == 2


def test_a_remote_file_that_is_not_there_is_not_tried_again(remote: Callable[..., Any]) -> None:
    uri, _, waits = remote(failures=0)
    with pytest.raises(DataError, match=r"b\.txt: expected a file, found no such file"):
        text_of(f"{uri}/b.txt")
    assert not waits


def test_a_uri_that_nothing_opens_is_named() -> None:
    with pytest.raises(DataError, match="gopher://host/a"):
        expand(["gopher://host/a"])
