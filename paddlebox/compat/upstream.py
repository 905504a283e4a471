"""UpstreamDataset: the passes of PaddleBox's datasets, and its names that have no effect here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paddlebox.compat.settings import NO_SLOTS, Settings
from paddlebox.compat.stubs import idle, refused
from paddlebox.config import SlotType
from paddlebox.config.data import ShareBy
from paddlebox.data.batches import Feed
from paddlebox.data.sequences import SequenceOptions
from paddlebox.data.sharing import Share
from paddlebox.data.side_table import SideTable
from paddlebox.errors import ConfigError, PassError

# Keywords of `_init_distributed_settings`. The last two have no effect.
_DISTRIBUTED = (
    *("merge_size", "parse_ins_id", "parse_content", "fea_eval", "candidate_size"),
    *("fleet_send_batch_size", "fleet_send_sleep_seconds"),
)
_NO_SERVER = "there is no parameter server"


class UpstreamDataset(Settings):
    """The base of the datasets in datasets.py."""

    def _check_ready(self) -> None:
        """Call it before a pass is loaded. Raises: PassError if there are no slots."""
        options = self.options
        if options.load.slots is NO_SLOTS:
            raise PassError("the dataset has no slots yet: init or set_use_var is missing")
        options.change(
            user_sequences=self._uid_sequences() if self._merge_by_uid else self._own_sequences,
            time_column=self._sequences.time if self._needs_time else "",
        )
        chosen, share = options.load.share, self._share_of_own_files()
        own_files = chosen.by is ShareBy.FILES or chosen.own_files
        if share is not None and own_files and self.ranks > 1:
            options.load = replace(options.load, share=share)

    def _share_of_own_files(self) -> Share | None:
        """How ranks exchange what they read from their own files; None: as before. With page views
        by user, a user's instances go to one rank."""
        by, slot = self.options.load.kept_together
        return Share(ShareBy(by), slot, own_files=True) if self._merge_by_uid else None

    def _uid_sequences(self) -> SequenceOptions:
        """The options of sequences. Raises: ConfigError without the slot of the user."""
        user = self._sequences.user or self._uid_slot
        if not user:
            raise ConfigError(
                "set_merge_by_uid: expected the slot of the user, found none: call "
                "set_merge_by_uid(..., user=NAME), or _set_uid_slot(NAME)"
            )
        return replace(self._sequences, user=user)

    def desc(self) -> str:
        """The settings as the text of Paddle's DataFeedDesc."""
        from paddle.base.proto import data_feed_pb2

        options, load = self.options, self.options.load
        made = data_feed_pb2.DataFeedDesc(
            name=self._feed_type,
            batch_size=load.data.batch_size,
            pipe_command=load.pipe_command or "cat",
            rank_offset=options.rank_offset,
            pv_batch_size=load.data.pv_batch_size,
            so_parser_name=load.data.parser,
        )
        made.multi_slot_desc.uid_slot = self._uid_slot
        used = {var.name for var in options.use_var} if options.use_var is not None else None
        for slot in load.slots.slots:
            sparse = slot.type is SlotType.SPARSE
            made.multi_slot_desc.slots.add(
                name=slot.name,
                type="uint64" if sparse else "float",
                is_dense=not sparse,
                is_used=used is None or slot.name in used,
                shape=[] if sparse else [-1, slot.dim],
            )
        return str(made)

    def preprocess_instance(self) -> None:
        """As `make_page_views`."""
        self.make_page_views()

    def postprocess_instance(self) -> None:
        """As `undo_page_views`."""
        self.undo_page_views()

    def get_pv_data_size(self) -> int:
        """The number of page views of the open pass, or of the loaded one if none is open; 0 before
        `preprocess_instance`."""
        chosen = self._stager.current or self._stager.next
        return len(chosen.views) - 1 if chosen is not None and chosen.views is not None else 0

    def __iter__(self) -> Iterator[Feed]:
        """The batches of the open pass, once each, for your own training loop (docs/own_loop.md): a
        dict from the name of an input to a numpy array. The pass stays open after the loop, also
        after an error: `end_pass` commits what was trained, unless the pass was split and its last
        part has not begun; `abandon_pass` discards it.

        Raises: PassError as `batches`, and if there are several ranks.
        """
        if self.ranks > 1:
            raise PassError(
                f"this dataset is shared by {self.ranks} ranks, which run their steps together: "
                "loop over dataset.batches(), and run each batch within dataset.step(batch) "
                "(docs/ranks.md)"
            )
        self.metric_columns = ()  # an earlier train_from_dataset may have set them
        return self.batches()

    # ---- shuffles and shares

    def local_shuffle(self, by: str = "", *, slot: str = "") -> None:
        """Shuffle the loaded pass, if it has not begun, and all passes that are loaded from now on,
        by the seed and the number of the pass.

        Args:
            by: which instances stay together, in the order of the files. "instance": none;
                "ins_id" or "search_id": those with the same id; "slot": those with the same first
                feasign in a slot. "": "slot" after `_set_shuffle_by_uid`, else "instance".
            slot: for by="slot", the name of the sparse slot.

        Raises: PassError if the id is not parsed, or a pass is being loaded.
        """
        if not by and self._shuffle_by_uid:
            by, slot = "slot", self._uid_slot
        self._arranger.shuffle(by or "instance", slot)

    def global_shuffle(
        self, fleet: Any = None, thread_num: int = 12, *, by: str = "", slot: str = ""
    ) -> None:
        """As `local_shuffle`, over all ranks: an instance, or a group of instances, goes to a rank
        that is drawn by the seed. With sequences, a group is a user. Every rank calls it. A loaded
        pass is loaded again, so it is faster to call it before. thread_num has no effect.

        Raises also: ConfigError if the table is not one of as many ranks as the job has.
        """
        self.local_shuffle(by, slot=slot)
        self._arranger.share_by(*self.options.load.kept_together, fleet)

    def set_share(self, by: str, *, slot: str = "") -> None:
        """Set how several ranks share the instances of the passes that are loaded from now on. by:
        a value of `data.share` other than auto (docs/ranks.md). With "files", the default,
        `set_filelist` sets the files of this rank; otherwise all ranks set the same files. slot:
        for by="slot", a sparse slot.

        Raises: ConfigError for another value, an unknown slot, or an id that is not parsed.
        """
        self.options.set_share(by, slot)

    # ---- loading and ending passes

    def _load(self, files: Sequence[str]) -> None:
        self._check_ready()
        self.preload(files, self._day)

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read, parse and stage the files of the next pass, in the background. thread_num:
        as for `set_thread`, from this pass on."""
        if thread_num is not None:
            self.set_thread(thread_num)
        self._load(self._filelist)

    def preload_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """As `preload_into_memory`, but the pass is written to local disk and trained from there.
        The batches are the same. path: the folder; "": `spill_dir`. The file on disk has no name,
        and its space is free again after the pass. file_num has no effect.

        Raises: ConfigError if instances are sampled or merged, because that is done in memory.
        """
        self._preload_into_disk("preload_into_disk", path)

    def load_into_memory(self, is_shuffle: bool = False) -> None:
        """`preload_into_memory`, then `wait_preload_done`. is_shuffle: `local_shuffle` first."""
        if is_shuffle and not self.options.load.data.shuffle:
            self.local_shuffle()
        self.preload_into_memory()
        self.wait_loaded()

    def load_into_disk(self, path: str = "", file_num: int = 1) -> None:
        """`preload_into_disk`, then `wait_load_disk_done`."""
        self._preload_into_disk("load_into_disk", path)
        self.wait_loaded()

    def _preload_into_disk(self, call: str, path: str) -> None:
        """call: the name of the public call, for the error."""
        self._check_ready()
        load = self.options.load
        if not load.may_spill:
            raise ConfigError(
                f"{call}: instances that are sampled or merged stay in memory: call "
                f"{call.replace('disk', 'memory')}, or omit set_sample_rate and set_merge_by_lineid"
            )
        folder = Path(path) if path else load.spill_dir
        load = replace(load, to_disk=True, spill_dir=folder)
        self._loader.preload(load, self._filelist, self._day, self.tracer)

    def wait_preload_done(self) -> None:
        """Wait until the pass is read and parsed. Raises: the error of loading, such as
        DataError."""
        self.wait_loaded()

    wait_load_disk_done = wait_preload_done

    def end_pass(self, need_save_delta: bool = False, *, commit: bool = True) -> None:
        """As our `end_pass`. need_save_delta has no effect: every commit holds only changes."""
        super().end_pass(commit=commit)

    def release_memory(self) -> None:
        """Only checks that no pass is open: `end_pass` has freed the instances already."""
        if self._stager.current is not None:
            raise PassError("a pass is open: end_pass is missing")

    def shrink_table(self) -> bool:
        """End the day of the last pass now, if passes have no dates or before a save of that day.
        Returns False if it had ended already. Raises: PassError while a pass is open."""
        self.release_memory()
        return self._table.life.shrink_table()

    def add_side_table(self, table: SideTable) -> None:
        """Add a ReplicaCache or InputTable, which is read when a pass is preloaded, opened at
        begin_pass, and dropped at end_pass. If it cannot be read, wait_preload_done raises a
        DataError: correct its files and call its begin_feed_pass; then the pass can begin."""
        if self._loader.busy or self._stager.newest is not None:
            raise PassError(f"{table}: a pass is loaded or open: end_pass is missing")
        self._side_tables.add(table)

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """The number of instances of the loaded pass, or of the open one; 0 if there is none."""
        newest = self._stager.newest
        return newest.loaded.count if newest is not None else 0

    # Shuffling adds and drops no instances.
    get_shuffle_data_size = get_memory_data_size

    def ins_ids(self, begin: int, end: int) -> list[str]:
        """Ids of instances [begin, end) of the open pass, in the order of its batches. Raises:
        PassError if no pass is open, or set_parse_ins_id was not called."""
        current = self._stager.current
        if current is None:
            raise PassError("ins_ids: no pass is open: begin_pass is missing")
        if "ins_id" not in current.loaded.options.tags:
            raise PassError("ins_ids: set_parse_ins_id(True) is missing")
        return list(current.loaded.instances.ins_ids(begin, end))

    def trained_ids(self, begin: int, end: int) -> list[str]:
        """As `ids_at`, of the trained instances [begin, end) of an open pass with sequences of
        users, in the order of its batches. Raises: PassError if no such pass is open."""
        current = self._stager.current
        if current is None or current.loaded.sequences is None:
            raise PassError("trained_ids: no pass with sequences is open")
        return self.ids_at(current.loaded.sequences.trained_places(begin, end))

    # ---- names that do nothing here; those with an underscore are of Paddle 3

    set_queue_num = _set_queue_num = idle("there is one queue of batches")
    set_fleet_send_batch_size = _set_fleet_send_batch_size = idle(_NO_SERVER)
    set_fleet_send_sleep_seconds = _set_fleet_send_sleep_seconds = idle(_NO_SERVER)
    _set_use_ps_gpu = _set_heter_ps = idle(_NO_SERVER)
    _set_trainer_num = idle("the launcher sets the number of ranks")
    set_generate_unique_feasigns = _set_generate_unique_feasigns = idle(
        "the unique feasigns of a pass are always computed"
    )
    generate_local_tables_unlock = _generate_local_tables_unlock = idle(
        "the rows of a pass are staged before it begins"
    )
    set_graph_config = refused(
        "set_graph_config: there is no graph training: PGLBox is not part of this"
    )
    tdm_sample = refused("tdm_sample: there are no tree models (TDM, JTM)")
    _prepare_to_run = refused(
        "_prepare_to_run: Paddle's executor cannot read this dataset: call "
        "`paddlebox.train_from_dataset(exe, program, dataset, loss=loss)`"
    )

    # ---- Paddle 3: settings by keyword, and setters with an underscore

    def update_settings(self, **settings: Any) -> None:
        """Change settings: keywords of Paddle 3's `init` and of `_init_distributed_settings`.
        Raises: ConfigError for an unknown keyword."""
        hdfs = {key: settings.pop(key) for key in ("fs_name", "fs_ugi") if key in settings}
        if hdfs:
            self.set_hdfs_config(hdfs.get("fs_name", ""), hdfs.get("fs_ugi", ""))
        distributed = {key: settings.pop(key) for key in _DISTRIBUTED if key in settings}
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
        _check_known("update_settings", settings, (*setters, *_DISTRIBUTED))
        for key, value in settings.items():
            setters[key](value)
        self._init_distributed_settings(**distributed)

    def _init_distributed_settings(self, **settings: Any) -> None:
        """Set ids, merging and slots_shuffle. Raises: ConfigError for an unknown keyword."""
        _check_known("_init_distributed_settings", settings, _DISTRIBUTED)
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

    _set_batch_size = Settings.set_batch_size
    _set_thread = Settings.set_thread
    _set_pipe_command = Settings.set_pipe_command
    _set_merge_by_lineid = Settings.set_merge_by_lineid
    _set_merge_by_sid = Settings.set_merge_by_sid
    _set_use_var = Settings.set_use_var
    _set_input_type = Settings.set_input_type
    _set_hdfs_config = Settings.set_hdfs_config
    _set_download_cmd = Settings.set_download_cmd
    _desc = desc
    # Paddle 3's fleet.BoxPSDataset has these with an underscore.
    _set_rank_offset = Settings.set_rank_offset
    _set_pv_batch_size = Settings.set_pv_batch_size
    _set_parse_ins_id = Settings.set_parse_ins_id
    _set_parse_content = Settings.set_parse_content
    _set_parse_logkey = Settings.set_parse_logkey
    _set_enable_pv_merge = Settings.set_enable_pv_merge
    _set_fea_eval = Settings.set_fea_eval


def _check_known(call: str, settings: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(f"{call}: {', '.join(unknown)}: expected {', '.join(known)}")
