"""Arranger: changes the order of the instances of a pass, and the values of its slots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

from paddlebox import _native
from paddlebox.config.data import ShareBy
from paddlebox.data.batches import LOG_KEYS
from paddlebox.data.loader import split
from paddlebox.data.options import SHUFFLES, LoadOptions
from paddlebox.data.pass_loader import PassLoader
from paddlebox.data.passes import Pass
from paddlebox.data.sharing import Share
from paddlebox.errors import ConfigError, PassError


class Arranger:
    """Shuffles passes, makes and undoes page views, exchanges the values of slots. `Dataset`
    documents the methods."""

    def __init__(self, loader: PassLoader) -> None:
        self._table, self._options = loader.table, loader.options
        self._loader, self._stager = loader, loader.stager

    # ---- page views

    def make_page_views(self) -> None:
        if not self._options.enable_pv_merge:
            raise PassError("preprocess_instance: set_enable_pv_merge(True) is missing")
        chosen = self._arrangeable("preprocess_instance")
        if chosen.train and chosen.loaded.options.click_slots:
            raise PassError(
                "preprocess_instance: the pass has click priors (init: click_slots), which are "
                "counted for one order of its instances: leave one of them out"
            )
        self.group(chosen, "page_views", chosen.shuffle_seed)

    def group(self, chosen: Pass, by: str, seed: int | None) -> None:
        """Make page views of a pass, or of its sequences of users. by: "page_views", in the order
        of search ids, or "search_id", which shuffles them. seed: shuffles; None: sequences are in
        the order of the files."""
        chosen.check_in_one_part("page views")
        chosen.check_whole_views(self._table.world.size)
        count, loaded = self._options.load.data.pv_batch_size, chosen.loaded
        if loaded.sequences is None:
            loaded.instances.arrange_by(by, seed or 0)
            loaded.cut_views(count)
            chosen.views = list(loaded.instances.page_view_starts())
        else:
            plan = loaded.arrange_sequences(seed=seed, views_a_batch=count)
            chosen.views = plan.starts.tolist()
            chosen.stats.sequences = loaded.sequences.counts()

    def undo_page_views(self) -> None:
        chosen = self._arrangeable("postprocess_instance")
        if chosen.views is None:
            raise PassError("the pass is not in page views: preprocess_instance is missing")
        seed = self._options.load.seed + chosen.number
        if chosen.loaded.sequences is not None:
            chosen.loaded.arrange_alone(seed)
        else:
            self._shuffle_groups(chosen.loaded.instances, seed)
        chosen.views = None

    def _shuffle_groups(self, instances: Any, seed: int) -> None:
        """Shuffle instances; with a loss in groups (`set_group`), groups as wholes."""
        group, load = self._options.group, self._options.load
        by = "slot" if group else "instance"
        if group in LOG_KEYS:
            by, group = "search_id", ""
        slots = load.sparse_numbers("set_group", [group] if group else [])
        instances.arrange_by(by, seed, *slots)

    # ---- values of slots

    def shuffle_slots(self, slots: Sequence[str]) -> None:
        if not self._options.pool_size:
            raise PassError("slots_shuffle: set_fea_eval is missing")
        numbers = self._options.load.sparse_numbers("slots_shuffle", slots)
        chosen = self._arrangeable("slots_shuffle")
        if chosen.loaded.sequences is not None:
            raise PassError("slots_shuffle: expected a pass without sequences of users")
        if chosen.train and chosen.trained:
            raise PassError("slots_shuffle: the pass has been trained already: end_pass is missing")
        chosen.check_in_one_part("slots_shuffle")
        chosen.replacements += 1
        seed = _native.core.mix(self._options.load.seed + chosen.number) + chosen.replacements
        chosen.loaded.instances.replace_slots(numbers, self._options.pool_size, seed % (1 << 64))
        chosen.trained.clear()

    def _arrangeable(self, call: str) -> Pass:
        """The open pass, or the loaded one if none is open. Waits until it is staged, because
        staging reads the order of its instances."""
        chosen = self._stager.current or (None if self._loader.busy else self._stager.next)
        if chosen is None:
            missing = "wait_preload_done" if self._loader.busy else "load_into_memory"
            raise PassError(f"{call}: no pass is loaded or open: {missing} is missing")
        if chosen.feeding:
            raise PassError(f"{call}: a loop reads the batches of the open pass: end it first")
        if chosen.staged is not None:
            wait([chosen.staged])
        return chosen

    # ---- shuffles

    def shuffle(self, by: str, slot: str) -> None:
        load = self._options.load
        _check_shuffle(load, by, slot)
        changed = not load.data.shuffle or (by, slot) != (load.shuffle_by, load.shuffle_slot)
        if changed and self._loader.busy:
            raise PassError("local_shuffle: a pass is being loaded: wait_preload_done is missing")
        self._options.change({"shuffle": True}, shuffle_by=by, shuffle_slot=slot)
        if changed and self._stager.next is not None:
            self._shuffle_loaded(self._stager.next)

    def share_by(self, by: str, slot: str, fleet: Any) -> None:
        """Share the instances that ranks read from their own files: of the loaded pass, which is
        loaded again, and of later ones. Without effect on one rank."""
        jobs = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1)
        jobs, ranks = fleet.worker_num() if fleet is not None else jobs, self._table.world.size
        if jobs != ranks:
            raise ConfigError(
                f"global_shuffle: the job has {jobs} ranks, but the table is one of {ranks}: open "
                "it with world=World.join() (docs/ranks.md)"
            )
        share = Share(ShareBy(by), slot, own_files=True)
        load = self._options.load
        if ranks == 1 or share == load.share:
            return
        if self._loader.busy:
            raise PassError("global_shuffle: a pass is being loaded: wait_preload_done is missing")
        self._options.load = replace(load, share=share)
        if self._stager.next is not None:
            self._loader.reload()

    def _shuffle_loaded(self, chosen: Pass) -> None:
        if chosen.views is not None:
            raise PassError(
                "local_shuffle: the pass is in page views; shuffle before preprocess_instance"
            )
        loaded = chosen.loaded
        with self._stager.rearranging(chosen):
            seed = chosen.shuffle_seed = self._options.load.seed + chosen.number
            if loaded.sequences is None:
                self._options.load.arrange(loaded.instances, seed)
            elif not loaded.sequences.options.in_join:
                loaded.arrange_sequences(seed=seed)
            if len(loaded.ranges) > 1:
                most = self._table.max_pass_rows
                loaded.ranges = split(loaded.instances, loaded.options, most, loaded.sequences)
                chosen.stats.parts = len(loaded.ranges)


def _check_shuffle(options: LoadOptions, by: str, slot: str) -> None:
    if by not in SHUFFLES:
        raise ValueError(f"local_shuffle: expected by {', '.join(SHUFFLES)}, found {by!r}")
    if (by == "slot") != bool(slot):
        names = ", ".join(options.sparse_names())
        raise ValueError(f"local_shuffle: slot {slot!r}: expected one of {names} with by='slot'")
    options.sparse_numbers("local_shuffle", [slot] if slot else [])  # checks the name
    tags = options.tags
    if by == "search_id" and "logkey" not in tags:
        raise PassError("local_shuffle by search_id: set_parse_logkey(True) is missing")
    if by == "ins_id" and not tags & {"ins_id", "logkey"}:
        raise PassError("local_shuffle by ins_id: set_parse_ins_id(True) is missing")
