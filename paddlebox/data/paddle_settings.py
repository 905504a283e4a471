"""The settings of PaddleBox's datasets, under PaddleBox's names. docs/upstream_names.md lists
PaddleBox's names, and docs/dataset.md ours.

Unless its docstring says otherwise, a setting applies to the passes that are loaded after the call.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.config import Format, KeySpace, Slots, load_slots
from paddlebox.config.dates import day_of
from paddlebox.config.models import SEARCH_ID
from paddlebox.data.batches import LOG_KEYS, MASK, WEIGHT
from paddlebox.data.cache import open_cache
from paddlebox.data.options import JOIN, UPDATE, DatasetOptions, LoadOptions
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.pipeline import LoadThreads, PackThreads, Threads
from paddlebox.data.plugins import is_library, load_function
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError
from paddlebox.store.table_set import TableSet

_MAX_THREADS = 8  # if thread_num is 0
_MAX_PACK_THREADS = 4


class PaddleSettings:
    """Setters. Each checks a value and stores it in the options. The value takes effect when a pass
    is loaded or its batches are read.

    Args:
        table: the tables. They define which table each slot belongs to.
        seed: for shuffling and sampling.
    """

    def __init__(self, table: TableSet, seed: int) -> None:
        self._table = table
        self._options = DatasetOptions(seed=seed)

    def init(
        self,
        *,
        slots: Slots | Path | str,
        data_format: Format | str = Format.MULTISLOT,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Any] | None = None,
        key_space: KeySpace | str = KeySpace.SHARED,
        max_bad_line_ratio: float = 0.001,
        max_line_bytes: int = 1 << 20,
        retries: int = RETRIES,
        drop_last: bool = False,
        pipe_command: str = "",
        pipe_timeout_s: float = TIMEOUT_S,
        parser: str = "",
        allow_commands: bool = False,
        dedup_slots: str | Sequence[str] = "off",
        sequences: Sequence[str] = (),
        click_slots: Sequence[int] = (),
        budget_bytes: int = 0,
        spill_dir: Path | str = "",
        cache_bytes: int = 0,
        cache_dir: Path | str = "",
        pack_threads: int = 0,
        negative_rate: float = 1.0,
        exact: Sequence[str] = (),
    ) -> None:
        """Set the options that a dataset needs. The names are those of
        `paddle.distributed.InMemoryDataset.init`, with additions.

        Args:
            slots: the columns, or the path of a slots.yaml.
            use_var: as for `set_use_var`.
            thread_num, pack_threads: the number of threads; 0: chosen while running, up to the
                number of cores but at most 8, and half as many for pack_threads
                (data/pipeline.py). Results do not depend on it.
            allow_commands: as in section `security` of the config. Without it pipe_command and
                parser are errors.
            sequences: sparse slots with a max_length whose ids the packed inputs hold one by one
                (data/positions.py).
            click_slots: positions of the sparse slots whose shows and clicks follow the dense
                features in the packed inputs (data/click_counts.py).
            exact: dense slots, labels after the first, weights and counts whose values metrics read
                as they are in the data, not rounded to float32 and before clip and log1p.

        The other arguments are as in sections `data` and `feeder` of docs/config.md.
        """
        slots = slots if isinstance(slots, Slots) else load_slots(slots)
        slots.check_counts(self._table.first.config.counts)
        options = self._options
        options.load = LoadOptions(
            format=Format(data_format),
            slots=slots,
            tables=self._table.slot_tables(slots),
            batch_size=batch_size,
            threads=thread_num or _cores(_MAX_THREADS),
            key_space=KeySpace(key_space),
            max_bad_line_ratio=max_bad_line_ratio,
            max_line_bytes=max_line_bytes,
            retries=retries,
            dedup_slots=dedup_slots,
            sequences=tuple(sequences),
            click_slots=tuple(click_slots),
            budget_bytes=budget_bytes,
            spill_dir=Path(spill_dir) if spill_dir else None,
            cache=open_cache(cache_dir, cache_bytes),
            negative_rate=negative_rate,
            exact=tuple(exact),
        )
        options.load.check()
        options.drop_last = drop_last
        options.load_threads = _load_threads(thread_num)
        options.pack_threads = _pack_threads(pack_threads)
        options.allow_commands = allow_commands
        self.set_pipe_timeout(pipe_timeout_s)
        self.set_pipe_command(pipe_command)
        self.set_so_parser_name(parser)
        self.set_use_var(use_var)

    def set_use_var(self, variables: Sequence[Any] | None) -> None:
        """Set the variables to feed. They are named like slots or packed inputs. In dygraph use
        `paddle.static.InputSpec` for the name, shape and dtype.

        Args:
            variables: None: all packed inputs.

        Raises: ValueError for an object that is not a variable, such as a name.
        """
        for var in (variables,) if isinstance(variables, str) else variables or ():
            if not all(hasattr(var, part) for part in ("name", "shape", "dtype")):
                raise ValueError(
                    f"set_use_var: expected variables, found {var!r} ({type(var).__name__}): pass "
                    "what paddle.static.data returned in your static program, or in dygraph "
                    'paddle.static.InputSpec([None, 1], "int64", NAME)'
                )
        self._options.use_var = list(variables) if variables is not None else None

    def set_batch_size(self, batch_size: int) -> None:
        self._options.load = replace(self._options.initialised(), batch_size=batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Set the number of threads that read, parse and key; 0: chosen while running."""
        threads = thread_num or _cores(_MAX_THREADS)
        self._options.load = replace(self._options.initialised(), threads=threads)
        self._options.load_threads = _load_threads(thread_num)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        self._options.filelist = list(filelist)

    def set_date(self, date: str) -> None:
        """Set the day of the passes that are loaded from now on, as YYYYMMDD.

        The day before ends when the first pass of a later day begins. A pass that trains at the
        time of this call still belongs to the day before.
        """
        try:
            self._options.day = day_of(date)
        except ValueError as error:
            raise ValueError(f"set_date: {error}") from None

    def set_test_mode(self, test: bool) -> None:
        """Set whether passes that are loaded from now on only evaluate. Then unknown feasigns read
        as zeros, and no row changes."""
        self._options.test_mode = test

    @property
    def _slots(self) -> Slots:
        """The columns of the input."""
        return self._options.initialised().slots

    @property
    def slot_names(self) -> list[str]:
        return [slot.name for slot in self._options.initialised().slots.slots]

    @property
    def sparse_names(self) -> list[str]:
        return self._options.sparse_names()

    @property
    def tasks(self) -> tuple[str, ...]:
        """(T) names of the labels."""
        return self._options.initialised().slots.tasks

    @property
    def mask_column(self) -> set[str]:
        """The column for metrics with the mask of the instances that count; empty if all do."""
        load = self._options.initialised()
        return {MASK} if load.user_sequences is not None or load.slots.late is not None else set()

    @property
    def weight_column(self) -> set[str]:
        """The column for metrics with the weights of instances; empty without a weight slot."""
        return {WEIGHT} if self._options.initialised().slots.weight is not None else set()

    @property
    def label_variable(self) -> str | None:
        """Name of the variable that is fed the label; None if there is no label, or use_var has no
        such variable."""
        candidates = ("box_label", *self.tasks[:1]) if self.tasks else ()
        if self._options.use_var is None:
            return next(iter(candidates), None)
        fed = [var.name for var in self._options.use_var]
        return next((name for name in candidates if name in fed), None)

    # ---- tags at the beginning of a line

    def set_parse_ins_id(self, parse_ins_id: bool = True) -> None:
        """Read an id of each instance. MultiSlot lines begin with `1 <ins_id>`.

        In CSV, Parquet and Arrow files, `tags` of slots.yaml names the columns of the id, the text
        and the log key.
        """
        self._options.set_instances(parse_ins_id=parse_ins_id)

    def set_parse_content(self, parse_content: bool = True) -> None:
        """Read a text of each instance. MultiSlot lines have `1 <content>`, after the ins_id."""
        self._options.set_instances(parse_content=parse_content)

    def set_parse_logkey(self, parse_logkey: bool = True) -> None:
        """Read a log key of each instance, an id that holds cmatch, rank and search id. MultiSlot
        lines have `1 <logkey>`, after ins_id and content. A line with an invalid log key is
        malformed."""
        self._options.set_instances(parse_logkey=parse_logkey)

    # ---- sequences of users

    def set_sequences(self, sequences: SequenceOptions | None, *, time: str = "") -> None:
        """Set how the instances of users are trained as sequences; None: one by one.

        Args:
            time: without sequences, the column of times that batches may have; "": none.

        Raises: ConfigError if the data has no times, or other options do not allow sequences.
            Nothing changes then.
        """
        options = self._options
        if sequences is not None and options.drop_last:
            raise ConfigError(
                "data.drop_last with sequences of users: a batch has any number of instances: "
                "leave drop_last off"
            )
        if sequences is not None and sequences.history.length and self._table.world.size > 1:
            raise ConfigError(
                f"data.sequences.history: expected one rank, found {self._table.world.size}: a "
                "user may be on another rank in the next pass: set history.length: 0"
            )
        load = replace(options.initialised(), user_sequences=sequences)
        time = time if sequences is None else sequences.time
        options.set_load(replace(load, instances=replace(load.instances, time_column=time)))

    # ---- which instances there are

    def set_sample_rate(self, sample_rate: float) -> None:
        """Keep only this share of the instances. They are chosen by a hash of the seed and the
        ins_id, or of the number of the instance if it has no id. The choice does not depend on the
        number of threads."""
        if not 0 <= sample_rate <= 1:
            raise ValueError(f"set_sample_rate: expected a share in [0, 1], found {sample_rate}")
        self._options.set_instances(sample_rate=float(sample_rate), sample_seed=self._options.seed)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Merge all instances with the same ins_id into one.

        An id is dropped if it does not have merge_size instances (0: any number), or if two of its
        instances have the same sparse slot. For a dense slot or the label, the last value that is
        not zero counts. The merged instances are in the order of the first line of each id.
        """
        if merge_size < 0:
            raise ValueError(f"set_merge_by_lineid: expected merge_size >= 0, found {merge_size}")
        self._options.set_instances(merge_size=merge_size)

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set a shell command that filters each text file after decompression. `cat` and "" mean no
        command.

        Raises: ConfigError if commands are not allowed.
        """
        command = pipe_command.strip()
        if command in ("", "cat"):
            self._options.set_instances(pipe_command="")
            return
        if is_library(command.rpartition("|")[2].strip()):
            raise ConfigError(
                f"pipe_command {command!r} ends with a parser plugin: give it to set_so_parser_name"
            )
        self._check_allowed("pipe_command", command)
        self._options.set_instances(pipe_command=command)

    def set_pipe_timeout(self, seconds: float) -> None:
        """Set the timeout: a pipe_command that reads and writes nothing for this long is killed."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"set_pipe_timeout: expected seconds above 0, found {seconds}")
        self._options.set_instances(pipe_timeout_s=float(seconds))

    def set_so_parser_name(self, parser: str) -> None:
        """Set a parser plugin for text; "" means none.

        Args:
            parser: the path of a .so with the interface of ops/feed/text/plugin.h, or
                `module:function`, a Python function from bytes to a dict of columns.

        Raises: ConfigError if commands are not allowed, or the parser cannot be loaded.
        """
        if parser:
            self._check_allowed("parser", parser)
            if not is_library(parser):
                load_function(parser)
        try:
            self._options.set_instances(parser=parser)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(str(error)) from error

    def _check_allowed(self, name: str, command: str) -> None:
        if not self._options.allow_commands:
            raise ConfigError(
                f"{name} {command!r} runs code, which is off: set security.allow_commands: true, "
                "or init(allow_commands=True), if you trust its author"
            )

    # ---- page views and phases

    def set_rank_offset(self, rank_offset: str) -> None:
        """Set the name of the variable that takes RankOffset, (B, 7) int32, the input of
        rank_attention. Batches of page views have it; the datasets of paddlebox.compat with passes
        give -1 everywhere in other batches."""
        self._options.rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Set the number of page views in a batch of the join phase."""
        if pv_batch_size < 1:
            raise ValueError(f"set_pv_batch_size: expected at least 1, found {pv_batch_size}")
        self._options.pv_batch_size = pv_batch_size

    def set_enable_pv_merge(self, enable_pv_merge: bool = True) -> None:
        """Set whether the join phase trains on page views, which `preprocess_instance` makes."""
        self._options.enable_pv_merge = enable_pv_merge

    def set_merge_by_sid(self, merge_by_sid: bool = True) -> None:
        """Accepted for compatibility. A page view always consists of the instances of one search
        id.

        Raises: ConfigError for False.
        """
        if not merge_by_sid:
            raise ConfigError("set_merge_by_sid(False): page views are always made by search id")

    def set_current_phase(self, current_phase: int) -> None:
        """Set the phase of the batches that are read from now on: 1 for join, 0 for update."""
        if current_phase not in (JOIN, UPDATE):
            raise ValueError(
                f"set_current_phase: expected 1 (join) or 0 (update), found {current_phase}"
            )
        self._options.phase = current_phase

    def flip_phase(self) -> None:
        """Switch from join to update, or back."""
        self._options.phase = UPDATE if self._options.phase == JOIN else JOIN

    def set_counted_slots(self, slots: Sequence[str] | None) -> None:
        """Set the sparse slots whose shows and clicks are counted by the batches that are read from
        now on. The embeddings of the other slots are still trained.

        Args:
            slots: None: all slots in the first phase of a pass, none in the second, so that the
                second phase does not count the same instances again.
        """
        if slots is not None:
            self._options.sparse_numbers("set_counted_slots", slots)  # checks the names
        self._options.counted_slots = None if slots is None else tuple(slots)

    def set_read_slots(
        self, slots: Sequence[str] = (), sequences: Sequence[str] | None = None
    ) -> None:
        """Set the slots in the packed inputs of the batches that are read from now on.

        Args:
            slots: sparse slots. The others read as if they were empty, and get no gradient. Empty:
                all slots are read.
            sequences: the slots among them whose ids are fed one by one; None: the sequences of
                `init`.

        Raises: ConfigError for `slots` with dedup_slots, because lists and ids are then shared.
        """
        options = self._options.initialised()
        self._options.sparse_numbers("set_read_slots", slots)  # checks the names
        if slots and options.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {options.dedup_slots}, but a model reads only "
                f"{', '.join(slots)}: leave dedup_slots off, or let the model read all slots"
            )
        replace(options, sequences=tuple(sequences or ())).check_sequences()
        self._options.read_slots = tuple(slots)
        self._options.sequences = None if sequences is None else tuple(sequences)

    def set_group(self, name: str) -> None:
        """Set the groups whose instances a loss compares, which batches have as box_group: equal
        values of a sparse slot, or "search_id" for page views; "": none.

        Raises: ConfigError if log keys are not parsed; ValueError for an unknown slot.
        """
        if name == SEARCH_ID and not self._options.initialised().instances.parse_logkey:
            raise ConfigError(
                "group search_id: instances have no search id: set_parse_logkey(True) is missing "
                "(data.logkey in a config)"
            )
        if name not in ("", SEARCH_ID):
            self._options.sparse_numbers("set_group", [name])  # checks the name
        self._options.group = LOG_KEYS[0] if name == SEARCH_ID else name

    @property
    def soft_labels(self) -> bool:
        """Whether metrics take labels between 0 and 1."""
        return self._options.soft_labels

    def set_soft_labels(self, soft: bool) -> None:
        """Set whether metrics take labels between 0 and 1. The usual metrics then have the formulas
        of weighted_auc."""
        self._options.soft_labels = soft

    # ---- shuffles

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`. It draws from a pool of record_candidate_size instances."""
        if record_candidate_size < 1:
            raise ValueError(
                f"set_fea_eval: expected record_candidate_size >= 1, found {record_candidate_size}"
            )
        self._options.pool_size = record_candidate_size if fea_eval else 0

    # Paddle 3's fleet.BoxPSDataset has these with an underscore.
    _set_rank_offset = set_rank_offset
    _set_pv_batch_size = set_pv_batch_size
    _set_parse_ins_id = set_parse_ins_id
    _set_parse_content = set_parse_content
    _set_parse_logkey = set_parse_logkey
    _set_merge_by_sid = set_merge_by_sid
    _set_enable_pv_merge = set_enable_pv_merge
    _set_fea_eval = set_fea_eval


def _cores(most: int) -> int:
    return max(1, min(most, len(os.sched_getaffinity(0))))


def _load_threads(thread_num: int) -> Threads:
    """thread_num: 0: chosen while running."""
    most = thread_num or _cores(_MAX_THREADS)
    return Threads(most, most) if thread_num else LoadThreads(most)


def _pack_threads(pack_threads: int) -> PackThreads:
    """pack_threads: 0: chosen while running."""
    most = max(1, _cores(2 * _MAX_PACK_THREADS) // 2)
    return PackThreads(pack_threads or 1, pack_threads or most)
