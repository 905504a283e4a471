"""Opens the tables of a set, each at the version that the first table's version names.

STORE/                  the store of the first table, which also has the dense state
STORE/tables/<name>/    the stores of the other tables, each complete in itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paddlebox.config import TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store import files
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionLink


def open_tables(
    tables: list[TieredTable],
    configs: Sequence[TableConfig],
    options: TableOptions,
    slot_rates: Sequence[Sequence[float]],
    settle: Callable[[], object],
) -> None:
    """Opens a table for each config, and appends it to `tables`, which the caller closes after an
    error. settle: as in `TieredTable`. Raises: as `TableSet`."""
    if len(configs) == 1:
        rates = slot_rates[0] if slot_rates else ()
        tables.append(TieredTable(configs[0], options, slot_rates=rates, settle=settle))
        return
    whole = sum(config.share for config in configs)
    for number, config in enumerate(configs):
        own = _divided(options, config, config.share / whole)
        link = VersionLink(others=lambda: _heads(tables))
        if number:
            own, link = _of_further_table(tables[0], config.name, own)
        rates = slot_rates[number] if slot_rates else ()
        tables.append(TieredTable(config, own, slot_rates=rates, link=link, settle=settle))
        if number == 0:
            _check_stored_names(tables[0], [other.name for other in configs[1:]])


def _divided(options: TableOptions, config: TableConfig, share: float) -> TableOptions:
    mem = int(options.mem_budget_bytes * share)
    if mem < LEAST_MEM_BYTES:
        raise ConfigError(
            f"table '{config.name}': its share of mem.budget_bytes "
            f"{options.mem_budget_bytes} is {mem}, expected at least {LEAST_MEM_BYTES}"
        )
    return replace(
        options,
        hbm_budget_bytes=int(options.hbm_budget_bytes * share),
        mem_budget_bytes=mem,
        disk_budget_bytes=int(options.disk_budget_bytes * share),
    )


def _of_further_table(
    first: TieredTable, name: str, options: TableOptions
) -> tuple[TableOptions, VersionLink]:
    named = first.head.tables.get(name, 0) if first.head is not None else 0
    link = VersionLink(
        named=lambda: first.versions.named_versions(name),
        version=None if options.read_only else named,
    )
    if first.folder is None:
        return options, link
    folder = Path(files.table_folder(str(first.folder), name))
    if not options.read_only:
        files.make_folder(str(folder.parent))
    return replace(options, folder=folder, version=named if options.read_only else None), link


def _check_stored_names(first: TieredTable, configured: Sequence[str]) -> None:
    head = first.head
    if head is None:
        return
    gone = sorted(set(head.tables) - set(configured))
    if gone:
        raise ConfigError(
            f"{first.folder}: version {head.version} has rows in tables {', '.join(gone)}, which "
            "extra_tables lacks: they would not be trained on"
        )
    new = sorted(set(configured) - set(head.tables))
    if new and first.read_only:
        raise ConfigError(
            f"{first.folder}: version {head.version} has no table {', '.join(new)}, which "
            "extra_tables names: nothing was trained in it yet"
        )


def _heads(tables: Sequence[TieredTable]) -> dict[str, int]:
    return {t.name: t.head.version for t in tables[1:] if t.head is not None}
