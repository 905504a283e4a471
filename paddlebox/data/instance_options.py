"""Which instances come of the files of a pass, and in which order."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paddlebox import _native
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
    """Set by the methods of `PaddleSettings`; the defaults change nothing."""

    parse_ins_id: bool = False
    parse_content: bool = False
    parse_logkey: bool = False
    sample_rate: float = 1.0
    sample_seed: int = 0
    merge_size: int | None = None  # None: not merged; 0: any number of one id
    shuffle_by: str = "instance"  # one of SHUFFLES
    shuffle_slot: str = ""
    pipe_command: str = ""
    pipe_timeout_s: float = TIMEOUT_S
    parser: str = ""

    @property
    def tags(self) -> set[str]:
        wanted = {"logkey"} if self.parse_logkey else set()
        # The log key is an id already.
        if self.parse_ins_id or (self.merge_size is not None and not self.parse_logkey):
            wanted.add("ins_id")
        return wanted | ({"content"} if self.parse_content else set())

    @property
    def cacheable(self) -> bool:
        """Whether the parsed cache may hold what files were parsed to: it has no tags, and does not
        know when a command or a parser has changed."""
        return not (self.tags or self.pipe_command or self.parser)

    @property
    def may_spill(self) -> bool:
        """Whether a pass can lie on disk: not where its instances are sampled or merged."""
        return self.merge_size is None and self.sample_rate >= 1

    def check(self, data_format: Format, slots: Slots) -> None:
        """Raises ConfigError for what does not go together."""
        columnar = data_format in (Format.PARQUET, Format.ARROW)
        tagged = columnar or data_format in (Format.MULTISLOT, Format.CSV)
        if self.tags and (not tagged or self.parser):
            found = f"parser {self.parser}" if self.parser else data_format.value
            raise ConfigError(
                f"{', '.join(sorted(self.tags))}: parsed from data.format multislot, csv, parquet "
                f"or arrow, found {found}"
            )
        if columnar and (self.pipe_command or self.parser):
            name = "pipe_command" if self.pipe_command else "parser"
            raise ConfigError(f"{name} is for text, data.format is {data_format.value}")
        if self.parser and slots.csv != Csv():
            raise ConfigError("csv is given, but a parser plugin reads the lines")

    def schema(
        self,
        data_format: Format,
        slots: list[dict[str, Any]],
        *arguments: Any,
        columns: Mapping[str, str],
        **csv: Sequence[str],
    ) -> Any:
        """The native FeedSchema. arguments: its others, in order. columns: of the tags. csv:
        csv_columns and csv_nulls."""
        if not self.parser:
            tags = {tag: columns[tag] for tag in self.tags}
            return _native.core.FeedSchema(data_format.value, slots, *arguments, tags, **csv)
        if is_library(self.parser):
            library = os.path.abspath(self.parser)  # a bare name is looked for in other folders
            return _native.core.FeedSchema("plugin", slots, *arguments, {}, library)
        return _native.core.FeedSchema("parquet", slots, *arguments)  # columns by name

    def filter_of(self, path: str) -> Blocks | None:
        """What the blocks of a text file go through."""
        if not self.pipe_command:
            return None
        return partial(
            _through, path=path, command=self.pipe_command, timeout_s=self.pipe_timeout_s
        )

    def chunks(self, chunks: Iterator[Chunk], slots: Slots) -> Iterator[Chunk | PluginChunk]:
        if not self.parser or is_library(self.parser):
            return chunks
        return parsed_by(self.parser, chunks, slots)

    def begin(self, instances: Any) -> None:
        """Before the first chunk is appended."""
        if self.sample_rate < 1:
            instances.set_sampling(self.sample_rate, self.sample_seed)

    def merge(self, instances: Any, slots: Slots) -> None:
        """Once all chunks are there."""
        if self.merge_size is None:
            return
        dims = [slot.dim for slot in slots.feed_dense]
        dropped = instances.merge_by_ins_id(self.merge_size, dims)
        if dropped:
            log.warning(
                "merge_by_lineid: %d instances are dropped: their id has not %s instances, or two "
                "of them have the same slot",
                dropped,
                self.merge_size or "mergeable",
            )

    def shuffle(self, instances: Any, slots: Slots, seed: int) -> None:
        """Before the pass is indexed."""
        if self.shuffle_by == "instance":
            instances.shuffle(seed)
        else:
            self.arrange(instances, slots, seed)

    def arrange(self, instances: Any, slots: Slots, seed: int) -> None:
        """The order of `shuffle`, of native Instances at any time."""
        names = [slot.name for slot in slots.sparse]
        at = names.index(self.shuffle_slot) if self.shuffle_by == "slot" else 0
        instances.arrange_by(self.shuffle_by, seed, at)


def _through(
    blocks: Iterator[bytes], *, path: str, command: str, timeout_s: float
) -> Iterator[bytes]:
    return piped(path, blocks, command, timeout_s, CHUNK_BYTES)
