"""Opens the slots, the tables and the dataset of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from paddlebox.config import (
    Config,
    Format,
    HbmPlace,
    KeySpace,
    ModelConfig,
    Program,
    Slots,
    load_slots,
)
from paddlebox.config.arguments import AnySlots, as_slots
from paddlebox.config.check import nearest
from paddlebox.config.data import ShareBy
from paddlebox.config.fields import click_slots
from paddlebox.config.models import IN_GROUPS, SEARCH_ID
from paddlebox.data.cache import open_cache
from paddlebox.data.dataset import Dataset
from paddlebox.data.feed_copies import FeedCopies
from paddlebox.data.first_look import FirstLook
from paddlebox.data.holdout import Rows
from paddlebox.data.listing import expand
from paddlebox.data.options import LoadOptions
from paddlebox.data.pipeline import load_threads
from paddlebox.data.sequences import SequenceOptions
from paddlebox.errors import ConfigError, DataError
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.options import DEVICE, TableOptions, gpu_number, is_plugged_in
from paddlebox.store.table_set import TableSet
from paddlebox.training.metric_set import check_columns, exact_columns

log = logging.getLogger("paddlebox")

_LOOKED_ROWS = 20_000  # rows to search for ids of 0, which are dropped
_BATCH_SIZE = 512  # if data.batch_size is auto and no run has chosen a size


def read_slots(config: Config, slots: AnySlots | None = None) -> Slots:
    """Read and check the slots of a config; None: those in the file `data.slots`. Raises:
    ConfigError if they do not fit the data format, a model or a metric of the config."""
    slots = load_slots(config.data.slots) if slots is None else as_slots(slots)
    slots = slots.with_exact_values(config.data.exact_values)
    slots.check_format(config.data.format)
    for key, model in config.models.items():
        slots.positions(model.sequences)
        _check_sparse(config, slots, f"{key}.slots", model.slots)
        if isinstance(model.click_prior, tuple):
            _check_sparse(config, slots, f"{key}.click_prior", model.click_prior)
        for wrong, text in _misfits(config, slots, key, model):
            if wrong:
                raise ConfigError(text)
        group = () if model.loss_group in ("", SEARCH_ID) else (model.loss_group,)
        _check_sparse(config, slots, f"{key}.loss_group", group)
    check_columns(config.metrics, slots, log_keys=config.data.logkey)
    by, slot = config.data.share_by
    if by is ShareBy.SLOT:
        key = "data.sequences.user" if config.data.sequences.user else "data.share"
        _check_sparse(config, slots, key, [slot])
    _check_kept(config, slots)
    return slots


def _check_kept(config: Config, slots: Slots) -> None:
    """Raises: ConfigError if data.keep_values names a slot whose texts cannot be read."""
    data, where = config.data, "data.keep_values"
    _check_sparse(config, slots, where, data.keep_values)
    for slot in slots.sparse:
        if slot.name in data.keep_values and not (slot.hash and slot.read):
            raise ConfigError(
                f"{where}: slot {slot.name!r} has no texts: expected slots with `hash: true` that "
                "are read from a column; other slots have ids, which `store export` gives already"
            )
    named = data.format is Format.CSV or data.format.is_columnar
    if data.keep_values and (not named or data.pipe_command or data.parser or data.stream):
        raise ConfigError(
            f"{where}: expected files of csv, parquet, arrow or orc without data.pipe_command, "
            f"data.parser and data.stream, found format {data.format}: leave {where} out"
        )


def _check_sparse(config: Config, slots: Slots, key: str, wanted: Iterable[str]) -> None:
    """Raises: ConfigError, with the key that names it, if a slot is no sparse slot."""
    names = [slot.name for slot in slots.sparse]
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"{key}: no sparse slot {name!r} in {config.data.slots}{nearest(name, names)}"
            )


def warn_of_unshared(config: Config, slots: Slots) -> None:
    """Warn if a history and the item it is compared with do not share feasigns: with data.key_space
    per_slot, equal ids in two slots are different feasigns unless one slot `shares` the other."""
    if config.data.key_space is not KeySpace.PER_SLOT:
        return
    place = {slot.name: index for index, slot in enumerate(slots.sparse)}
    number = slots.key_slots()
    pairs = {pair for model in config.models.values() for pair in model.items.items()}
    for history, item in sorted(pairs):
        if not {history, item} <= place.keys():
            continue  # building the model raises an error for it
        one, other = slots.sparse[place[history]], slots.sparse[place[item]]
        apart = number[place[history]] != number[place[item]]
        if apart and one.table == other.table and not (one.made or other.made):
            log.warning(
                "%s: the model compares %s with %s, but with data.key_space per_slot the same id "
                "is a different feature in each; if both slots hold the same ids, give slot %s "
                "the line `shares: %s`",
                config.data.slots,
                history,
                item,
                history,
                item,
            )


def warn_of_missing_tests(config: Config) -> None:
    """Log a warning if an evaluation would not find its files. They may be written later."""
    try:
        expand(config.data.test_files)
    except DataError as error:
        log.warning("data.test_files, which are for evaluations only: %s", error)


def warn_of_zeros(config: Config, look: FirstLook, path: str) -> None:
    """Warn if the first rows of a file hold ids of 0, which are dropped as padding."""
    rows, found = look.zeros(path, _LOOKED_ROWS)
    if not found:
        return
    log.warning(
        "%s: sparse slots hold the id 0 in the first %d rows (slot: times): %s; 0 is padding and "
        "is dropped: if it is a value, give these slots hash: true in %s, which keeps it",
        path,
        rows,
        ", ".join(f"{name}: {times}" for name, times in found.items()),
        config.data.slots,
    )


def warn_of_idle(passes: Sequence[Sequence[str]], world: Group) -> None:
    """Log a warning, on the first rank, if passes, given by their files, have fewer files than
    ranks."""
    few = [files for files in passes if len(files) < world.size]
    if few and world.rank == 0:
        log.warning(
            "%d of %d passes have fewer files than the %d ranks (the smallest has %d): a rank "
            "without a file trains nothing and only serves its rows; raise data.files_per_pass, "
            "split the files, or set data.share: auto",
            len(few),
            len(passes),
            world.size,
            min(len(files) for files in few),
        )


def _misfits(
    config: Config, slots: Slots, key: str, model: ModelConfig
) -> Iterable[tuple[object, str]]:
    """Whether a model breaks each rule about its slots, and the error. key: of its section."""
    late, data, out = slots.late, config.data, "take one of them out"
    weight = slots.weight.name if slots.weight is not None else ""
    late_of, late_name = (late.of, late.name) if late is not None else ("", "")
    missing = sorted({*model.sequences} - {*model.slots})
    return (
        (
            model.objective in IN_GROUPS and len(slots.tasks) != 1,
            f"{key}.loss {model.objective} compares instances by one label; {data.slots} has "
            f"{', '.join(slots.tasks) or 'none'}",
        ),
        (
            model.loss_group == SEARCH_ID and not data.logkey,
            f"{key}.loss_group search_id: page views have log keys: set data.logkey: true, if the "
            "data has them",
        ),
        (
            model.has_click_priors and weight,
            f"{key}.click_prior does not work together with slot {weight!r} of type weight: {out}",
        ),
        (
            model.delayed and late is None,
            f"{key}.delayed_task: expected a slot of type late in {data.slots}, which marks the "
            "lines with late labels, found none",
        ),
        (
            model.delayed and late is not None and model.delayed != late_of,
            f"{key}.delayed_task: expected {late_of!r}, the label that slot {late_name!r} of type "
            f"late names, found {model.delayed!r}: correct one of them",
        ),
        (
            model.delayed and data.negative_rate < 1,
            f"data.negative_rate does not work together with {key}.delayed_task: late lines are "
            f"those of all negatives, sampled or not: {out}",
        ),
        *(
            (
                late is not None and given,
                f"{what} does not work together with slot {late_name!r} of type late: {out}",
            )
            for given, what in (
                (data.sequences.user, "data.sequences"),
                (data.holdout and data.holdout.of_places, "data.holdout.share without by"),
                (model.has_click_priors, f"{key}.click_prior"),
            )
        ),
        (
            model.slots and missing,
            f"{key}.slots lacks {', '.join(missing)}, which the model reads id by id",
        ),
        (
            model.slots and config.extra_tables,
            f"{key}.slots chooses slots of one table: leave extra_tables out",
        ),
    )


def open_table(
    config: Config,
    folder: Path,
    *,
    slots: Slots | None = None,
    read_only: bool = False,
    version: int | None = None,
    world: Group = ONE_RANK,
) -> TableSet:
    """Open the table of a config, or all of its tables if it has `extra_tables`.

    Args:
        folder: folder of the store.
        slots: the slots; None: those in the file `data.slots`, read if they are needed.
        version: the version to read; None: the newest.
        world: the ranks. The part of this rank's key range is opened.

    Raises: ConfigError if a slot names a table that does not exist, the store has tables that the
    config lacks, or weights decay on several ranks.
    """
    if world.size > 1 and any(table.weight_decay for table in config.tables):
        raise ConfigError(
            f"table.weight_decay with {world.size} ranks: the steps of a row are known only where "
            "it is trained; train with one rank, or leave weight_decay out"
        )
    options = replace(table_options(config), folder=folder, read_only=read_only, version=version)
    if config.extra_tables:
        slots = slots or read_slots(config)
    factors = [slot.learning_rate_factor for slot in slots.sparse] if slots is not None else []
    rates = [factors] * len(config.tables) if {*factors} - {1.0} else []
    table = TableSet(
        config.tables,
        options,
        slots=slots if config.extra_tables else None,
        slot_rates=rates,
        world=world,
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
    """The options that all tables of a config share, without the folder of their store."""
    return TableOptions(
        seed=config.seed,
        hbm_budget_bytes=config.hbm.budget_bytes,
        hbm_place=config.hbm.place,
        mem_budget_bytes=config.mem.budget_bytes,
        max_segment_bytes=config.ssd.max_segment_bytes,
        threads=load_threads(config.data.threads).most,
        keep_versions=config.checkpoint.keep_versions,
        keep_daily=config.checkpoint.keep_daily,
        disk_budget_bytes=config.ssd.disk_budget_bytes,
        ranks=config.ranks,
        late_lines=any(model.delayed for model in config.models.values()),
    )


def create_dataset(
    config: Config,
    slots: Slots,
    table: TableSet,
    *,
    test: bool = False,
    rows: Rows = Rows.ALL,
    ins_id: bool = False,
) -> Dataset:
    """Create the dataset of a config; with phases, as the update phase needs it. test: whether its
    passes evaluate. rows: what they read of the files. ins_id: whether it parses ids of
    instances."""
    model = config.model
    dataset = Dataset(load_options(config, slots, test=test, rows=rows, ins_id=ins_id), table)
    dataset.options.set_read_slots(model.slots)
    dataset.options.set_group(model.loss_group)
    dataset.options.soft_labels = model.runs_code
    # On this device, Executor.run waits for the end of the program; dygraph does not.
    static = config.trainer.program is not Program.DYGRAPH
    if config.hbm.place is not HbmPlace.HOST and is_plugged_in() and static:
        dataset.options.send = FeedCopies(DEVICE, gpu_number())
    return dataset


def load_options(
    config: Config,
    slots: Slots,
    *,
    test: bool = False,
    rows: Rows = Rows.ALL,
    ins_id: bool = False,
) -> LoadOptions:
    """The options of `create_dataset`."""
    data, model = config.data, config.model
    group = model.loss_group if data.shuffle else ""
    return LoadOptions(
        data.having({"batch_size": data.batch_size or _BATCH_SIZE}),
        slots,
        config.seed,
        test,
        rows,
        sequences=model.sequences,
        click_slots=click_slots(model, slots),
        user_sequences=SequenceOptions.of(data.sequences, slots, in_join=bool(config.phases)),
        exact=exact_columns(config.metrics, slots),
        budget_bytes=config.feeder.budget_bytes,
        cache=open_cache("", config.feeder.cache_bytes),
        parse_ins_id=ins_id,
        shuffle_by=SEARCH_ID if group == SEARCH_ID else "slot" if group else "instance",
        shuffle_slot="" if group == SEARCH_ID else group,
        allow_commands=config.security.allow_commands,
    )
