"""What a run opens: its slots, its tables, and the dataset that feeds it."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paddlebox.config import Config, KeySpace, ModelConfig, Slots, TableConfig, load_slots
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.zeros import zero_ids
from paddlebox.errors import ConfigError
from paddlebox.ranks import ManyRanks, World
from paddlebox.store.compaction import Policy
from paddlebox.store.options import TableOptions
from paddlebox.store.table_set import TableSet
from paddlebox.train.metric_set import check_columns

log = logging.getLogger("paddlebox")

_MAX_THREADS = 8  # of store and feeder, where the config leaves it open
_LOOKED_ROWS = 20_000  # for ids that are dropped
_BATCH_SIZE = 512  # of what is read without a run, where the config says auto


def read_slots(config: Config, slots: Slots | None = None) -> Slots:
    """The slots in the file data.slots, or these, once they are checked.

    Raises: ConfigError for slots that the config's data, model or metrics cannot be had from.
    """
    slots = slots or load_slots(config.data.slots)
    slots.check_format(config.data.format)
    for key, model in models_of(config).items():
        _check_read_slots(config, slots, key, model)
    check_columns(config.metrics, slots, log_keys=config.data.logkey)
    return slots


def warn_of_unshared(config: Config, slots: Slots) -> None:
    """Of histories whose ids are other features than those of the item they are compared with."""
    if config.data.key_space is not KeySpace.PER_SLOT:
        return
    place = {slot.name: index for index, slot in enumerate(slots.sparse)}
    number = slots.key_slots()
    pairs = {pair for model in models_of(config).values() for pair in model.items.items()}
    for history, item in sorted(pairs):
        if not {history, item} <= place.keys():
            continue  # the model refuses it
        one, other = slots.sparse[place[history]], slots.sparse[place[item]]
        apart = number[place[history]] != number[place[item]]
        if apart and one.table == other.table and not (one.made or other.made):
            log.warning(
                "%s: with data.key_space per_slot an id in %s is another feature than the same id "
                "in %s, which the model compares it with; if both slots hold the same ids, give "
                "slot %s the line `shares: %s`",
                config.data.slots,
                history,
                item,
                history,
                item,
            )


def warn_of_zeros(config: Config, slots: Slots, path: str) -> None:
    """Of ids of 0 in the first rows of a file: they are padding, and dropped."""
    rows, found = zero_ids(path, config, slots, _LOOKED_ROWS)
    if not found:
        return
    name = max(found, key=found.__getitem__)
    others = len(found) - 1
    log.warning(
        "%s: sparse slot %r holds the id 0 %d times in the first %d rows%s; 0 is padding and is "
        "dropped: if it is a value, give the slot hash: true in %s, which keeps it",
        path,
        name,
        found[name],
        rows,
        f", and so do {others} other slots" if others else "",
        config.data.slots,
    )


def models_of(config: Config) -> dict[str, ModelConfig]:
    """By key."""
    if not config.phases:
        return {"model": config.model}
    return {f"phases.{name}.model": phase.model for name, phase in config.phases.items()}


def _check_read_slots(config: Config, slots: Slots, key: str, model: ModelConfig) -> None:
    slots.positions(model.sequences)
    if not model.slots:
        return
    names = [slot.name for slot in slots.sparse]
    for name in model.slots:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ConfigError(
                f"{key}.slots: no sparse slot {name!r} in {config.data.slots}"
                + (f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}")
            )
    missing = sorted({*model.sequences} - {*model.slots})
    if missing:
        raise ConfigError(f"{key}.slots lacks {', '.join(missing)}, which the model reads id by id")
    if config.extra_tables:
        raise ConfigError(f"{key}.slots chooses slots of one table: leave extra_tables out")


def open_table(
    config: Config,
    folder: Path,
    *,
    slots: Slots | None = None,
    read_only: bool = False,
    version: int | None = None,
    world: World | None = None,
) -> TableSet:
    """The table that the config describes, or all of them where it has `extra_tables`, over the
    store in folder; with several ranks in world this rank's part of it. version: to read instead of
    the newest.

    Raises: ConfigError when slot_learning_rates names a slot that is not in `slots`, or not of the
        table; when a slot's table is not there; when the store has tables that the config lacks.
    """
    options = replace(table_options(config), folder=folder, read_only=read_only, version=version)
    if config.extra_tables:
        slots = slots or read_slots(config)
    rates = [] if slots is None else [_slot_rates(config, one, slots) for one in config.tables]
    table = TableSet(
        config.tables,
        options,
        slots=slots if config.extra_tables else None,
        slot_rates=rates,
        peers=ManyRanks(world, config.ranks) if world is not None and not world.alone else None,
    )
    if not config.extra_tables and table.head is not None and table.head.tables:
        names = ", ".join(table.head.tables)
        table.close()
        raise ConfigError(
            f"{folder}: has rows in tables {names}, which the config does not name: add them to "
            "extra_tables"
        )
    return table


def table_options(config: Config) -> TableOptions:
    """Of the config's tables, wherever their store is."""
    ssd = config.ssd
    policy = Policy(space_target=ssd.space_target, space_ceiling=ssd.space_ceiling)
    return TableOptions(
        seed=config.seed,
        hbm_budget_bytes=config.hbm.budget_bytes,
        hbm_place=config.hbm.place,
        mem_budget_bytes=config.mem.budget_bytes,
        max_segment_bytes=ssd.max_segment_bytes,
        threads=threads_of(config.store.threads),
        keep_versions=config.checkpoint.keep_versions,
        keep_daily=config.checkpoint.keep_daily,
        compaction=policy if ssd.compaction else None,
        disk_budget_bytes=ssd.disk_budget_bytes,
        parity=config.store.parity,
    )


