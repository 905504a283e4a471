"""The options of a dataset: how files become instances (`LoadOptions`), and all else that can be
set (`DatasetOptions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from paddlebox.config import Format, KeySpace, OversizePass, Slots
from paddlebox.config.hints import did_you_mean
from paddlebox.data.cache import ParsedCache
from paddlebox.data.instance_options import InstanceOptions
from paddlebox.data.pipeline import PackThreads, Threads
from paddlebox.data.reader import CHUNK_BYTES
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError, PassError

JOIN, UPDATE = 1, 0  # the phases

# Fields of LoadOptions that what a line becomes does not depend on.
_NOT_PARSING = {
    *("batch_size", "threads", "max_bad_line_ratio", "oversize_pass", "retries"),
    *("dedup_slots", "shuffle_seed", "budget_bytes", "spill_dir", "to_disk", "cache", "tables"),
    *("instances", "sequences"),
}


@dataclass(frozen=True)
class LoadOptions:
    """How files become instances. Fields as in `data` of the configuration."""

    format: Format
    slots: Slots
    batch_size: int
    threads: int = 1
    key_space: KeySpace = KeySpace.SHARED
    max_bad_line_ratio: float = 0.001
    max_line_bytes: int = 1 << 20
    oversize_pass: OversizePass = OversizePass.SPLIT
    retries: int = RETRIES
    dedup_slots: str | Sequence[str] = "off"  # "off", "auto", or names of sparse slots
    shuffle_seed: int | None = None  # None: the order of the files
    instances: InstanceOptions = field(default_factory=InstanceOptions)
    budget_bytes: int = 0  # feeder.budget_bytes; 0: no limit
    spill_dir: Path | None = None  # None: the system's folder for temporary files
    to_disk: bool = False  # the pass lies in spill_dir, whatever its size
    cache: ParsedCache | None = None
    tables: tuple[int, ...] = ()  # (S) of the sparse slots, where there are several
    sequences: tuple[str, ...] = ()  # sparse slots whose ids are fed one by one

    def dedup(self) -> bool | list[int]:
        """False: off, True: auto, else the slots' places among the sparse ones.

        Raises: ConfigError for a name that is no sparse slot.
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
                f"dedup_slots: {', '.join(unknown)}: expected sparse slots, of {', '.join(names)}"
                + did_you_mean(unknown, names)
            )
        return [names.index(name) for name in self.dedup_slots]

    def check_sequences(self) -> None:
        """Raises: ConfigError for one that is no sparse slot or has no max_length; together with
        dedup_slots."""
        self.slots.positions(self.sequences)
        if self.sequences and self.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {self.dedup_slots}, but the ids of {', '.join(self.sequences)} "
                "are fed one by one: leave it off"
            )

    def check(self) -> None:
        """Raises ConfigError or ValueError for what does not go together."""
        self.slots.check_format(self.format)
        self.check_sequences()
        self.dedup()
        self.schema()

    def parsing(self) -> dict[str, Any]:
        """What a line's columns depend on, for the key of the parsed cache."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_PARSING}
        slots = self.slots.model_dump(mode="json", exclude={"slots": {"__all__": {"table"}}})
        return {**chosen, "slots": slots, "chunk_bytes": CHUNK_BYTES}

    def schema(self) -> Any:
        """The native FeedSchema. Raises ValueError for slots that make no sense in this format."""
        slots = self.slots.fields()
        per_slot = self.key_space is KeySpace.PER_SLOT
        csv = self.slots.csv.delimiter + self.slots.csv.list_separator
        return self.instances.schema(
            self.format,
            slots,
            per_slot,
            self.max_line_bytes,
            csv,
            columns=self.slots.tags.model_dump(),
            csv_columns=self.slots.csv.columns,
            csv_nulls=self.slots.csv.null,
        )


@dataclass
class DatasetOptions:
    """The settings of one dataset, as they are now. What a pass is loaded with is a copy (`load`);
    the other fields are read where they are needed.
    """

    seed: int = 0  # of shuffles and samples
    load: LoadOptions | None = None  # None: init is missing
    filelist: list[str] = field(default_factory=list)  # paths, folders, globs, URIs
    day: int = 0  # of the passes that are loaded next, in days since 1970
    test_mode: bool = False  # these passes evaluate
    shuffle: bool = False  # these passes are shuffled, as load.instances says
    load_threads: Threads = field(default_factory=lambda: Threads(1, 1))
    pack_threads: PackThreads = field(default_factory=lambda: PackThreads(1, 1))
    allow_commands: bool = False  # pipe commands and parser plugins may run
    drop_last: bool = False  # of a training pass, a batch that is not full
    use_var: Sequence[Any] | None = None  # variables to feed; None: all packed inputs
    enable_pv_merge: bool = False  # the join phase trains on page views
    pv_batch_size: int = 32  # page views
    phase: int = JOIN  # or UPDATE
    rank_offset: str = ""  # the variable that takes RankOffset; "": none
    pool_size: int = 0  # instances that slots_shuffle draws from; 0: set_fea_eval is missing
    read_slots: tuple[str, ...] = ()  # that packed inputs hold; empty: all
    sequences: tuple[str, ...] | None = None  # held id by id; None: as load says
    counted_slots: tuple[str, ...] | None = None  # None: all, the first time through a pass

    def initialised(self) -> LoadOptions:
        """`load`. Raises PassError before init."""
        if self.load is None:
            raise PassError("the dataset has no slots yet: init is missing")
        return self.load

    def set_instances(self, **changed: Any) -> None:
        """Changes fields of `InstanceOptions`.

        Raises: ConfigError for what does not go together; ValueError for a plugin that cannot be
            loaded.
        """
        load = self.initialised()
        instances = replace(load.instances, **changed)
        instances.check(load.format, load.slots)
        load = replace(load, instances=instances)
        load.schema()  # loads the plugin, so that its error is raised here and not in a thread
        self.load = load

    def sparse_names(self) -> list[str]:
        """The sparse slots, in the order of the columns."""
        return [slot.name for slot in self.initialised().slots.sparse]
