"""The options of a dataset: how files become instances (`LoadOptions`), and everything else
(`DatasetOptions`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.config import Format, KeySpace, Slots
from paddlebox.config.check import did_you_mean
from paddlebox.config.data import MAX_LINE_BYTES, ShareBy
from paddlebox.data.cache import ParsedCache
from paddlebox.data.instance_options import InstanceOptions
from paddlebox.data.pipeline import PackThreads, Threads
from paddlebox.data.plugins import is_library
from paddlebox.data.reader import CHUNK_BYTES
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.share import NOT_SHARED, Share
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError, PassError

JOIN, UPDATE = 1, 0  # the phases
EXACT_FLOATS: int = core.EXACT_FLOATS  # whose sum is an exact value (ops/feed/text/schema.h)
#: Receives the click rate and the strength of each slot with click priors, (2, K) float32.
TakePriors = Callable[[np.ndarray], None]

# Fields of LoadOptions that do not affect how a line is parsed.
_NOT_PARSING = {
    *("batch_size", "threads", "max_bad_line_ratio", "retries"),
    *("dedup_slots", "shuffle_seed", "budget_bytes", "spill_dir", "to_disk", "cache", "tables"),
    *("instances", "sequences", "user_sequences", "share", "click_slots"),
    *("negative_rate", "negative_seed"),
}


@dataclass(frozen=True)
class LoadOptions:
    """How files become instances. The fields are as in section `data` of the config."""

    format: Format
    slots: Slots
    batch_size: int
    threads: int = 1
    key_space: KeySpace = KeySpace.SHARED
    max_bad_line_ratio: float = 0.001
    max_line_bytes: int = MAX_LINE_BYTES
    retries: int = RETRIES
    dedup_slots: str | Sequence[str] = "off"  # "off", "auto", or names of sparse slots
    shuffle_seed: int | None = None  # None: keep the order of the files
    instances: InstanceOptions = field(default_factory=InstanceOptions)
    budget_bytes: int = 0  # feeder.budget_bytes; 0: no limit
    spill_dir: Path | None = None  # None: the system's folder for temporary files
    to_disk: bool = False  # keep the pass in spill_dir, whatever its size
    cache: ParsedCache | None = None
    tables: tuple[int, ...] = ()  # (S) the table of each sparse slot; empty: there is one table
    sequences: tuple[str, ...] = ()  # sparse slots whose ids are fed one by one
    share: Share = NOT_SHARED  # among several ranks
    click_slots: tuple[int, ...] = ()  # (K) positions of the sparse slots with click priors
    user_sequences: SequenceOptions | None = None  # None: instances are trained one by one
    negative_rate: float = 1.0  # share of the instances with label 0 that a training pass keeps
    negative_seed: int = 0
    # Slots that the feeder holds as floats, and whose first values metrics need as they were read.
    exact: tuple[str, ...] = ()

    def dedup(self) -> bool | list[int]:
        """`dedup_slots` for the native code: False for off, True for auto, otherwise the positions
        of the slots among the sparse slots.

        Raises: ConfigError for a name that is not a sparse slot.
        """
        if isinstance(self.dedup_slots, str):
            if self.dedup_slots not in ("off", "auto"):
                raise ConfigError(
                    f"dedup_slots: expected off, auto or names, found {self.dedup_slots!r}"
                )
            return self.dedup_slots == "auto"
        names = [slot.name for slot in self.slots.sparse]
        unknown = [name for name in self.dedup_slots if name not in names]
        if unknown:
            raise ConfigError(
                f"dedup_slots: {', '.join(unknown)}: not a sparse slot; expected {', '.join(names)}"
                + did_you_mean(unknown, names)
            )
        return [names.index(name) for name in self.dedup_slots]

    def check_factors(self) -> None:
        """Raises: ConfigError for weighted or pooled slots with dedup_slots, or weighted slots with
        a parser plugin."""
        names = ", ".join(self.slots.factored)
        if names and self.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {self.dedup_slots}, but slots are weighted, or pooled by mean or "
                f"sqrtn: {names}: leave dedup_slots off"
            )
        if self.slots.weighted and self.instances.parser:
            raise ConfigError(
                f"parser {self.instances.parser}: a parser plugin has no weights, but slots are "
                f"weighted: {', '.join(self.slots.weighted)}: take the parser out"
            )

    def check_sequences(self) -> None:
        """Raises: ConfigError if a sequence is not a sparse slot or has no max_length."""
        self.slots.positions(self.sequences)

    def check_user_sequences(self) -> None:
        """Raises: ConfigError if the user is no sparse slot, instances are sampled, merged or
        shuffled by groups, or there are click priors."""
        if self.instances.time_column and not self.instances.may_spill:
            raise ConfigError(
                "data.sequences (set_merge_by_uid, set_need_time_info): instances that are sampled "
                "or merged have no times: omit set_sample_rate and set_merge_by_lineid"
            )
        if self.user_sequences is None:
            return
        self.user_sequences.slot(self.slots)
        if self.user_sequences.history.length and self.slots.weighted:
            raise ConfigError(
                "data.sequences.history keeps ids without weights, but slots are weighted: "
                f"{', '.join(self.slots.weighted)}: leave one of them out"
            )
        if self.click_slots:
            raise ConfigError(
                "data.sequences with click priors (init: click_slots): an instance may be in "
                "several pieces, which would count its click several times: leave one of them out"
            )
        tags = sorted(self.instances.tags - {"time"})
        if self.user_sequences.history.length and tags:
            raise ConfigError(
                f"data.sequences.history keeps slots and times, but not {', '.join(tags)}: leave "
                "one of them out"
            )
        if self.instances.shuffle_by != "instance":
            raise ConfigError(
                f"local_shuffle by {self.instances.shuffle_by}: with data.sequences "
                "(set_merge_by_uid), users are shuffled: call local_shuffle() without arguments"
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

    @property
    def kept_together(self) -> tuple[str, str]:
        """What keeps instances on one rank in a global shuffle, and its slot."""
        if self.user_sequences is not None:
            return "slot", self.user_sequences.user
        return self.instances.shuffle_by, self.instances.shuffle_slot

    def check_negatives(self) -> None:
        """Raises: ConfigError if negatives are sampled, but there is not one label."""
        if not 0 < self.negative_rate <= 1:
            raise ConfigError(
                f"negative_rate: expected a share above 0, at most 1, found {self.negative_rate}"
            )
        if self.negative_rate < 1 and len(self.slots.tasks) != 1:
            raise ConfigError(
                f"data.negative_rate {self.negative_rate}: expected one label, whose negatives are "
                f"sampled, found {', '.join(self.slots.tasks) or 'none'}: remove negative_rate, or "
                "the other labels"
            )

    def check(self) -> None:
        """Raises: ConfigError or ValueError for options that contradict each other."""
        self.slots.check_format(self.format)
        self.check_factors()
        self.check_sequences()
        self.check_user_sequences()
        self.check_negatives()
        self.dedup()
        self.schema()

    @property
    def held_width(self) -> int:
        """The floats of an instance that the feeder holds: those of its slots, then the exact
        values."""
        return self.slots.feed_dense_width + EXACT_FLOATS * len(self.exact)

    def parsing(self) -> dict[str, Any]:
        """Everything that affects how a line is parsed, for the key of the parsed cache."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_PARSING}
        unused = {"table", "of", "pooling"}
        slots = self.slots.model_dump(mode="json", exclude={"slots": {"__all__": unused}})
        return {**chosen, "slots": slots, "chunk_bytes": CHUNK_BYTES}

    def schema(self) -> Any:
        """The native FeedSchema. Raises: ValueError for slots that the format cannot hold."""
        parser, csv = self.instances.parser, self.slots.csv
        like = {"type": "dense", "dim": EXACT_FLOATS, "column": ""}
        exact = [{"name": f"{name} exact", "exact_of": name, **like} for name in self.exact]
        arguments = (
            [*self.slots.fields(), *exact],
            self.key_space is KeySpace.PER_SLOT,
            self.max_line_bytes,
            csv.delimiter + csv.list_separator,
        )
        if is_library(parser):
            # Absolute, because dlopen does not look for a bare name in the current folder.
            return core.FeedSchema("plugin", *arguments, {}, os.path.abspath(parser))
        if parser:  # a Python function returns columns by name
            return core.FeedSchema("parquet", *arguments)
        columns = {**self.slots.tags.model_dump(), "time": self.instances.time_column}
        tags = {tag: columns[tag] for tag in self.instances.tags}
        return core.FeedSchema(
            self.format.value, *arguments, tags, csv_columns=csv.columns, csv_nulls=csv.null
        )


