"""The settings of PaddleBox's datasets, by the names they have there; docs/dataset.md lists all.

Unless said otherwise a setting is for the passes that are loaded from then on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.config import Format, KeySpace, OversizePass, Slots, load_slots
from paddlebox.config.dates import day_of
from paddlebox.config.hints import did_you_mean
from paddlebox.data.cache import open_cache
from paddlebox.data.options import JOIN, UPDATE, DatasetOptions, LoadOptions
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.pipeline import LoadThreads, PackThreads, Threads
from paddlebox.data.plugins import is_library, load_function
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError
from paddlebox.store.table_set import TableSet

_MAX_THREADS = 8  # where thread_num leaves the number open
_MAX_PACK_THREADS = 4


class PaddleSettings:
    """Setters that check a value and put it into the options; nothing happens until a pass is
    loaded or its batches are asked for.

    Args:
        table: whose slots `init` takes. seed: of shuffles and samples.
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
        oversize_pass: OversizePass | str = OversizePass.SPLIT,
        retries: int = RETRIES,
        drop_last: bool = False,
        pipe_command: str = "",
        pipe_timeout_s: float = TIMEOUT_S,
        parser: str = "",
        allow_commands: bool = False,
        dedup_slots: str | Sequence[str] = "off",
        sequences: Sequence[str] = (),
        budget_bytes: int = 0,
        spill_dir: Path | str = "",
        cache_bytes: int = 0,
        cache_dir: Path | str = "",
        pack_threads: int = 0,
    ) -> None:
        """Names as `paddle.distributed.InMemoryDataset.init`, and what this feeder needs beyond.

        Args:
            slots: the columns, or the path of a slots.yaml. The rest as `data` and `feeder` in
                docs/config.md.
            thread_num, pack_threads: 0: tuned while it runs by what waits (data/pipeline.py), up to
                the cores that there are. No result depends on either.
            allow_commands: as `security` there: without it no pipe_command and no parser.
            sequences: sparse slots with a max_length whose ids the packed inputs hold one by one:
                see data/positions.py.
        """
        slots = slots if isinstance(slots, Slots) else load_slots(slots)
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
            oversize_pass=OversizePass(oversize_pass),
            retries=retries,
            dedup_slots=dedup_slots,
            sequences=tuple(sequences),
            budget_bytes=budget_bytes,
            spill_dir=Path(spill_dir) if spill_dir else None,
            cache=open_cache(cache_dir, cache_bytes),
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
        """Variables to feed, named like slots or packed inputs; None: all packed inputs. In dygraph
        a `paddle.static.InputSpec` says the name, shape and dtype.

        Raises: ValueError for what is no variable, such as a name.
        """
        for var in (variables,) if isinstance(variables, str) else variables or ():
            if not all(hasattr(var, part) for part in ("name", "shape", "dtype")):
                raise ValueError(
                    f"set_use_var: expected variables, found {var!r} ({type(var).__name__}): give "
                    "those of your static program, as paddle.static.data returns them, or in "
                    'dygraph paddle.static.InputSpec([None, 1], "int64", NAME)'
                )
        self._options.use_var = list(variables) if variables is not None else None

    def set_batch_size(self, batch_size: int) -> None:
        self._options.load = replace(self._options.initialised(), batch_size=batch_size)

    def set_thread(self, thread_num: int) -> None:
        """Threads that read, parse and key; 0: tuned while it runs by what waits."""
        threads = thread_num or _cores(_MAX_THREADS)
        self._options.load = replace(self._options.initialised(), threads=threads)
        self._options.load_threads = _load_threads(thread_num)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        self._options.filelist = list(filelist)

    def set_date(self, date: str) -> None:
        """The day of the passes that are loaded from now on, as YYYYMMDD.

        Where it is a later one, the day before ends when the first of them begins, with
        ``table.life.auto``: the pass that trains meanwhile belongs to it still.
        """
        try:
            self._options.day = day_of(date)
        except ValueError as error:
            raise ValueError(f"set_date: {error}") from None

    def set_test_mode(self, test: bool) -> None:
        """Passes loaded from now on evaluate: absent feasigns read as zeros, nothing changes."""
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
    def label_variable(self) -> str | None:
        """The variable that is fed the label; None when use_var has none."""
        if self._options.use_var is None:
            return "box_label"
        fed = [var.name for var in self._options.use_var]
        candidates = ("box_label", self._options.initialised().slots.label.name)
        return next((name for name in candidates if name in fed), None)

    # ---- what lines begin with

    def set_parse_ins_id(self, parse_ins_id: bool = True) -> None:
        """MultiSlot lines begin with `1 <ins_id>`; CSV, Parquet and Arrow have it in the column
        that `tags` of slots.yaml names, as the others."""
        self._options.set_instances(parse_ins_id=parse_ins_id)

    def set_parse_content(self, parse_content: bool = True) -> None:
        """MultiSlot lines have `1 <content>`, after an ins_id."""
        self._options.set_instances(parse_content=parse_content)

    def set_parse_logkey(self, parse_logkey: bool = True) -> None:
        """MultiSlot lines have `1 <logkey>`, after ins_id and content: an id that holds cmatch,
        rank and search id. A line whose log key is none is malformed."""
        self._options.set_instances(parse_logkey=parse_logkey)

    # ---- which instances there are

    def set_sample_rate(self, sample_rate: float) -> None:
        """Keeps this share of the instances, chosen by a hash of the seed and the ins_id, or of the
        instance's number where there is none: the same ones whatever the thread count."""
        if not 0 <= sample_rate <= 1:
            raise ValueError(f"set_sample_rate: expected a share in [0, 1], found {sample_rate}")
        self._options.set_instances(sample_rate=float(sample_rate), sample_seed=self._options.seed)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Makes one instance of all that have one ins_id.

        Ids with another number of instances than merge_size (0: any number) are dropped, and those
        of which two instances have the same sparse slot. Of a dense slot and the label the last
        that is not zero counts. Instances are then in the order of their id's first line.
        """
        if merge_size < 0:
            raise ValueError(f"set_merge_by_lineid: expected merge_size >= 0, found {merge_size}")
        self._options.set_instances(merge_size=merge_size)

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that each text file goes through, decompressed; `cat` and "" are none.

        Raises: ConfigError where commands are not allowed.
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
        """How long a pipe_command may neither take nor give a byte."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"set_pipe_timeout: expected seconds above 0, found {seconds}")
        self._options.set_instances(pipe_timeout_s=float(seconds))

    def set_so_parser_name(self, parser: str) -> None:
        """A parser plugin for text: the path of a .so with the interface of
        ops/feed/text/plugin.h, or `module:function`, a Python function from bytes to a dict of
        columns; "" is none.

        Raises: ConfigError where commands are not allowed, or it cannot be loaded.
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
                "or init(allow_commands=True), if you trust whoever wrote it"
            )

    # ---- page views and phases

    def set_rank_offset(self, rank_offset: str) -> None:
        """The variable that batches of page views are fed rank_attention's RankOffset with: (B, 7)
        int32."""
        self._options.rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Page views a batch, in the join phase."""
        if pv_batch_size < 1:
            raise ValueError(f"set_pv_batch_size: expected at least 1, found {pv_batch_size}")
        self._options.pv_batch_size = pv_batch_size

    def set_enable_pv_merge(self, enable_pv_merge: bool = True) -> None:
        """The join phase trains on page views: `preprocess_instance` makes them."""
        self._options.enable_pv_merge = enable_pv_merge

    def set_merge_by_sid(self, merge_by_sid: bool = True) -> None:
        """Page views are instances of one search id; there are no others here."""
        if not merge_by_sid:
            raise ConfigError(
                "set_merge_by_sid(False): page views by anything but the search id are not made"
            )

    def set_current_phase(self, current_phase: int) -> None:
        """1 join, 0 update: of the batches that are asked for from now on."""
        if current_phase not in (JOIN, UPDATE):
            raise ValueError(
                f"set_current_phase: expected 1 (join) or 0 (update), found {current_phase}"
            )
        self._options.phase = current_phase

    def flip_phase(self) -> None:
        """From join to update, or back."""
        self._options.phase = UPDATE if self._options.phase == JOIN else JOIN

    def set_counted_slots(self, slots: Sequence[str] | None) -> None:
        """Sparse slots whose shows and clicks the batches that are asked for from now on count; a
        push to others learns alone. None: all of them the first time that a pass is gone through,
        none the second, so that no phase counts what another has."""
        chosen = None if slots is None else self._sparse_slots("counted", slots)
        self._options.counted_slots = chosen

    def set_read_slots(
        self, slots: Sequence[str] = (), sequences: Sequence[str] | None = None
    ) -> None:
        """What the packed inputs of batches that are asked for from now on hold.

        Args:
            slots: sparse slots; the others read as if they were absent, and get no gradient. Empty:
                all.
            sequences: those among them that are fed id by id; None: as init says.

        Raises: ConfigError with dedup_slots, whose lists several instances share.
        """
        options = self._options.initialised()
        chosen = self._sparse_slots("read", slots)
        if len(chosen) and options.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {options.dedup_slots}, but a model reads {', '.join(chosen)} "
                "alone: leave it off, or let the model read all slots"
            )
        replace(options, sequences=tuple(sequences or ())).check_sequences()
        self._options.read_slots = chosen
        self._options.sequences = None if sequences is None else tuple(sequences)

    def _sparse_slots(self, what: str, slots: Sequence[str]) -> tuple[str, ...]:
        names = self._options.sparse_names()
        unknown = [slot for slot in slots if slot not in names]
        if unknown:
            raise ValueError(
                f"set_{what}_slots: {', '.join(unknown)}: expected sparse slots, of "
                f"{', '.join(names)}{did_you_mean(unknown, names)}"
            )
        return tuple(slots)

    # ---- shuffles

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allows `slots_shuffle`, with a pool of that many instances."""
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
    """0: tuned."""
    most = thread_num or _cores(_MAX_THREADS)
    return Threads(most, most) if thread_num else LoadThreads(most)


def _pack_threads(pack_threads: int) -> PackThreads:
    """0: tuned."""
    most = max(1, _cores(2 * _MAX_PACK_THREADS) // 2)
    return PackThreads(pack_threads or 1, pack_threads or most)
