"""UpstreamDataset: the settings of PaddleBox's datasets that ours do not have.

docs/upstream_names.md says of each what it does here. A setting that has no effect here is
accepted, so that a program runs unchanged; a setting whose effect would be missed raises a
ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from paddlebox.compat.derived_slots import slots_of
from paddlebox.config import Format, Slots, SlotType, load_slots
from paddlebox.config.data import ShareBy, Split
from paddlebox.data.dataset import Dataset
from paddlebox.data.options import LoadOptions
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.share import Share
from paddlebox.errors import ConfigError, PassError
from paddlebox.store.table_set import TableSet

FEED_TYPES = (
    *("MultiSlotDataFeed", "MultiSlotInMemoryDataFeed", "SlotRecordInMemoryDataFeed"),
    *("PaddleBoxDataFeed", "SlotPaddleBoxDataFeed", "InputTableDataFeed"),
    "MultiSlotFileInstantDataFeed",
)
_BATCH_SIZE = 32  # PaddleBox's default
_NO_SLOTS = Slots(slots=())
_DISTRIBUTED = ("merge_size", "parse_ins_id", "parse_content", "fea_eval", "candidate_size")
_TUNING = ("fleet_send_batch_size", "fleet_send_sleep_seconds")


class UpstreamDataset(Dataset):
    """The base of the datasets in datasets.py.

    Args:
        table: the table, or set of tables, whose rows the passes use.
        seed: for shuffling and sampling.
    """

    _feed_type = "MultiSlotInMemoryDataFeed"

    def __init__(self, table: TableSet, *, seed: int = 0) -> None:
        super().__init__(table, seed=seed)
        # PaddleBox's setters may be called in any order, so there are options from the beginning.
        self._options.load = LoadOptions(Format.MULTISLOT, _NO_SLOTS, _BATCH_SIZE)
        self._has_slots = False  # whether init was given slots
        self._uid_slot = ""
        self._shuffle_by_uid = False
        self._merge_by_sid = True
        self._merge_by_uid = False
        self._needs_time = False
        # The options of sequences, which apply with _merge_by_uid.
        self._sequence_names: dict[tuple[str, str], str] = {}  # (input, kind) -> variable
        self._sequences = SequenceOptions("", in_join=True, by_count=True, shuffle_pieces=True)
        self._hdfs = ""  # scheme, user and host of paths that begin with hdfs:

    # ---- slots

    def init(
        self,
        *,
        slots: Slots | Path | str | None = None,
        batch_size: int = 1,
        use_var: Sequence[Any] | None = None,
        label: str = "",
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
        **options: Any,
    ) -> None:
        """Set the options that a dataset needs, with the arguments of Paddle 3's `init`. Call it
        before the other setters: it resets how lines are parsed, and the batch size.

        Args:
            slots: as in our `init`, but they need no label; None: `use_var` are the slots of a
                line, as in PaddleBox.
            label: as for `set_use_var`.
            options: the other arguments of our `init`.

        The remaining arguments are as in the methods of the same name.
        """
        if isinstance(slots, Path | str):
            slots = load_slots(slots, labelled=False)
        super().init(slots=slots or _NO_SLOTS, batch_size=batch_size, **options)
        self._has_slots = slots is not None
        self.set_input_type(input_type)
        self.set_download_cmd(download_cmd)
        if fs_name or fs_ugi:
            self.set_hdfs_config(fs_name, fs_ugi)
        if data_feed_type:
            self.set_feed_type(data_feed_type)
        self.set_queue_num(queue_num)
        if rank_offset is not None:
            self.set_rank_offset(rank_offset)
        if pv_batch_size is not None:
            self.set_pv_batch_size(pv_batch_size)
        if parse_logkey is not None:
            self.set_parse_logkey(parse_logkey)
        if merge_by_sid is not None:
            self.set_merge_by_sid(merge_by_sid)
        if enable_pv_merge is not None:
            self.set_enable_pv_merge(enable_pv_merge)
        if use_var:
            self.set_use_var(use_var, label)

    def set_use_var(self, variables: Sequence[Any] | None, label: str = "") -> None:
        """Set the variables to feed. If `init` was not given slots, they are also the slots of a
        line, in this order: a float variable is a dense slot, an integer variable a sparse one.

        Args:
            variables: None: all packed inputs.
            label: without slots, the name of the variable that is the label, a number in [0, 1]
                whose value is the click of `box_show_click`. "": there is none: the program makes
                its targets and clicks from any slot.

        Raises: ValueError for an object that is not a variable; ConfigError for a label that is not
            among the variables, or packed inputs without a label.
        """
        super().set_use_var(variables)
        if variables is not None and not self._has_slots:
            others = (self._options.rank_offset, *self._options.user_sequences)
            slots = slots_of(variables, label, others)
            load = replace(self._options.initialised(), slots=slots)
            load = replace(load, tables=self._table.slot_tables(slots))
            load.check()
            self._options.load = load

    def _check_ready(self) -> None:
        """Call it before a pass is loaded. With page views by user, ranks exchange the instances
        of their own files. Raises: PassError if there are no slots."""
        if self._options.initialised().slots is _NO_SLOTS:
            raise PassError("the dataset has no slots yet: init or set_use_var is missing")
        time = self._sequences.time if self._needs_time else ""
        self.set_sequences(self._uid_sequences() if self._merge_by_uid else None, time=time)
        chosen = self._options.share
        own_files = chosen.by is ShareBy.FILES or chosen.own_files
        if self._merge_by_uid and own_files and self._table.world.size > 1:
            by, slot = self._options.initialised().kept_together
            self._options.share = Share(ShareBy(by), slot, own_files=True)

    def _uid_sequences(self) -> SequenceOptions:
        """The options of sequences. Raises: ConfigError without the slot of the user."""
        user = self._sequences.user or self._uid_slot
        if not user:
            raise ConfigError(
                "set_merge_by_uid: expected the slot of the user, found none: call "
                "set_merge_by_uid(..., user=NAME), or _set_uid_slot(NAME)"
            )
        return replace(self._sequences, user=user)

    # ---- settings

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set the files: paths, folders, globs, URIs, or paths that begin with `hdfs:` after
        `set_hdfs_config`."""
        super().set_filelist([self._resolved(path) for path in filelist])

    def _resolved(self, path: str) -> str:
        if path.startswith("hdfs:/") and "://" not in path and self._hdfs:
            return self._hdfs + path.removeprefix("hdfs:")
        return path

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Set the file system of paths that begin with `hdfs:`.

        Args:
            fs_name: hdfs://HOST:PORT.
            fs_ugi: USER,PASSWORD; only the user is used.

        Raises: ConfigError for another file system.
        """
        scheme, _, host = fs_name.partition("://")
        if scheme != "hdfs" or not host or "@" in host:
            raise ConfigError(
                f"set_hdfs_config: expected hdfs://HOST:PORT, found {fs_name!r}: name files of "
                "other file systems by URIs (s3://, gs://); afs is not public"
            )
        user = fs_ugi.partition(",")[0]
        self._hdfs = f"hdfs://{user}@{host}" if user else f"hdfs://{host}"

    def set_download_cmd(self, download_cmd: str) -> None:
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
        """Check the name of a feed. All of them read the format of `init`.

        Raises: ConfigError for an unknown name.
        """
        if data_feed_type not in FEED_TYPES:
            raise ConfigError(
                f"set_feed_type: expected one of {', '.join(FEED_TYPES)}, found {data_feed_type!r}"
            )
        self._feed_type = data_feed_type

    def set_merge_by_sid(self, merge_by_sid: bool = True) -> None:
        """Set whether a page view consists of the instances of one search id. If not, each instance
        is a page view."""
        self._merge_by_sid = merge_by_sid

    def desc(self) -> str:
        """The settings as the text of Paddle's DataFeedDesc."""
        from paddle.base.proto import data_feed_pb2

        options, load = self._options, self._options.initialised()
        made = data_feed_pb2.DataFeedDesc(
            name=self._feed_type,
            batch_size=load.batch_size,
            pipe_command=load.instances.pipe_command or "cat",
            rank_offset=options.rank_offset,
            pv_batch_size=options.pv_batch_size,
            so_parser_name=load.instances.parser,
        )
        made.multi_slot_desc.uid_slot = self._uid_slot
        used = {var.name for var in options.use_var} if options.use_var is not None else None
        for slot in load.slots.slots if load.slots is not _NO_SLOTS else ():
            sparse = slot.type is SlotType.SPARSE
            made.multi_slot_desc.slots.add(
                name=slot.name,
                type="uint64" if sparse else "float",
                is_dense=not sparse,
                is_used=used is None or slot.name in used,
                shape=[] if sparse else [-1, slot.dim],
            )
        return str(made)

    # ---- shuffles by user

    def _set_uid_slot(self, uid_slot: str) -> None:
        """Set the slot of the user, for `_set_shuffle_by_uid`."""
        self._uid_slot = uid_slot

    def _set_shuffle_by_uid(self, enable_shuffle_uid: bool) -> None:
        """Set whether shuffles keep the instances of a user together."""
        self._shuffle_by_uid = enable_shuffle_uid

    def local_shuffle(self, by: str = "", *, slot: str = "") -> None:
        """As our `local_shuffle`. by: "": "slot" after `_set_shuffle_by_uid`, else "instance"."""
        if not by and self._shuffle_by_uid:
            by, slot = "slot", self._uid_slot
        super().local_shuffle(by or "instance", slot=slot)

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, *, by: str = "", slot: str = ""
    ) -> None:
        """As our `global_shuffle`. by: as for `local_shuffle`."""
        super().global_shuffle(fleet, thread_num, by=by, slot=slot)

    # ---- accepted without effect

    def set_queue_num(self, queue_num: int) -> None:
        """Accepted without effect: there is one queue of batches."""

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Accepted without effect: there is no parameter server."""

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: int = 0) -> None:
        """Accepted without effect: there is no parameter server."""

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        """Accepted without effect: the unique feasigns of a pass are always computed."""

    def generate_local_tables_unlock(
        self,
        table_id: int,
        fea_dim: int,
        read_thread_num: int,
        consume_thread_num: int,
        shard_num: int,
    ) -> None:
        """Accepted without effect: the rows of a pass are staged before it begins."""

    def _set_trainer_num(self, trainer_num: int) -> None:
        """Accepted without effect: the launcher sets the number of ranks."""

    def _set_use_ps_gpu(self, use_ps_gpu: Any) -> None:
        """Accepted without effect: there is no parameter server."""

    def _set_heter_ps(self, enable_heter_ps: bool = False) -> None:
        """Accepted without effect: there is no parameter server."""

    # ---- sequences of users

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
        """Set the times [begin, end) of the instances that train; (0, 0): all. Earlier ones are
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
        self._options.user_sequences = {
            name: of for (of, _), name in self._sequence_names.items() if name
        }

    # ---- refused

    def set_graph_config(self, config: Any) -> NoReturn:
        raise ConfigError(
            "set_graph_config: there is no graph training: PGLBox is not part of this"
        )

    def tdm_sample(self, *arguments: Any, **named: Any) -> NoReturn:
        raise ConfigError("tdm_sample: there are no tree models (TDM, JTM)")

    def _prepare_to_run(self) -> NoReturn:
        raise ConfigError(
            "_prepare_to_run: Paddle's executor cannot read this dataset: call "
            "`paddlebox.train_from_dataset(exe, program, dataset, loss=loss)`"
        )

    # ---- Paddle 3: settings by keyword, and setters with an underscore

    def update_settings(self, **settings: Any) -> None:
        """Change settings. The keywords are those of `init` and `_init_distributed_settings`.

        Raises: ConfigError for an unknown keyword.
        """
        hdfs = {key: settings.pop(key) for key in ("fs_name", "fs_ugi") if key in settings}
        if hdfs:
            self.set_hdfs_config(hdfs.get("fs_name", ""), hdfs.get("fs_ugi", ""))
        distributed = {
            key: settings.pop(key) for key in (*_DISTRIBUTED, *_TUNING) if key in settings
        }
        setters: dict[str, Callable[[Any], None]] = {
            "batch_size": self.set_batch_size,
            "thread_num": self.set_thread,
            "use_var": self.set_use_var,
            "pipe_command": self.set_pipe_command,
            "input_type": self.set_input_type,
            "download_cmd": self.set_download_cmd,
            "data_feed_type": self.set_feed_type,
            "queue_num": self.set_queue_num,
        }
        _check_known("update_settings", settings, (*setters, *_DISTRIBUTED, *_TUNING))
        for key, value in settings.items():
            setters[key](value)
        self._init_distributed_settings(**distributed)

    def _init_distributed_settings(self, **settings: Any) -> None:
        """Set ids, merging and slots_shuffle. Raises: ConfigError for an unknown keyword."""
        _check_known("_init_distributed_settings", settings, (*_DISTRIBUTED, *_TUNING))
        if settings.get("merge_size", -1) > 0:
            self.set_merge_by_lineid(settings["merge_size"])
        if "parse_ins_id" in settings:
            self.set_parse_ins_id(settings["parse_ins_id"])
        if "parse_content" in settings:
            self.set_parse_content(settings["parse_content"])
        if settings.get("fea_eval"):
            self.set_fea_eval(settings.get("candidate_size", 10000))

    def _set_feed_type(self, data_feed_type: str) -> None:
        self.set_feed_type(data_feed_type)

    _set_batch_size = Dataset.set_batch_size
    _set_thread = Dataset.set_thread
    _set_pipe_command = Dataset.set_pipe_command
    _set_merge_by_lineid = Dataset.set_merge_by_lineid
    _set_merge_by_sid = set_merge_by_sid
    _set_use_var = set_use_var
    _set_input_type = set_input_type
    _set_hdfs_config = set_hdfs_config
    _set_download_cmd = set_download_cmd
    _set_queue_num = set_queue_num
    _set_fleet_send_batch_size = set_fleet_send_batch_size
    _set_fleet_send_sleep_seconds = set_fleet_send_sleep_seconds
    _set_generate_unique_feasigns = set_generate_unique_feasigns
    _generate_local_tables_unlock = generate_local_tables_unlock
    _desc = desc


def _times(call: str, given: tuple[int, int]) -> tuple[int, int] | None:
    """The range of times; None: all. Raises: ConfigError if it is empty."""
    begin, end = (int(bound) for bound in given)
    if begin == end == 0:
        return None
    if not 0 <= begin < end:
        raise ConfigError(f"{call}: expected 0 <= begin < end, found ({begin}, {end})")
    return begin, end


def _check_known(call: str, settings: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(f"{call}: {', '.join(unknown)}: expected {', '.join(known)}")
