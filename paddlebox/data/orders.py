"""Other orders of the instances of a pass, and other values of its slots: page views, shuffles,
slots_shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait

from paddlebox import _native
from paddlebox.data.loader import split
from paddlebox.data.loading import Loading
from paddlebox.data.passes import Pass
from paddlebox.errors import OutOfSpaceError, PassError


class Orders(Loading):
    """The calls of `InMemoryDataset` that arrange a pass anew."""

    def get_pv_data_size(self) -> int:
        """Page views of the pass that is open, or else loaded; 0 before `preprocess_instance`."""
        chosen = self._current or self._next
        return len(chosen.views) - 1 if chosen is not None and chosen.views is not None else 0

    def preprocess_instance(self) -> None:
        """Groups the pass that is open, or else loaded, into page views, for the join phase: by
        search id, ascending.

        Raises: PassError without set_enable_pv_merge or set_parse_logkey, or where there is no such
            pass; OutOfSpaceError when the pass is over the HBM budget.
        """
        if not self._enable_pv_merge:
            raise PassError("preprocess_instance: set_enable_pv_merge(True) is missing")
        chosen = self._arrangeable("preprocess_instance")
        self._check_in_one_part(chosen, "page views")
        instances = chosen.loaded.instances
        instances.arrange_by("page_views", 0)
        chosen.loaded.cut_views(self._pv_batch_size)
        chosen.views = instances.page_view_starts()

    def postprocess_instance(self) -> None:
        """Takes the pass out of its page views, for the update phase: shuffled by instance."""
        chosen = self._arrangeable("postprocess_instance")
        if chosen.views is None:
            raise PassError("the pass is not in page views: preprocess_instance is missing")
        chosen.loaded.instances.arrange_by("instance", self._seed + chosen.number)
        chosen.views = None

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Feeds the pass that is open, or else loaded, real values of other instances in these
        slots, to see what the slots are worth. What was replaced before is restored first; [] only
        does that. An open evaluation may be gone through again afterwards.

        Raises: PassError without set_fea_eval, or when a pass has been trained; OutOfSpaceError
            when it is over the HBM budget; ValueError for a slot that is not there.
        """
        if not self._pool_size:
            raise PassError("slots_shuffle: set_fea_eval is missing")
        numbers = self._slot_numbers(slots)
        chosen = self._arrangeable("slots_shuffle")
        if chosen.train and chosen.trained:
            raise PassError("slots_shuffle: the pass has been trained already: end_pass is missing")
        self._check_in_one_part(chosen, "slots_shuffle")
        instances = chosen.loaded.instances
        chosen.replacements += 1
        seed = _native.core.mix(self._seed + chosen.number) + chosen.replacements
        instances.replace_slots(numbers, self._pool_size, seed % (1 << 64))
        chosen.trained.clear()

    def _arrangeable(self, call: str) -> Pass:
        """The open pass, or else the loaded one, once nothing reads the order of its instances."""
        chosen = self._current or (self._next if self._loading is None else None)
        if chosen is None:
            missing = "wait_preload_done" if self._loading is not None else "load_into_memory"
            raise PassError(f"{call}: no pass is loaded or open: {missing} is missing")
        if chosen.feeding:
            raise PassError(f"{call}: the batches of the open pass are being gone through")
        if chosen.staged is not None:
            wait([chosen.staged])
        return chosen

    def _check_in_one_part(self, chosen: Pass, what: str) -> None:
        if len(chosen.loaded.ranges) > 1:
            raise OutOfSpaceError(
                f"{what}: the pass is over hbm.budget_bytes and split into "
                f"{len(chosen.loaded.ranges)} parts, expected one: raise it, or use fewer files a "
                "pass"
            )

    def _check_none_loading(self, changed: bool) -> None:
        if changed and self._loading is not None:
            raise PassError("local_shuffle: a pass is being loaded: wait_preload_done is missing")

    def _shuffle_loaded(self) -> None:
        if self._next is None:
            return
        chosen = self._next
        if chosen.views is not None:
            raise PassError(
                "local_shuffle: the pass is in page views; shuffle before they are made"
            )
        options = self._initialised()
        instances = chosen.loaded.instances
        with self._lock:
            split_pass = len(chosen.loaded.ranges) > 1
            if chosen.staged is not None and split_pass:  # its part is another one now
                self._drop(chosen.staged)
                chosen.staged = None
                chosen.stats.hits.update(dict.fromkeys(chosen.stats.hits, 0))
                chosen.stats.hits_of.clear()
            elif chosen.staged is not None:
                wait([chosen.staged])
            options.instances.arrange(instances, options.slots, self._seed + chosen.number)
            if split_pass:
                chosen.loaded.ranges = split(
                    chosen.loaded.instances, chosen.loaded.options, self._table.max_pass_rows
                )
                chosen.stats.parts = len(chosen.loaded.ranges)
            self._stage_when_free()
