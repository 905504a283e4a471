"""The workload of a config: passes, instances, ids and rows, estimated from the sizes of its files
and a sample."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

from paddlebox import _native
from paddlebox.config import Config, Slots
from paddlebox.data.decompress import codec_of
from paddlebox.data.loader import LoadedPass
from paddlebox.data.reader import read_chunks
from paddlebox.data.sources import open_source
from paddlebox.data.whole_files import load_files
from paddlebox.errors import DataError
from paddlebox.train.plan import plan_passes

_SAMPLE_LINES = 20_000
_BATCH = 1 << 16  # any size would do, because nothing is trained
_SAMPLE_BATCHES = 4
_SAMPLE_BYTES = 256 << 20  # a sample of long lines has fewer lines


@dataclass(frozen=True)
class Workload:
    """The workload. n instances have unique_c * n ** unique_power unique ids."""

    passes: tuple[int, ...]  # instances of each pass of all epochs
    passes_an_epoch: int
    line_bytes: float  # mean length of a line, not compressed
    line_ids: float  # mean number of ids of an instance
    unique_c: float
    unique_power: float

    def unique(self, instances: float) -> float:
        """The number of unique ids of this many instances, extrapolated from the sample by Heaps'
        law."""
        return min(
            instances * self.line_ids, self.unique_c * math.pow(instances, self.unique_power)
        )


@dataclass(frozen=True)
class Sample:
    """The first instances of the training files, loaded."""

    path: str
    text_bytes: int  # size of `path`
    loaded: LoadedPass


def take_sample(config: Config, slots: Slots, folder: Path) -> Sample:
    """Load the first lines of text files, or the first columnar file.

    Raises: DataError if there are no instances; ConfigError for files that only code of the config
        can read.
    """
    first = plan_passes(config)[0].files[0]
    path = first
    if not config.data.format.is_columnar:
        path = str(folder / "sample")
        _copy_lines(config, first, Path(path))
    tables = slots.tables([table.name for table in config.tables])
    several = tuple(tables) if config.extra_tables else ()
    loaded = load_files(config, slots, [path], _BATCH, "advise reads files", several)
    if loaded.size == 0:
        raise DataError(f"{first}: no instances to measure with")
    return Sample(path, _size_of(path), loaded)


def _copy_lines(config: Config, source: str, target: Path) -> None:
    wanted = max(_SAMPLE_LINES, _SAMPLE_BATCHES * config.data.batch_size)
    with target.open("wb") as file:
        for chunk in read_chunks(source):
            data = bytes(chunk.data)
            lines = data.count(b"\n")
            if lines > wanted:
                data = b"".join(data.splitlines(keepends=True)[:wanted])
            file.write(data)
            wanted -= lines
            if wanted <= 0 or file.tell() > _SAMPLE_BYTES:
                return


def _size_of(path: str) -> int:
    with open_source(path) as source:
        return int(source.seek(0, 2))


def describe(config: Config, sample: Sample) -> Workload:
    """The workload of a config. It assumes that all files are like the sample, and that compressed
    ones have the compression ratio of the sample with zlib."""
    loaded = sample.loaded
    size = loaded.size
    line_bytes = sample.text_bytes / max(1, loaded.lines or size)
    lines_of: dict[str, int] = {}
    ratio = 0.0
    planned = plan_passes(config)
    for path in dict.fromkeys(file for one in planned for file in one.files):
        file_bytes = float(_size_of(path))
        with open_source(path) as source:
            packed = sample.path != path and codec_of(source) is not None
        if packed:
            ratio = ratio or _compression(Path(sample.path))
            file_bytes *= ratio
        lines_of[path] = round(file_bytes / line_bytes)
    keys, counts, _ = loaded.key_counts()
    half = max(1, size // 2)
    half_keys = len(loaded.instances.select(_native.core.InstanceRange(0, half))[0])
    power = growth(half, half_keys, size, len(keys))
    good = size / max(1, loaded.lines or size)
    return Workload(
        passes=tuple(round(good * sum(lines_of[f] for f in one.files)) for one in planned),
        passes_an_epoch=len(planned) // config.trainer.epochs,
        line_bytes=line_bytes,
        line_ids=float(counts.sum()) / size,
        unique_c=len(keys) / size**power,
        unique_power=power,
    )


def growth(half: int, half_keys: int, size: int, keys: int) -> float:
    """The exponent with which unique ids grow from half of a sample to all of it, in [0, 1]."""
    if half >= size or half_keys == 0 or keys <= half_keys:
        return 0.0
    return min(1.0, math.log(keys / half_keys) / math.log(size / half))


def _compression(path: Path) -> float:
    data = path.read_bytes()[: 16 << 20]
    return len(data) / len(zlib.compress(data, 6))
