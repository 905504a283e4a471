"""The options of a dataset: how files become instances (`LoadOptions`), and which inputs and orders
its batches have (`DatasetOptions`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import DataConfig, Format, KeySpace, Slots
from paddlebox.config.check import nearest
from paddlebox.config.data import MAX_LINE_BYTES, HoldoutConfig, ShareBy
from paddlebox.config.models import SEARCH_ID
from paddlebox.config.slots import Csv
from paddlebox.config.zones import zones_of
from paddlebox.data.batches import LOG_KEYS, Feed
from paddlebox.data.cache import ParsedCache
from paddlebox.data.holdout import Rows, Side
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.pipeline import PackThreads, Threads, load_threads, pack_threads
from paddlebox.data.plugins import is_library, load_function
from paddlebox.data.positions import sparse_numbers
from paddlebox.data.reader import CHUNK_BYTES, NO_HEAD, Head
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.sharing import NOT_SHARED, Share
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError

JOIN, UPDATE = 1, 0  # the phases
EXACT_FLOATS: int = core.EXACT_FLOATS  # whose sum is an exact value (ops/feed/text/schema.h)
#: What a shuffle keeps together.
SHUFFLES = ("instance", "ins_id", "search_id", "slot")
#: Receives the click rate and the strength of each slot with click priors, (2, K) float32.
TakePriors = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class LoadOptions:
    """How files become the instances of a pass: section `data` of a config, and the rest."""

    data: DataConfig  # but not its files, passes and dates
    slots: Slots
    seed: int = 0  # for sampling, shuffling and sharing
    test: bool = False  # whether passes evaluate
    rows: Rows = Rows.ALL  # the rows that data.holdout gives to the passes
    # What models and metrics need.
    sequences: tuple[str, ...] = ()  # sparse slots whose ids are fed one by one
    click_slots: tuple[int, ...] = ()  # (K) positions of the sparse slots with click priors
    user_sequences: SequenceOptions | None = None  # None: instances are trained one by one
    # Slots that the feeder holds as floats, and whose first values metrics need as they were read.
    exact: tuple[str, ...] = ()
    # Memory and disk.
    budget_bytes: int = 0  # feeder.budget_bytes; 0: no limit
    spill_dir: Path | None = None  # None: the system's folder for temporary files
    to_disk: bool = False  # keep the pass in spill_dir, whatever its size
    cache: ParsedCache | None = None
    # What only programs set.
    parse_ins_id: bool = False
    parse_content: bool = False
    time_column: str = ""  # of the times, without user_sequences; "": not parsed
    sample_rate: float = 1.0
    merge_size: int | None = None  # instances per id that are merged; 0: any number; None: no merge
    shuffle_by: str = "instance"  # one of SHUFFLES
    shuffle_slot: str = ""
    max_line_bytes: int = MAX_LINE_BYTES  # a longer line is malformed
    pipe_timeout_s: float = TIMEOUT_S
    retries: int = RETRIES
    allow_commands: bool = False  # whether pipe commands and parser plugins may run
    # What a dataset sets.
    tables: tuple[int, ...] = ()  # (S) the table of each sparse slot; empty: there is one table
    share: Share = NOT_SHARED  # among several ranks
    shuffle_seed: int | None = None  # None: keep the order of the files

    @property
    def holdout(self) -> HoldoutConfig | None:
        """How the rows are split; None: passes read all of them."""
        return self.data.holdout if self.rows is not Rows.ALL else None

    def side_of(self, path: str) -> Side | None:
        """The rows of a file that passes read; None: all."""
        rule = self.holdout
        return Side(rule, self.seed, self.rows, path) if rule is not None else None

    @property
    def negative_rate(self) -> float:
        """The share of the instances with label 0 that a pass keeps."""
        return 1.0 if self.test else self.data.negative_rate

    @property
    def pipe_command(self) -> str:
        command = self.data.pipe_command.strip()
        return "" if command == "cat" else command

    @property
    def time(self) -> str:
        """The column of the times; "": they are not parsed."""
        return self.time_column if self.user_sequences is None else self.user_sequences.time

    @property
    def tags(self) -> set[str]:
        """The ids, texts, log keys and times that are parsed."""
        wanted = {"logkey"} if self.data.logkey else set()
        # A log key serves as the id.
        if self.parse_ins_id or (self.merge_size is not None and not self.data.logkey):
            wanted.add("ins_id")
        if self.time:
            wanted.add("time")
        return wanted | ({"content"} if self.parse_content else set())

    @property
    def cacheable(self) -> bool:
        """Whether the parsed cache may hold the files: it has no tags, and cannot tell whether a
        command or a parser has changed."""
        return not (self.tags or self.pipe_command or self.data.parser)

    @property
    def may_spill(self) -> bool:
        """Whether a pass can be kept on disk. Sampled or merged instances cannot."""
        return self.merge_size is None and self.sample_rate >= 1

    @property
    def kept_together(self) -> tuple[str, str]:
        """What keeps instances on one rank in a global shuffle, and its slot."""
        if self.user_sequences is not None:
            return "slot", self.user_sequences.user
        return self.shuffle_by, self.shuffle_slot

    @property
    def held_width(self) -> int:
        """The floats of an instance that the feeder holds: those of its slots, then the exact
        values."""
        return self.slots.feed_dense_width + EXACT_FLOATS * len(self.exact)

    def dedup(self) -> bool | list[int]:
        """`dedup_slots` for the native code: False for off, True for auto, otherwise positions of
        slots. Raises: ConfigError for a name that is not a sparse slot."""
        wanted = self.data.dedup_slots
        if isinstance(wanted, str):
            if wanted not in ("off", "auto"):
                raise ConfigError(f"dedup_slots: expected off, auto or names, found {wanted!r}")
            return wanted == "auto"
        return self.sparse_numbers("dedup_slots", wanted)

    def sparse_names(self) -> list[str]:
        return [slot.name for slot in self.slots.sparse]

    def sparse_numbers(self, call: str, slots: Sequence[str]) -> list[int]:
        return sparse_numbers(self.slots, call, slots)

    def arrange(self, instances: Any, seed: int) -> None:
        slots = [self.shuffle_slot] if self.shuffle_by == "slot" else []
        instances.arrange_by(self.shuffle_by, seed, *self.sparse_numbers("shuffle", slots))

    # ---- checks

    def check(self, ranks: int = 1) -> None:
        """Raises: ConfigError for options that contradict each other, code that is not allowed, or
        a parser plugin that cannot be loaded: here, not in a thread."""
        self.slots.check_format(self.data.format)
        self._check_code()
        self._check_records()
        self._check_tags()
        self._check_factors()
        self.slots.positions(self.sequences)
        self._check_user_sequences(ranks)
        self._check_negatives()
        self._check_holdout()
        self.dedup()
        try:
            self.schema()
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(str(error)) from error

    def _check_code(self) -> None:
        command, parser = self.pipe_command, self.data.parser
        if is_library(command.rpartition("|")[2].strip()):
            raise ConfigError(
                f"pipe_command {command!r} ends with a parser plugin: give it to set_so_parser_name"
            )
        self.check_allowed("pipe_command", command)
        self.check_allowed("parser", parser)
        if self.data.format.is_columnar and (command or parser):
            name = "pipe_command" if command else "parser"
            raise ConfigError(f"{name} is for text, data.format is {self.data.format.value}")
        if parser and self.slots.csv != Csv():
            raise ConfigError("csv is given, but a parser plugin reads the lines")
        if parser and not is_library(parser):
            load_function(parser)

    def _check_records(self) -> None:
        csv = self.slots.csv
        if self.data.stream is None or self.data.format is not Format.CSV:
            return
        if csv.header or csv.skip:
            raise ConfigError(
                "data.stream with data.format csv: expected records without a header, found "
                f"csv: {{header: {str(csv.header).lower()}, skip: {csv.skip}}}: set "
                "csv: {header: false, columns: […]} in slots.yaml"
            )

    def check_allowed(self, name: str, code: str) -> None:
        """Raises: ConfigError for code that may not run. name: of its option."""
        if code and not self.allow_commands:
            raise ConfigError(
                f"{name} {code!r} runs code, which is off: set security.allow_commands: true, "
                "or init(allow_commands=True), if you trust its author"
            )

    def _check_tags(self) -> None:
        data = self.data
        tagged = data.format.is_columnar or data.format in (Format.MULTISLOT, Format.CSV)
        if self.tags and (not tagged or data.parser):
            found = f"parser {data.parser}" if data.parser else data.format.value
            names = {"time": "time (data.sequences, set_merge_by_uid, set_need_time_info)"}
            tags = ", ".join(names.get(tag, tag) for tag in sorted(self.tags))
            raise ConfigError(
                f"{tags}: only data.format multislot, csv, parquet, arrow and orc can have "
                f"these, found {found}"
            )

    def _check_factors(self) -> None:
        """Weights and pooling need lists of their own, which dedup_slots shares and plugins
        lack."""
        names = ", ".join(self.slots.factored)
        if names and self.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {self.data.dedup_slots}, but slots are weighted, or pooled by "
                f"mean or sqrtn: {names}: leave dedup_slots off"
            )
        if self.slots.weighted and self.data.parser:
            raise ConfigError(
                f"parser {self.data.parser}: a parser plugin has no weights, but slots are "
                f"weighted: {', '.join(self.slots.weighted)}: take the parser out"
            )

    def _check_user_sequences(self, ranks: int) -> None:
        wanted = self.user_sequences
        if self.time and not self.may_spill:
            raise ConfigError(
                "data.sequences (set_merge_by_uid, set_need_time_info): instances that are sampled "
                "or merged have no times: omit set_sample_rate and set_merge_by_lineid"
            )
        if wanted is None:
            return
        if self.data.drop_last:
            raise ConfigError(
                "data.drop_last with sequences of users: a batch has any number of instances: "
                "leave drop_last off"
            )
        if wanted.history.length and ranks > 1:
            raise ConfigError(
                f"data.sequences.history: expected one rank, found {ranks}: a user may be on "
                "another rank in the next pass: set history.length: 0"
            )
        wanted.slot(self.slots)
        if wanted.history.length and self.slots.weighted:
            raise ConfigError(
                "data.sequences.history keeps ids without weights, but slots are weighted: "
                f"{', '.join(self.slots.weighted)}: leave one of them out"
            )
        if self.click_slots:
            raise ConfigError(
                "data.sequences with click priors (init: click_slots): an instance may be in "
                "several pieces, which would count its click several times: leave one of them out"
            )
        tags = sorted(self.tags - {"time"})
        if wanted.history.length and tags:
            raise ConfigError(
                f"data.sequences.history keeps slots and times, but not {', '.join(tags)}: leave "
                "one of them out"
            )
        if self.shuffle_by != "instance":
            raise ConfigError(
                f"local_shuffle by {self.shuffle_by}: with data.sequences (set_merge_by_uid), "
                "users are shuffled: call local_shuffle() without arguments"
            )

    def _check_negatives(self) -> None:
        rate = self.data.negative_rate
        if not 0 < rate <= 1:
            raise ConfigError(f"negative_rate: expected a share above 0, at most 1, found {rate}")
        if rate < 1 and len(self.slots.tasks) != 1:
            raise ConfigError(
                f"data.negative_rate {rate}: expected one label, whose negatives are "
                f"sampled, found {', '.join(self.slots.tasks) or 'none'}: remove negative_rate, or "
                "the other labels"
            )

    def _check_holdout(self) -> None:
        """A file of CSV without a header has the columns of slots.yaml."""
        csv = self.slots.csv
        named = self.data.holdout.named if self.data.holdout is not None else ""
        if not named or self.data.format is not Format.CSV or csv.header:
            return
        known = csv.columns or self.schema().column_names
        if named not in known:
            raise ConfigError(
                f"data.holdout: no column {named!r} in slots.yaml, which names the columns of CSV "
                f"files without a header{nearest(named, known)}"
            )

    def check_share(self, ranks: int) -> None:
        """Raises: ConfigError if several of these ranks would have instances of a user."""
        user = self.user_sequences.user if self.user_sequences is not None else ""
        by, slot = self.kept_together
        if not user or ranks == 1 or (self.share.by, self.share.slot) == (by, slot):
            return
        found = f"{self.share.by.value} {self.share.slot}".strip()
        raise ConfigError(
            f"data.sequences: {ranks} ranks share the instances of a pass by {found}; expected "
            f"slot {user}, so that a rank has all instances of a user: call "
            f"set_share('slot', slot={user!r}) if all ranks set the same files, and "
            "global_shuffle() if each sets its own"
        )

    def head(self, schema: Any) -> Head:
        """The lines before the rows of a text file. schema: the native FeedSchema."""
        csv = self.slots.csv
        if self.data.format is not Format.CSV or self.data.parser:
            return NO_HEAD
        return Head(csv.skip, schema if csv.header else None, csv.delimiter)

    # ---- the native code

    def parsing(self) -> dict[str, Any]:
        """Everything that affects how a line is parsed, for the key of the parsed cache."""
        rule = self.holdout
        unused = {"table", "of", "pooling", "learning_rate_factor"}
        return {
            "format": self.data.format,
            "slots": self.slots.model_dump(mode="json", exclude={"slots": {"__all__": unused}}),
            "zones": [zones for slot in self.slots.slots if (zones := zones_of(slot.expr or ""))],
            "key_space": self.data.key_space,
            "max_line_bytes": self.max_line_bytes,
            "exact": self.exact,
            "chunk_bytes": CHUNK_BYTES,
            "holdout": {**rule.model_dump(mode="json"), "seed": self.seed} if rule else None,
            "rows": self.rows.value if rule else None,
        }

    def schema(self) -> Any:
        """The native FeedSchema. Raises: ValueError for slots that the format cannot hold."""
        parser, csv = self.data.parser, self.slots.csv
        like = {"type": "dense", "dim": EXACT_FLOATS, "column": ""}
        exact = [{"name": f"{name} exact", "exact_of": name, **like} for name in self.exact]
        arguments = (
            [*self.slots.fields(), *exact],
            self.data.key_space is KeySpace.PER_SLOT,
            self.max_line_bytes,
            csv.delimiter + csv.list_separator,
        )
        if is_library(parser):
            # Absolute, because dlopen does not look for a bare name in the current folder.
            return core.FeedSchema("plugin", *arguments, {}, os.path.abspath(parser))
        if parser:  # a Python function returns columns by name
            return core.FeedSchema("parquet", *arguments)
        columns = {**self.slots.tags.model_dump(), "time": self.time}
        tags = {tag: columns[tag] for tag in self.tags}
        form = Format.PARQUET if self.data.format is Format.JSON else self.data.format
        return core.FeedSchema(
            form.value, *arguments, tags, csv_columns=csv.columns, csv_nulls=csv.null
        )


@dataclass
class DatasetOptions:
    """The current options of a dataset, read when they are needed. A pass keeps the `load` that it
    was loaded with, except for drop_last and pv_batch_size."""

    load: LoadOptions
    ranks: int = 1
    load_threads: Threads = field(default_factory=lambda: Threads(1, 1))
    pack_threads: PackThreads = field(default_factory=lambda: PackThreads(1, 1))
    use_var: Sequence[Any] | None = None  # variables to feed; None: all packed inputs
    enable_pv_merge: bool = False  # whether the join phase trains on page views
    phase: int = JOIN  # or UPDATE
    rank_offset: str = ""  # name of the variable that takes RankOffset; "": none
    pool_size: int = 0  # instances that slots_shuffle draws from; 0: it is not allowed
    read_slots: tuple[str, ...] = ()  # slots in the packed inputs; empty: all
    sequences: tuple[str, ...] | None = None  # the sequences among them; None: those of load
    group: str = ""  # sparse slot or log key by which a loss groups instances; "": none
    # Whether metrics take labels between 0 and 1. The usual metrics then have the formulas of
    # weighted_auc.
    soft_labels: bool = False
    # Slots whose shows and clicks count; None: all in the first phase of a pass, then none.
    counted_slots: tuple[str, ...] | None = None
    # Click priors (data/click_counts.py): whether the instances of the open pass were trained in an
    # earlier pass. Then they see other counts, and are not counted again.
    repeated: bool = False
    take_priors: TakePriors | None = None  # called with the priors before a part begins to train
    send: Callable[[Feed], Feed] | None = None  # copies a packed batch to a device
    # Names of variables -> the inputs of sequences (batches.SEQUENCES) that they take.
    user_sequences: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.set_threads(self.load.data.threads)

    def set_threads(self, threads: int, pack: int | None = None) -> None:
        """Set the number of threads that read, parse and key, and of those that pack; 0: chosen
        while running. pack: None: 1 if `threads` is 1."""
        self.load_threads = load_threads(threads)
        self.pack_threads = pack_threads(int(threads == 1) if pack is None else pack)

    def change(self, data: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Replace keys of section `data`, and fields of `load`. Raises: ConfigError if the options
        then contradict each other; nothing changes then."""
        changed = self.load.data.model_copy(update=dict(data or {}))
        load = replace(self.load, data=changed, **fields)
        load.check(self.ranks)
        self.load = load

    def set_share(self, by: str, slot: str = "") -> None:
        """Set how ranks share instances. Raises: ConfigError for an unknown value or slot, or an id
        that is not parsed."""
        known = [str(one) for one in ShareBy if one is not ShareBy.AUTO]
        if by not in known or (by == ShareBy.SLOT) != bool(slot):
            raise ConfigError(
                f"share {by!r}, slot {slot!r}: expected one of {', '.join(known)}, and a slot with "
                "slot only"
            )
        self.load.sparse_numbers("share", [slot] if slot else [])  # checks the name
        needed = {ShareBy.INS_ID: {"ins_id", "logkey"}, ShareBy.SEARCH_ID: {"logkey"}}
        if by in needed and not self.load.tags & needed[ShareBy(by)]:
            raise ConfigError(
                f"share by {by}: instances have no {by}: set_parse_ins_id(True) or "
                "set_parse_logkey(True) is missing (data.logkey in a config)"
            )
        self.load = replace(self.load, share=Share(ShareBy(by), slot))

    def set_read_slots(
        self, slots: Sequence[str] = (), sequences: Sequence[str] | None = None
    ) -> None:
        """Set the slots in the packed inputs of the batches that are read from now on.

        Args:
            slots: the other sparse slots read as if they were empty, and get no gradient. Empty:
                all.
            sequences: the slots among them whose ids are fed one by one; None: those of `load`.

        Raises: ConfigError for `slots` with dedup_slots, because lists and ids are then shared.
        """
        load = self.load
        load.sparse_numbers("set_read_slots", slots)  # checks the names
        if slots and load.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {load.data.dedup_slots}, but a model reads only "
                f"{', '.join(slots)}: leave dedup_slots off, or let the model read all slots"
            )
        load.slots.positions(tuple(sequences or ()))
        self.read_slots = tuple(slots)
        self.sequences = None if sequences is None else tuple(sequences)

    def set_group(self, name: str) -> None:
        """Set the groups whose instances a loss compares, which batches have as box_group: equal
        values of a sparse slot, or "search_id" for page views; "": none. Raises: ConfigError if log
        keys are not parsed, or for an unknown slot."""
        if name == SEARCH_ID and not self.load.data.logkey:
            raise ConfigError(
                "group search_id: instances have no search id: set_parse_logkey(True) is missing "
                "(data.logkey in a config)"
            )
        if name not in ("", SEARCH_ID):
            self.load.sparse_numbers("set_group", [name])  # checks the name
        self.group = LOG_KEYS[0] if name == SEARCH_ID else name
