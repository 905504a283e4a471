"""Options of tables: declared once, for a single table and for a set."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from paddlebox.config import SsdConfig, TableConfig
from paddlebox.store.options import TableOptions
from paddlebox.store.table import Table
from paddlebox.store.table_set import TableSet

CONFIG = TableConfig(embedx_dim=2)
MIB = 1 << 20


def test_a_keyword_changes_one_field_of_the_options(tmp_path: Path) -> None:
    options = TableOptions(folder=tmp_path, mem_budget_bytes=2 * MIB, threads=2)
    with Table(CONFIG, options, threads=1) as table:
        assert table.options == dataclasses.replace(options, threads=1)
        assert table.folder == tmp_path
    assert options.threads == 2


def test_a_single_table_has_the_whole_budgets_for_any_share(tmp_path: Path) -> None:
    options = TableOptions(
        folder=tmp_path, mem_budget_bytes=3 * MIB, hbm_budget_bytes=5 * MIB, disk_budget_bytes=MIB
    )
    with TableSet([CONFIG.model_copy(update={"share": 0.3})], options) as tables:
        assert tables.first.options == options


def test_a_setting_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match="mem_budget"):
        Table(CONFIG, mem_budget=MIB)


def test_defaults_are_those_of_the_configuration() -> None:
    assert TableOptions().max_segment_bytes == SsdConfig().max_segment_bytes
