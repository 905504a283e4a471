"""Options that decide which instances a pass has, and in which order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox.config import Format, Slots
from paddlebox.config.slots import Csv
from paddlebox.data.pipe import TIMEOUT_S, piped
from paddlebox.data.plugins import PluginChunk, is_library, parsed_by
from paddlebox.data.reader import CHUNK_BYTES, Chunk
from paddlebox.errors import ConfigError

log = logging.getLogger(__name__)

#: What `local_shuffle` keeps together.
SHUFFLES = ("instance", "ins_id", "search_id", "slot")
Blocks = Callable[[Iterator[bytes]], Iterator[bytes]]


@dataclass(frozen=True)
class InstanceOptions:
    """Set by the methods of `PaddleSettings`. The defaults keep all instances as they are."""

    parse_ins_id: bool = False
    parse_content: bool = False
    parse_logkey: bool = False
    time_column: str = ""  # of the time of an instance; "": times are not parsed
    sample_rate: float = 1.0
    sample_seed: int = 0
    merge_size: int | None = None  # instances per id that are merged; 0: any number; None: no merge
    shuffle_by: str = "instance"  # one of SHUFFLES
    shuffle_slot: str = ""
    pipe_command: str = ""
    pipe_timeout_s: float = TIMEOUT_S
    parser: str = ""

    @property
    def tags(self) -> set[str]:
        wanted = {"logkey"} if self.parse_logkey else set()
        # A log key serves as the id.
        if self.parse_ins_id or (self.merge_size is not None and not self.parse_logkey):
            wanted.add("ins_id")
        if self.time_column:
            wanted.add("time")
        return wanted | ({"content"} if self.parse_content else set())

    @property
    def cacheable(self) -> bool:
        """Whether the parsed cache may hold the files. It cannot store tags, and cannot tell
        whether a command or a parser has changed."""
        return not (self.tags or self.pipe_command or self.parser)

    @property
    def may_spill(self) -> bool:
        """Whether a pass can be kept on disk. Sampled or merged instances cannot."""
        return self.merge_size is None and self.sample_rate >= 1

    def check(self, data_format: Format, slots: Slots) -> None:
        """Raises: ConfigError for options that contradict each other."""
        columnar = data_format.is_columnar
        tagged = columnar or data_format in (Format.MULTISLOT, Format.CSV)
        if self.tags and (not tagged or self.parser):
            found = f"parser {self.parser}" if self.parser else data_format.value
            names = {"time": "data.sequences.time (set_merge_by_uid, set_need_time_info)"}
            tags = ", ".join(names.get(tag, tag) for tag in sorted(self.tags))
            raise ConfigError(
                f"{tags}: only data.format multislot, csv, parquet and arrow can have these, found "
                f"{found}"
            )
        if columnar and (self.pipe_command or self.parser):
            name = "pipe_command" if self.pipe_command else "parser"
            raise ConfigError(f"{name} is for text, data.format is {data_format.value}")
        if self.parser and slots.csv != Csv():
            raise ConfigError("csv is given, but a parser plugin reads the lines")

    def filter_of(self, path: str) -> Blocks | None:
        """A filter for the blocks of a text file; None: no filter."""
        if not self.pipe_command:
            return None
        command, timeout_s = self.pipe_command, self.pipe_timeout_s
        return lambda blocks: piped(path, blocks, command, timeout_s, CHUNK_BYTES)

    def chunks(self, chunks: Iterator[Chunk], slots: Slots) -> Iterator[Chunk | PluginChunk]:
        if not self.parser or is_library(self.parser):
            return chunks
        return parsed_by(self.parser, chunks, slots)

    def begin(self, instances: Any) -> None:
        """Call it before the first chunk is appended."""
        if self.sample_rate < 1:
            instances.set_sampling(self.sample_rate, self.sample_seed)

    def merge(self, instances: Any, dims: Sequence[int]) -> None:
        """Call it once all chunks are appended. dims: of the slots that are held as floats."""
        if self.merge_size is None:
            return
        dropped = instances.merge_by_ins_id(self.merge_size, dims)
        if dropped:
            log.warning(
                "merge_by_lineid: %d instances are dropped: their id does not have %s instances, "
                "or two of them have the same slot",
                dropped,
                self.merge_size or "mergeable",
            )

    def shuffle(self, instances: Any, slots: Slots, seed: int) -> None:
        """Call it before the pass is indexed."""
        if self.shuffle_by == "instance":
            instances.shuffle(seed)
        else:
            self.arrange(instances, slots, seed)

    def arrange(self, instances: Any, slots: Slots, seed: int) -> None:
        """As `shuffle`, but at any time."""
        names = [slot.name for slot in slots.sparse]
        at = names.index(self.shuffle_slot) if self.shuffle_by == "slot" else 0
        instances.arrange_by(self.shuffle_by, seed, at)