@dataclass
class DatasetOptions:
    """The current settings of one dataset. A pass keeps the `load` that it was loaded with; the
    other fields are read when they are needed.
    """

    seed: int = 0  # for shuffling and sampling
    load: LoadOptions | None = None  # None: init has not been called
    filelist: list[str] = field(default_factory=list)  # paths, folders, globs, URIs
    day: int = 0  # of the passes that are loaded next, in days since 1970
    test_mode: bool = False  # whether these passes evaluate
    shuffle: bool = False  # whether they are shuffled, as load.instances says
    share: Share = NOT_SHARED  # how several ranks share them
    load_threads: Threads = field(default_factory=lambda: Threads(1, 1))
    pack_threads: PackThreads = field(default_factory=lambda: PackThreads(1, 1))
    allow_commands: bool = False  # whether pipe commands and parser plugins may run
    drop_last: bool = False  # whether training drops a last batch that is not full
    use_var: Sequence[Any] | None = None  # variables to feed; None: all packed inputs
    enable_pv_merge: bool = False  # whether the join phase trains on page views
    pv_batch_size: int = 32  # page views in a batch
    phase: int = JOIN  # or UPDATE
    rank_offset: str = ""  # name of the variable that takes RankOffset; "": none
    pool_size: int = 0  # instances that slots_shuffle draws from; 0: set_fea_eval not called
    read_slots: tuple[str, ...] = ()  # slots in the packed inputs; empty: all
    sequences: tuple[str, ...] | None = None  # the sequences among them; None: those of load
    group: str = ""  # sparse slot or log key by which a loss groups instances; "": none
    soft_labels: bool = False  # whether metrics take labels between 0 and 1
    # Slots whose shows and clicks count; None: all in the first phase of a pass, then none.
    counted_slots: tuple[str, ...] | None = None
    # Whether the instances of the open pass were trained in an earlier pass, with click priors.
    repeated: bool = False
    take_priors: TakePriors | None = None  # called when a part begins to train
    # Names of variables -> the inputs of sequences (batches.SEQUENCES) that they take.
    user_sequences: dict[str, str] = field(default_factory=dict)

    def initialised(self) -> LoadOptions:
        """`load`. Raises: PassError before init."""
        if self.load is None:
            raise PassError("the dataset has no slots yet: init is missing")
        return self.load

    def set_instances(self, **changed: Any) -> None:
        """Change fields of `InstanceOptions`.

        Raises: ConfigError for options that contradict each other; ValueError for a plugin that
            cannot be loaded.
        """
        load = self.initialised()
        self.set_load(replace(load, instances=replace(load.instances, **changed)))

    def set_load(self, load: LoadOptions) -> None:
        """Set `load`, of which `instances` or `user_sequences` changed. Raises: as
        `set_instances`."""
        load.instances.check(load.format, load.slots)
        load.check_factors()
        load.check_user_sequences()
        load.schema()  # loads the plugin, so that its error is raised here and not in a thread
        self.load = load

    def set_share(self, by: str, slot: str) -> None:
        """Raises: ConfigError for an unknown value or slot, or an id that is not parsed."""
        known = [str(one) for one in ShareBy if one is not ShareBy.AUTO]
        if by not in known or (by == ShareBy.SLOT) != bool(slot):
            raise ConfigError(
                f"share {by!r}, slot {slot!r}: expected one of {', '.join(known)}, and a slot with "
                "slot only"
            )
        if slot and slot not in self.sparse_names():
            raise ConfigError(
                f"share: slot {slot!r}: not a sparse slot; expected "
                + ", ".join(self.sparse_names())
                + did_you_mean([slot], self.sparse_names())
            )
        tags = self.initialised().instances.tags
        needed = {ShareBy.INS_ID: {"ins_id", "logkey"}, ShareBy.SEARCH_ID: {"logkey"}}
        if by in needed and not tags & needed[ShareBy(by)]:
            raise ConfigError(
                f"share by {by}: instances have no {by}: set_parse_ins_id(True) or "
                "set_parse_logkey(True) is missing (data.logkey in a config)"
            )
        self.share = Share(ShareBy(by), slot)

    def sparse_names(self) -> list[str]:
        """Names of the sparse slots, in the order of the columns."""
        return [slot.name for slot in self.initialised().slots.sparse]

    def sparse_numbers(self, call: str, slots: Sequence[str]) -> list[int]:
        """Positions of these slots among the sparse slots. Raises: ValueError, naming the call, for
        a name that is not a sparse slot."""
        names = self.sparse_names()
        unknown = [slot for slot in slots if slot not in names]
        if unknown:
            raise ValueError(
                f"{call}: {', '.join(unknown)}: not a sparse slot; expected {', '.join(names)}"
                + did_you_mean(unknown, names)
            )
        return [names.index(slot) for slot in slots]
