"""The settings of PaddleBox's datasets. They build the options of ours.

docs/upstream_names.md says of each name what it does here. A setting without effect is accepted, so
that a program runs unchanged; one whose effect would be missed raises a ConfigError. Unless its
docstring says otherwise, a setting applies to the passes that are loaded after the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.config import DataConfig, Format, KeySpace, Slot, Slots, SlotType, load_slots
from paddlebox.config.data import MAX_LINE_BYTES, Split
from paddlebox.config.dates import day_of
from paddlebox.data.batches import LOG_KEYS, SEQUENCES, packed
from paddlebox.data.cache import open_cache
from paddlebox.data.dataset import Dataset
from paddlebox.data.options import JOIN, UPDATE, LoadOptions, TakePriors
from paddlebox.data.pipe import TIMEOUT_S
from paddlebox.data.pipeline import load_threads
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.sources import RETRIES
from paddlebox.errors import ConfigError
from paddlebox.store.table_set import TableSet

FEED_TYPES = (
    *("MultiSlotDataFeed", "MultiSlotInMemoryDataFeed", "SlotRecordInMemoryDataFeed"),
    *("PaddleBoxDataFeed", "SlotPaddleBoxDataFeed", "InputTableDataFeed"),
    "MultiSlotFileInstantDataFeed",
)
NO_SLOTS = Slots(slots=())


class Settings(Dataset):
    """A dataset whose options are set one by one.

    Args:
        table: the table, or set of tables, whose rows the passes use.
        seed: for shuffling and sampling.
    """

    _feed_type = "MultiSlotInMemoryDataFeed"

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        # PaddleBox's setters may be called in any order, so there are options from the beginning.
        data = DataConfig.model_construct(
            format=Format.MULTISLOT,
            slots="",
            batch_size=32,  # PaddleBox's default
            key_space=KeySpace.SHARED,
            threads=1,
        )
        super().__init__(LoadOptions(data, NO_SLOTS, seed), table)
        self._filelist: list[str] = []
        self._day = 0  # of the passes that are loaded next, in days since 1970
        self._has_slots = False  # whether init was given slots
        self._uid_slot = ""
        self._shuffle_by_uid = False
        self._merge_by_sid = True
        self._merge_by_uid = False
        self._needs_time = False
        self._own_sequences: SequenceOptions | None = None  # of set_sequences
        # The options of sequences, which apply with _merge_by_uid.
        self._sequence_names: dict[tuple[str, str], str] = {}  # (input, kind) -> variable
        self._sequences = SequenceOptions("", in_join=True, by_count=True, shuffle_pieces=True)
        self._hdfs = ""  # scheme, user and host of paths that begin with hdfs:

    # ---- slots

    def init(
        self,
        *,
        slots: Slots | Path | str | None = None,
        data_format: Format | str = Format.MULTISLOT,
        batch_size: int = 1,
        thread_num: int = 1,
        use_var: Sequence[Any] | None = None,
        label: str = "",
        key_space: KeySpace | str = KeySpace.SHARED,
        max_bad_line_ratio: float = 0.001,
        max_line_bytes: int = MAX_LINE_BYTES,
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
        input_type: int = 0,
        fs_name: str = "",
        fs_ugi: str = "",
        download_cmd: str = "cat",
        data_feed_type: str = "",
        queue_num: int = -1,
        rank_offset: str | None = None,
        pv_batch_size: int | None = None,
        parse_logkey: bool | None = None,
        merge_by_sid: bool | None = None,
        enable_pv_merge: bool | None = None,
    ) -> None:
        """Set the options that a dataset needs: those of Paddle 3's `init`, of sections `data` and
        `feeder` of docs/config.md, and of the methods `set_<argument>`. Call it before the other
        setters: it resets how lines are parsed, and the batch size.

        Args:
            slots: the columns, or the path of a slots.yaml; they need no label. None: `use_var` are
                the slots of a line, as in PaddleBox.
            thread_num, pack_threads: the number of threads; 0: chosen while running, up to the
                number of cores but at most 8, and half as many for pack_threads. Results do not
                depend on it.
            allow_commands: without it, pipe_command and parser are errors.
            sequences: sparse slots with a max_length whose ids the packed inputs hold one by one.
            click_slots: positions of the sparse slots whose shows and clicks follow the dense
                features in the packed inputs.
            exact: dense slots, labels after the first, weights and counts whose values metrics read
                as they are in the data, not rounded to float32 and before clip and log1p.
            max_line_bytes: a longer line is malformed.
            retries: how often a remote file is tried again.
            spill_dir, cache_dir: folders of a pass that is larger than budget_bytes, and of parsed
                files; "": TMPDIR and XDG_CACHE_HOME choose them.
        """
        if isinstance(slots, Path | str):
            slots = load_slots(slots, labelled=False)
        before = self.options.load
        data: dict[str, Any] = {
            "format": Format(data_format),
            "batch_size": batch_size,
            "threads": thread_num,
            "key_space": KeySpace(key_space),
            "max_bad_line_ratio": max_bad_line_ratio,
            "dedup_slots": dedup_slots,
            "pipe_command": pipe_command,
            "parser": parser,
            "logkey": False,
            "drop_last": drop_last,
            "negative_rate": negative_rate,
        }
        self.set_load(
            LoadOptions(
                before.data.model_copy(update=data),
                slots or NO_SLOTS,
                before.seed,
                before.test,
                sequences=tuple(sequences),
                click_slots=tuple(click_slots),
                exact=tuple(exact),
                budget_bytes=budget_bytes,
                spill_dir=Path(spill_dir) if spill_dir else None,
                cache=open_cache(cache_dir, cache_bytes),
                max_line_bytes=max_line_bytes,
                retries=retries,
                allow_commands=allow_commands,
                share=before.share,
            )
        )
        self._has_slots, self._own_sequences = slots is not None, None
        self.options.set_threads(thread_num, pack_threads)
        self.set_pipe_timeout(pipe_timeout_s)
        self.set_input_type(input_type)
        self.set_download_cmd(download_cmd)
        if fs_name or fs_ugi:
            self.set_hdfs_config(fs_name, fs_ugi)
        given: tuple[tuple[Callable[[Any], None], Any], ...] = (
            (self.set_feed_type, data_feed_type or None),
            (self.set_rank_offset, rank_offset),
            (self.set_pv_batch_size, pv_batch_size),
            (self.set_parse_logkey, parse_logkey),
            (self.set_merge_by_sid, merge_by_sid),
            (self.set_enable_pv_merge, enable_pv_merge),
        )
        for setter, value in given:
            if value is not None:
                setter(value)
        self.options.use_var = None
        if use_var:
            self.set_use_var(use_var, label)

    def set_use_var(self, variables: Sequence[Any] | None, label: str = "") -> None:
        """Set the variables to feed, named like slots or packed inputs; None: all packed inputs. If
        `init` was not given slots, they are also the slots of a line, in this order: a float
        variable is a dense slot, an integer variable a sparse one. In dygraph use
        `paddle.static.InputSpec`.

        Args:
            label: without slots, the name of the variable that is the label, a number in [0, 1]
                whose value is the click of `box_show_click`. "": there is none.

        Raises: ValueError for an object that is not a variable, such as a name; ConfigError for a
            label that is not among the variables, or packed inputs without a label.
        """
        for var in (variables,) if isinstance(variables, str) else variables or ():
            if not all(hasattr(var, part) for part in ("name", "shape", "dtype")):
                raise ValueError(
                    f"set_use_var: expected variables, found {var!r} ({type(var).__name__}): pass "
                    "what paddle.static.data returned in your static program, or in dygraph "
                    'paddle.static.InputSpec([None, 1], "int64", NAME)'
                )
        if variables is not None and not self._has_slots:
            others = (self.options.rank_offset, *self.options.user_sequences)
            self.set_load(replace(self.options.load, slots=_slots_of(variables, label, others)))
        self.options.use_var = list(variables) if variables is not None else None

    # ---- files and batches

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of instances of a batch, from the next pass on."""
        self.options.change({"batch_size": batch_size})

    def set_thread(self, thread_num: int) -> None:
        """Set the number of threads that read, parse and key; 0: chosen while running."""
        self.options.change({"threads": thread_num})
        self.options.load_threads = load_threads(thread_num)

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files: paths, folders, globs, URIs, or paths that begin with `hdfs:` after
        `set_hdfs_config`."""
        self._filelist = [self._resolved(path) for path in filelist]

    def _resolved(self, path: str) -> str:
        if path.startswith("hdfs:/") and "://" not in path and self._hdfs:
            return self._hdfs + path.removeprefix("hdfs:")
        return path

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Set the file system of paths that begin with `hdfs:`. fs_name: hdfs://HOST:PORT. fs_ugi:
        USER,PASSWORD; only the user is used. Raises: ConfigError for another file system."""
        scheme, _, host = fs_name.partition("://")
        if scheme != "hdfs" or not host or "@" in host:
            raise ConfigError(
                f"set_hdfs_config: expected hdfs://HOST:PORT, found {fs_name!r}: name files of "
                "other file systems by URIs (s3://, gs://); afs is not public"
            )
        user = fs_ugi.partition(",")[0]
        self._hdfs = f"hdfs://{user}@{host}" if user else f"hdfs://{host}"

    def set_date(self, date: str) -> None:
        """Set the day, YYYYMMDD, of the passes that are loaded from now on. The day before ends
        when the first pass of a later day begins; a pass that trains now belongs to it still."""
        try:
            self._day = day_of(date)
        except ValueError as error:
            raise ValueError(f"set_date: {error}") from None

    def set_test_mode(self, test: bool) -> None:
        """Set whether passes only evaluate: unknown feasigns read as zeros, and no row changes."""
        self.options.change(test=test)

    def set_download_cmd(self, download_cmd: str) -> None:
        """Only accepts `cat` and "". Raises: ConfigError for another command."""
        if download_cmd.strip() not in ("", "cat"):
            raise ConfigError(
                "set_download_cmd: files are not fetched by a command: name them by URIs "
                "(hdfs://, s3://, gs://), or copy them to local disk first. Only `cat` is accepted"
            )

    def set_input_type(self, input_type: int) -> None:
        """Accept 0: each line is one instance. Raises: ConfigError for another type."""
        if input_type != 0:
            raise ConfigError(
                f"set_input_type: expected 0, one instance per line, found {input_type}: let the "
                "data generator write one instance per line"
            )

    def set_feed_type(self, data_feed_type: str) -> None:
        """Only checks the name (ConfigError): all feeds read the format of `init`."""
        if data_feed_type not in FEED_TYPES:
            raise ConfigError(
                f"set_feed_type: expected one of {', '.join(FEED_TYPES)}, found {data_feed_type!r}"
            )
        self._feed_type = data_feed_type

    # ---- tags at the beginning of a line

    def set_parse_ins_id(self, parse_ins_id: bool = True) -> None:
        """Read an id of each instance. MultiSlot lines begin with `1 <ins_id>`; in columnar files
        `tags` of slots.yaml names the columns of id, text and log key."""
        self.options.change(parse_ins_id=parse_ins_id)

    def set_parse_content(self, parse_content: bool = True) -> None:
        """Read a text of each instance. MultiSlot lines have `1 <content>`, after the ins_id."""
        self.options.change(parse_content=parse_content)

    def set_parse_logkey(self, parse_logkey: bool = True) -> None:
        """Read a log key of each instance, an id that holds cmatch, rank and search id. MultiSlot
        lines have `1 <logkey>`, after ins_id and content. A line with an invalid log key is
        malformed."""
        self.options.change({"logkey": parse_logkey})

    # ---- which instances there are

    def set_sample_rate(self, sample_rate: float) -> None:
        """Keep only this share of the instances, chosen by a hash of the seed and the ins_id, or of
        the number of the instance if it has no id."""
        if not 0 <= sample_rate <= 1:
            raise ValueError(f"set_sample_rate: expected a share in [0, 1], found {sample_rate}")
        self.options.change(sample_rate=float(sample_rate))

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Merge all instances with the same ins_id into one, in the order of the first line of each
        id. An id is dropped if it does not have merge_size instances (0: any number), or if two of
        its instances have the same sparse slot. For a dense slot or the label, the last value that
        is not zero counts."""
        if merge_size < 0:
            raise ValueError(f"set_merge_by_lineid: expected merge_size >= 0, found {merge_size}")
        self.options.change(merge_size=merge_size)

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set a shell command that filters each text file after decompression; `cat` and "": none.
        Raises: ConfigError if commands are not allowed."""
        self.options.change({"pipe_command": pipe_command})

    def set_pipe_timeout(self, seconds: float) -> None:
        """A pipe_command that reads and writes nothing for this long is killed."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"set_pipe_timeout: expected seconds above 0, found {seconds}")
        self.options.change(pipe_timeout_s=float(seconds))

    def set_so_parser_name(self, parser: str) -> None:
        """Set a parser plugin for text, the path of a .so with the interface of
        ops/feed/text/plugin.h or `module:function`, a Python function from bytes to a dict of
        columns; "": none. Raises: ConfigError if commands are not allowed, or it cannot be loaded.
        """
        self.options.change({"parser": parser})

    # ---- page views and phases

    def set_rank_offset(self, rank_offset: str) -> None:
        """Set the variable that takes RankOffset, (B, 7) int32, the input of rank_attention. In
        batches that are not page views, datasets with passes give -1 everywhere."""
        self.options.rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Set the number of page views in a batch of the join phase, also in a loaded pass."""
        if pv_batch_size < 1:
            raise ValueError(f"set_pv_batch_size: expected at least 1, found {pv_batch_size}")
        self.options.change({"pv_batch_size": pv_batch_size})

    def set_enable_pv_merge(self, enable_pv_merge: bool = True) -> None:
        """Set whether the join phase trains on page views, which `preprocess_instance` makes."""
        self.options.enable_pv_merge = enable_pv_merge

    def set_merge_by_sid(self, merge_by_sid: bool = True) -> None:
        """Set whether a page view is the instances of one search id, or else each instance."""
        self._merge_by_sid = merge_by_sid

    def set_current_phase(self, current_phase: int) -> None:
        """Set the phase of the batches that are read from now on: 1 for join, 0 for update."""
        if current_phase not in (JOIN, UPDATE):
            raise ValueError(
                f"set_current_phase: expected 1 (join) or 0 (update), found {current_phase}"
            )
        self.options.phase = current_phase

    def flip_phase(self) -> None:
        """Switch from join to update, or back."""
        self.options.phase = UPDATE if self.options.phase == JOIN else JOIN

    # ---- what batches have

    def set_counted_slots(self, slots: Sequence[str] | None) -> None:
        """Set the sparse slots whose shows and clicks are counted by the batches that are read from
        now on; the embeddings of the others are still trained. None: all slots in the first phase
        of a pass, none in the second, which would count the same instances again."""
        if slots is not None:
            self.options.load.sparse_numbers("set_counted_slots", slots)  # checks the names
        self.options.counted_slots = None if slots is None else tuple(slots)

    def set_read_slots(
        self, slots: Sequence[str] = (), sequences: Sequence[str] | None = None
    ) -> None:
        """As `DatasetOptions.set_read_slots`."""
        self.options.set_read_slots(slots, sequences)

    def set_group(self, name: str) -> None:
        """As `DatasetOptions.set_group`."""
        self.options.set_group(name)

    def set_soft_labels(self, soft: bool) -> None:
        """Set whether metrics take labels between 0 and 1, with the formulas of weighted_auc."""
        self.options.soft_labels = soft

    def set_click_priors(self, take: TakePriors | None = None, *, repeated: bool = False) -> None:
        """Set how passes that begin to train from now on treat click priors. take: called with the
        priors of each part of a pass before its first batch. repeated: whether their instances were
        trained before: then they see other counts, and are not counted again."""
        self.options.take_priors, self.options.repeated = take, repeated

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`. It draws from a pool of record_candidate_size instances."""
        if record_candidate_size < 1:
            raise ValueError(
                f"set_fea_eval: expected record_candidate_size >= 1, found {record_candidate_size}"
            )
        self.options.pool_size = record_candidate_size if fea_eval else 0

    def _set_uid_slot(self, uid_slot: str) -> None:
        """Set the slot of the user, for `_set_shuffle_by_uid`."""
        self._uid_slot = uid_slot

    def _set_shuffle_by_uid(self, enable_shuffle_uid: bool) -> None:
        """Set whether shuffles keep the instances of a user together."""
        self._shuffle_by_uid = enable_shuffle_uid

    # ---- sequences of users

    def set_sequences(self, sequences: SequenceOptions | None) -> None:
        """Set how the instances of users are trained as sequences; None: one by one. Raises:
        ConfigError, changing nothing, if the data has no times or other options forbid it."""
        self.options.change(user_sequences=sequences)
        self._own_sequences = sequences

    def set_merge_by_uid(
        self,
        merge_by_uid: bool,
        merge_by_uid_split_method: int = 0,
        merge_by_uid_split_size: int = 0,
        merge_by_uid_split_train_size: int = 0,
        *,
        user: str = "",
        time: str = "time",
    ) -> None:
        """Set whether page views of join are the instances of a user, in the order of time.

        Args:
            merge_by_uid_split_method: 0: one page view of each user; 1: pieces of split_size; 2:
                pieces of split_size, of which the last train_size instances train. A split_size of
                0 is method 0.
            merge_by_uid_split_train_size: 0: half of split_size.
            user: the sparse slot of the user; "": that of `_set_uid_slot`.
            time: the column of the time. In MultiSlot lines, `1 <time>` comes before the slots.

        Raises: ConfigError for another method, or sizes that do not fit.
        """
        self._merge_by_uid = merge_by_uid
        if not merge_by_uid:
            return
        method, size = merge_by_uid_split_method, max(0, merge_by_uid_split_size)
        train = merge_by_uid_split_train_size or size // 2
        if method not in (0, 1, 2):
            raise ConfigError(f"set_merge_by_uid: expected split method 0, 1 or 2, found {method}")
        method = method if size else 0
        if method == 2 and not 0 < train <= size:
            raise ConfigError(
                f"set_merge_by_uid: expected a train size in [1, {size}], found {train}"
            )
        self._sequences = replace(
            self._sequences,
            user=user,
            time=time,
            split=(Split.NONE, Split.DIRECT, Split.MASK)[method],
            max_length=size if method else 0,
            overlap=size - train if method == 2 else 0,
        )

    def set_need_time_info(self, need_time_info: bool) -> None:
        """Set whether batches have times also in update, and without `set_merge_by_uid`."""
        self._needs_time = need_time_info

    def set_shuffle_and_sort(self, shuffle_and_sort: bool) -> None:
        """Set whether the pieces of a user stay in the order of time when page views are
        shuffled."""
        self._sequences = replace(self._sequences, sort_pieces=shuffle_and_sort)

    def set_invalid_users(self, invalid_users: Collection[str]) -> None:
        """Set the users whose instances are page views by themselves."""
        users = tuple(sorted({*invalid_users} - {""}))
        self._sequences = replace(self._sequences, invalid_users=users)

    def set_train_timestamp_range(self, train_timestamp_range: tuple[int, int]) -> None:
        """Set the times [begin, end) of instances that train; (0, 0): all. Earlier ones are
        context, later ones are left out."""
        times = _times("set_train_timestamp_range", train_timestamp_range)
        self._sequences = replace(self._sequences, train_times=times)

    def set_test_timestamp_range(self, test_timestamp_range: tuple[int, int]) -> None:
        """As `set_train_timestamp_range`, for passes that only evaluate."""
        times = _times("set_test_timestamp_range", test_timestamp_range)
        self._sequences = replace(self._sequences, test_times=times)

    def set_ads_offset(self, ads_offset: str) -> None:
        """Set the variable (P + 1, 1) int32 that takes the offsets of the page views by user."""
        self._feed_sequences("box_seq_offsets", ads_offset)

    def set_ads_train_mask(self, ads_train_mask: str) -> None:
        """Set the variable (B, 1) int64 that takes 1 for instances that train, 0 for context."""
        self._feed_sequences("box_train_mask", ads_train_mask)

    def set_ads_cur_timestamp(self, ads_cur_timestamp: str) -> None:
        """Set a variable (B, 1) int64 that takes the times of the instances."""
        self._feed_sequences("box_seq_time", ads_cur_timestamp, "cur")

    def set_ads_show_timestamp(self, ads_show_timestamp: str) -> None:
        """Set a variable (B, 1) int64 that takes the times of the instances."""
        self._feed_sequences("box_seq_time", ads_show_timestamp)

    def _feed_sequences(self, taken: str, name: str, kind: str = "show") -> None:
        """Feed an input of sequences to a variable, in place of an earlier one of the same kind."""
        self._sequence_names[taken, kind] = name
        self.options.user_sequences = {
            name: of for (of, _), name in self._sequence_names.items() if name
        }


def _times(call: str, given: tuple[int, int]) -> tuple[int, int] | None:
    """The range of times; None: all. Raises: ConfigError if it is empty."""
    begin, end = (int(bound) for bound in given)
    if begin == end == 0:
        return None
    if not 0 <= begin < end:
        raise ConfigError(f"{call}: expected 0 <= begin < end, found ({begin}, {end})")
    return begin, end


def _slots_of(variables: Sequence[Any], label: str, others: Collection[str] = ()) -> Slots:
    """One slot per variable, in the order of a line. Packed inputs, log keys and `others`, such as
    the rank offset, are no slots. Raises: ConfigError as `set_use_var`, or if none is a slot."""
    made = {*packed(), *SEQUENCES, *LOG_KEYS, *others}
    read = [var for var in variables if var.name not in made]
    names = [var.name for var in read]
    if not names:
        found = ", ".join(var.name for var in variables) or "none"
        raise ConfigError(
            f"set_use_var: expected at least one variable that is a slot, found {found}: list the "
            "variables of a line, in its order"
        )
    if label and label not in names:
        raise ConfigError(
            f"set_use_var: expected one of {', '.join(names)} as the label, found {label!r}"
        )
    inputs = [var.name for var in variables if var.name in packed()]
    if inputs and not label:
        raise ConfigError(
            f"set_use_var: {', '.join(inputs)}: packed inputs need a label, found none: pass the "
            f"name of one of {', '.join(names)}, set_use_var(variables, label=NAME)"
        )
    return Slots(slots=tuple(_slot_of(var, label) for var in read))


def _slot_of(var: Any, label: str) -> Slot:
    if var.name == label:
        return Slot(name=var.name, type=SlotType.LABEL)
    if "int" in str(var.dtype).lower():
        return Slot(name=var.name, type=SlotType.SPARSE)
    dim = math.prod(var.shape[1:])
    if min(var.shape[1:], default=1) < 1:
        raise ConfigError(
            f"set_use_var: variable {var.name!r} has shape {tuple(var.shape)}, expected (-1, n) "
            "with n known for a slot of floats"
        )
    return Slot(name=var.name, type=SlotType.DENSE, dim=dim)