def _slot_rates(config: Config, table: TableConfig, slots: Slots) -> list[float]:
    """Of every sparse slot; those that are another table's are never asked for."""
    rates = table.slot_learning_rates
    if not rates:
        return []
    names = [slot.name for slot in slots.sparse]
    own = [s.name for s in slots.sparse if (s.table or config.table.name) == table.name]
    for name in rates:
        if name not in own:
            key = "table" if table is config.table else f"extra_tables.{table.name}"
            near = difflib.get_close_matches(name, own, 1)
            raise ConfigError(
                f"{key}.slot_learning_rates: no sparse slot {name!r} "
                f"{'of this table ' if name in names else ''}in {config.data.slots}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return [rates.get(name, 1.0) for name in names]


def create_dataset(config: Config, slots: Slots, table: TableSet) -> InMemoryDataset:
    """The feeder that the config describes; with phases, of the instances that update takes."""
    dataset = InMemoryDataset(table, seed=config.seed)
    dataset.init(
        slots=slots,
        data_format=config.data.format,
        batch_size=config.data.batch_size or _BATCH_SIZE,
        thread_num=config.data.threads,
        pack_threads=config.data.pack_threads,
        key_space=config.data.key_space,
        max_bad_line_ratio=config.data.max_bad_line_ratio,
        max_line_bytes=config.data.max_line_bytes,
        oversize_pass=config.data.oversize_pass,
        retries=config.data.retries,
        drop_last=config.data.drop_last,
        pipe_command=config.data.pipe_command,
        pipe_timeout_s=config.data.pipe_timeout_s,
        parser=config.data.parser,
        allow_commands=config.security.allow_commands,
        dedup_slots=config.data.dedup_slots,
        sequences=config.model.sequences,
        budget_bytes=config.feeder.budget_bytes,
        spill_dir=config.feeder.spill_dir,
        cache_bytes=config.feeder.cache_bytes,
        cache_dir=config.feeder.cache_dir,
    )
    if config.data.logkey:
        dataset.set_parse_logkey(True)
    if config.data.shuffle:
        dataset.local_shuffle()
    dataset.set_read_slots(config.model.slots)
    return dataset


@contextmanager
def feeding(dataset: InMemoryDataset) -> Iterator[InMemoryDataset]:
    """Closes it at the end."""
    try:
        yield dataset
    finally:
        dataset.close()


def threads_of(wanted: int) -> int:
    """0: as many as there are processors, within reason."""
    return wanted or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
