"""FolderStream: records that are lines of files that grow. A partition is a file, and its offsets
are bytes. Files in one subfolder are read in the order of their names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paddlebox.config.stream import EARLIEST, END, LATEST, StreamConfig, offsets_of
from paddlebox.data.listing import is_temporary
from paddlebox.data.streams.stream import (
    RECORDS_BYTES,
    Backlog,
    Batch,
    Offsets,
    Range,
    newest_of,
)
from paddlebox.errors import DataError

_BLOCK_BYTES = 1 << 20


@dataclass
class _Tail:
    """The complete lines after an offset that are counted so far."""

    begin: int
    lines: int = 0
    end: int = 0  # offset after them


class FolderStream:
    def __init__(self, config: StreamConfig) -> None:
        self._root = Path(config.source)
        self._tails: dict[str, _Tail] = {}

    # ---- where records wait

    def offsets(self, place: str) -> Offsets:
        sizes = self._sizes()
        if place == EARLIEST:
            return dict.fromkeys(sizes, 0)
        if place in (LATEST, END):
            return {name: self._line_begin(name, size) for name, size in sizes.items()}
        found = offsets_of(place)
        unknown = [name for name in found if name not in sizes]
        if unknown:
            raise DataError(
                f"{self._root}: expected a file {unknown[0]}, which data.stream names, found "
                f"{', '.join(sorted(sizes)[:5]) or 'no files'}: correct start or until"
            )
        for name, at in found.items():
            if at and (at > sizes[name] or self._read(name, at - 1, 1) != b"\n"):
                raise DataError(
                    f"{self._root / name}: expected a line to begin at byte {at}, which "
                    "data.stream names, found none: correct start or until"
                )
        return found

    def look(self, at: Mapping[str, int], until: Mapping[str, int] | None, most: int) -> Backlog:
        sizes = self._sizes()
        lanes: dict[str, dict[str, int]] = {}
        found, behind = Backlog({}), 0.0
        for name in sorted(sizes):
            begin, size = at.get(name, 0), sizes[name]
            if sizes[name] < begin:
                raise DataError(
                    f"{self._root / name}: has {sizes[name]} bytes, expected {begin} at least, up "
                    "to which it is trained: a file of a stream only grows; write new records "
                    "into a new file, and put this one back or remove it"
                )
            size = size if until is None else min(size, until.get(name, begin))
            found.at[name] = begin
            lane = lanes.setdefault(str(Path(name).parent) if "/" in name else name, {})
            tail = self._counted(name, begin, max(begin, size), most - sum(lane.values()))
            lane[name] = tail.lines
            behind += tail.lines
            if tail.lines:  # the others are estimated
                behind += (size - tail.end) * tail.lines / (tail.end - begin)
        found.lanes, found.behind = list(lanes.values()), round(behind)
        self._check_removed(at, sizes)
        return found

    def end(self, partition: str, begin: int, records: int) -> int:
        at = begin
        with open(self._root / partition, "rb") as file:
            file.seek(begin)
            while records and (block := file.read(_BLOCK_BYTES)):
                lines = block.count(b"\n")
                if lines < records:
                    records -= lines
                    at += len(block)
                    continue
                place = -1
                for _ in range(records):
                    place = block.find(b"\n", place + 1)
                return at + place + 1
        assert not records, f"{partition}: fewer records than counted"
        return at

    def _sizes(self) -> dict[str, int]:
        try:
            return dict(self._files(str(self._root), ""))
        except OSError as error:
            raise DataError(
                f"{self._root}: cannot list the folder of data.stream: {error.strerror}: correct "
                "source, or make the folder"
            ) from error

    def _files(self, folder: str, inside: str) -> Iterator[tuple[str, int]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_temporary(entry.name):
                    continue
                if entry.is_dir():
                    yield from self._files(entry.path, f"{inside}{entry.name}/")
                elif entry.is_file():
                    yield f"{inside}{entry.name}", entry.stat().st_size

    def _counted(self, name: str, begin: int, size: int, most: int) -> _Tail:
        """Count the complete lines of a file after an offset, at least `most` if there are."""
        tail = self._tails.get(name)
        if tail is None or tail.begin != begin or tail.end > size:
            tail = self._tails[name] = _Tail(begin, 0, begin)
        while tail.lines < most and tail.end < size:
            block = self._read(name, tail.end, min(_BLOCK_BYTES, size - tail.end))
            complete = block.rfind(b"\n") + 1
            if not complete:
                whole = self._line_end(name, tail.end, size)
                if whole == tail.end:
                    break  # the last line is not complete
                tail.lines, tail.end = tail.lines + 1, whole
                continue
            tail.lines += block.count(b"\n", 0, complete)
            tail.end += complete
        return tail

    def _line_end(self, name: str, begin: int, size: int) -> int:
        """The end of the line at an offset, which may be longer than a block; begin: there is
        none."""
        at = begin
        while at < size and (block := self._read(name, at, min(_BLOCK_BYTES, size - at))):
            if (found := block.find(b"\n") + 1) > 0:
                return at + found
            at += len(block)
        return begin

    def _line_begin(self, name: str, end: int) -> int:
        """The offset after the last complete line."""
        while end > 0:
            begin = max(0, end - _BLOCK_BYTES)
            found = self._read(name, begin, end - begin).rfind(b"\n") + 1
            if found:
                return begin + found
            end = begin
        return 0

    def _check_removed(self, at: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Forget the files that are gone. Raises: DataError if one had more to read."""
        for name in [name for name in self._tails if name not in sizes]:
            tail = self._tails.pop(name)
            if tail.begin == at.get(name, 0) and tail.lines:
                raise DataError(
                    f"{self._root / name}: disappeared with {tail.lines} records at least that are "
                    f"not trained, from byte {tail.begin} on: put it back"
                )

    # ---- reading

    def read(self, wanted: Range) -> Iterator[Batch]:
        path = self._root / wanted.partition
        try:
            written_at = os.stat(path).st_mtime
        except OSError as error:
            raise self._lost(wanted, error.strerror or "") from error
        rest, at = b"", wanted.begin
        while at < wanted.end:
            block = self._read(wanted.partition, at, min(RECORDS_BYTES, wanted.end - at))
            if not block:
                raise self._lost(wanted, f"it ends at byte {at}")
            begin, at = at - len(rest), at + len(block)
            block = rest + block
            complete = block.rfind(b"\n") + 1
            rest = block[complete:]
            lines = block[:complete].split(b"\n")[:-1]
            offsets = [begin]
            for line in lines:
                offsets.append(offsets[-1] + len(line) + 1)
            if lines:
                newest, ahead = newest_of([written_at])
                yield Batch(lines, offsets[:-1], newest, ahead * len(lines))

    def _read(self, name: str, at: int, size: int) -> bytes:
        try:
            with open(self._root / name, "rb", buffering=0) as file:
                return os.pread(file.fileno(), size, at)
        except OSError as error:
            raise DataError(f"{self._root / name}: cannot be read: {error.strerror}") from error

    def _lost(self, wanted: Range, why: str) -> DataError:
        return DataError(
            f"{self._root / wanted.partition}: expected the records from byte {wanted.begin} to "
            f"{wanted.end}, which a pass trains, found that {why}: put the file back"
        )
