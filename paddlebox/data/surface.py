"""The settings of PaddleBox's datasets, by the names they have there; docs/dataset.md lists all.

Unless said otherwise a setting is for the passes that are loaded from then on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paddlebox.config.hints import did_you_mean
from paddlebox.data.instance_options import SHUFFLES, InstanceOptions
from paddlebox.data.options import LoadOptions
from paddlebox.data.plugins import is_library, load_function
from paddlebox.errors import ConfigError, PassError

JOIN, UPDATE = 1, 0  # the phases
PV_BATCH_SIZE = 32


class Surface:
    """Settings of `InMemoryDataset`; it has the calls that load and train."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._options: LoadOptions | None = None
        self._allow_commands = False
        self._shuffle_next = False
        self._enable_pv_merge = False
        self._pv_batch_size = PV_BATCH_SIZE
        self._phase = JOIN
        self._rank_offset = ""
        self._pool_size = 0  # 0: set_fea_eval is missing
        self._read_slots: tuple[str, ...] = ()
        self._sequences: tuple[str, ...] | None = None  # None: those of init
        self._counted_slots: tuple[str, ...] | None = None

    def _initialised(self) -> LoadOptions:
        if self._options is None:
            raise PassError("the dataset has no slots yet: init is missing")
        return self._options

    def _set(self, **fields: Any) -> None:
        options = self._initialised()
        wanted = replace(options.instances, **fields)
        wanted.check(options.format, options.slots)
        options = replace(options, instances=wanted)
        options.schema()  # a plugin that cannot be loaded is said here and not in a thread
        self._options = options

    @property
    def _wanted(self) -> InstanceOptions:
        return self._initialised().instances

    # ---- what lines begin with

    def set_parse_ins_id(self, parse_ins_id: bool = True) -> None:
        """MultiSlot lines begin with `1 <ins_id>`; CSV, Parquet and Arrow have it in the column
        that `tags` of slots.yaml names, as the others."""
        self._set(parse_ins_id=parse_ins_id)

    def set_parse_content(self, parse_content: bool = True) -> None:
        """MultiSlot lines have `1 <content>`, after an ins_id."""
        self._set(parse_content=parse_content)

    def set_parse_logkey(self, parse_logkey: bool = True) -> None:
        """MultiSlot lines have `1 <logkey>`, after ins_id and content: an id that holds cmatch,
        rank and search id. A line whose log key is none is malformed."""
        self._set(parse_logkey=parse_logkey)

    # ---- which instances there are

    def set_sample_rate(self, sample_rate: float) -> None:
        """Keeps this share of the instances, chosen by a hash of the seed and the ins_id, or of the
        instance's number where there is none: the same ones whatever the thread count."""
        if not 0 <= sample_rate <= 1:
            raise ValueError(f"set_sample_rate: expected a share in [0, 1], found {sample_rate}")
        self._set(sample_rate=float(sample_rate), sample_seed=self._seed)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Makes one instance of all that have one ins_id.

        Ids with another number of instances than merge_size (0: any number) are dropped, and those
        of which two instances have the same sparse slot. Of a dense slot and the label the last
        that is not zero counts. Instances are then in the order of their id's first line.
        """
        if merge_size < 0:
            raise ValueError(f"set_merge_by_lineid: expected merge_size >= 0, found {merge_size}")
        self._set(merge_size=merge_size)

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that each text file goes through, decompressed; `cat` and "" are none.

        Raises: ConfigError where commands are not allowed.
        """
        command = pipe_command.strip()
        if command in ("", "cat"):
            self._set(pipe_command="")
            return
        if is_library(command.rpartition("|")[2].strip()):
            raise ConfigError(
                f"pipe_command {command!r} ends with a parser plugin: give it to set_so_parser_name"
            )
        self._check_allowed("pipe_command", command)
        self._set(pipe_command=command)

    def set_pipe_timeout(self, seconds: float) -> None:
        """How long a pipe_command may neither take nor give a byte."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"set_pipe_timeout: expected seconds above 0, found {seconds}")
        self._set(pipe_timeout_s=float(seconds))

    def set_so_parser_name(self, parser: str) -> None:
        """A parser plugin for text: the path of a .so with the interface of ops/feed/plugin.h, or
        `module:function`, a Python function from bytes to a dict of columns; "" is none.

        Raises: ConfigError where commands are not allowed, or it cannot be loaded.
        """
        if parser:
            self._check_allowed("parser", parser)
            if not is_library(parser):
                load_function(parser)
        try:
            self._set(parser=parser)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(str(error)) from error

    def _check_allowed(self, name: str, command: str) -> None:
        if not self._allow_commands:
            raise ConfigError(
                f"{name} {command!r} runs code, which is off: set security.allow_commands: true, "
                "or init(allow_commands=True), if you trust whoever wrote it"
            )

    # ---- page views and phases

    def set_rank_offset(self, rank_offset: str) -> None:
        """The variable that batches of page views are fed rank_attention's RankOffset with: (B, 7)
        int32."""
        self._rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Page views a batch, in the join phase."""
        if pv_batch_size < 1:
            raise ValueError(f"set_pv_batch_size: expected at least 1, found {pv_batch_size}")
        self._pv_batch_size = pv_batch_size

    def set_enable_pv_merge(self, enable_pv_merge: bool = True) -> None:
        """The join phase trains on page views: `preprocess_instance` makes them."""
        self._enable_pv_merge = enable_pv_merge

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
        self._phase = current_phase

    def flip_phase(self) -> None:
        """From join to update, or back."""
        self._phase = UPDATE if self._phase == JOIN else JOIN

    def set_counted_slots(self, slots: Sequence[str] | None) -> None:
        """Sparse slots whose shows and clicks the batches that are asked for from now on count; a
        push to others learns alone. None: all of them the first time that a pass is gone through,
        none the second, so that no phase counts what another has."""
        self._counted_slots = None if slots is None else self._sparse_slots("counted", slots)

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
        options = self._initialised()
        chosen = self._sparse_slots("read", slots)
        if len(chosen) and options.dedup() is not False:
            raise ConfigError(
                f"dedup_slots is {options.dedup_slots}, but a model reads {', '.join(chosen)} "
                "alone: leave it off, or let the model read all slots"
            )
        replace(options, sequences=tuple(sequences or ())).check_sequences()
        self._read_slots = chosen
        self._sequences = None if sequences is None else tuple(sequences)

    def _sparse_slots(self, what: str, slots: Sequence[str]) -> tuple[str, ...]:
        names = [slot.name for slot in self._initialised().slots.sparse]
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
        self._pool_size = record_candidate_size if fea_eval else 0

    def local_shuffle(self, by: str = "instance", *, slot: str = "") -> None:
        """Shuffles the pass that is loaded and not yet begun, and those loaded from now on, by
        (seed, number of the pass).

        Args:
            by: what stays together, in the order of the files: an "instance", all of one "ins_id",
                of one "search_id", or of one first feasign of a "slot", such as the user's.
            slot: the name of that sparse slot.

        Raises: PassError when its tag is not parsed, or a pass is being loaded.
        """
        options = self._initialised()
        if by not in SHUFFLES:
            raise ValueError(f"local_shuffle: expected by {', '.join(SHUFFLES)}, found {by!r}")
        names = [sparse.name for sparse in options.slots.sparse]
        if (by == "slot") != bool(slot) or (slot and slot not in names):
            raise ValueError(
                f"local_shuffle: slot {slot!r}: expected one of {', '.join(names)} with by='slot'"
            )
        tags = options.instances.tags
        if by == "search_id" and "logkey" not in tags:
            raise PassError("local_shuffle by search_id: set_parse_logkey(True) is missing")
        if by == "ins_id" and not tags & {"ins_id", "logkey"}:
            raise PassError("local_shuffle by ins_id: set_parse_ins_id(True) is missing")
        changed = not self._shuffle_next or (by, slot) != (
            options.instances.shuffle_by,
            options.instances.shuffle_slot,
        )
        self._check_none_loading(changed)
        self._shuffle_next = True
        self._set(shuffle_by=by, shuffle_slot=slot)
        if changed:
            self._shuffle_loaded()

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, *, by: str = "instance", slot: str = ""
    ) -> None:
        """`local_shuffle` over the instances of all ranks; today there is one.

        Groups are ordered by a hash of the seed and what they have in common, so that a rank's
        share will be a range of it. thread_num is accepted: the result does not depend on it.

        Raises: ConfigError with several ranks.
        """
        del thread_num
        world = fleet.worker_num() if fleet is not None else _world_size()
        if world != 1:
            raise ConfigError(
                f"global_shuffle over {world} ranks is not supported yet; expected one, or "
                "local_shuffle and files that are shuffled already"
            )
        self.local_shuffle(by, slot=slot)

    def _check_none_loading(self, changed: bool) -> None:
        raise NotImplementedError

    def _shuffle_loaded(self) -> None:
        raise NotImplementedError

    def _slot_numbers(self, slots: Sequence[str]) -> list[int]:
        names = [sparse.name for sparse in self._initialised().slots.sparse]
        unknown = [slot for slot in slots if slot not in names]
        if unknown:
            raise ValueError(
                f"slots_shuffle: {', '.join(unknown)}: expected sparse slots, of {', '.join(names)}"
                + did_you_mean(unknown, names)
            )
        return [names.index(slot) for slot in slots]

    # Paddle 3's fleet.BoxPSDataset has these with an underscore.
    _set_rank_offset = set_rank_offset
    _set_pv_batch_size = set_pv_batch_size
    _set_parse_ins_id = set_parse_ins_id
    _set_parse_content = set_parse_content
    _set_parse_logkey = set_parse_logkey
    _set_merge_by_sid = set_merge_by_sid
    _set_enable_pv_merge = set_enable_pv_merge
    _set_fea_eval = set_fea_eval


def _world_size() -> int:
    return int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)
