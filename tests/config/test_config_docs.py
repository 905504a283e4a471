"""docs/config.md holds the reference table of the schema, as it is now."""

from __future__ import annotations

from pathlib import Path

from paddlebox.config.describe import describe, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_page_holds_the_tables_as_the_schema_says_them() -> None:
    # If this fails: put what `python -m paddlebox.config` prints into docs/config.md.
    assert f"\n{markdown()}\n" in PAGE.read_text()


def test_every_key_is_described_once() -> None:
    keys = list(describe())
    assert all(key.meaning for key in keys)
    assert len({(key.path, model) for key in keys for model in key.models or [""]}) == len(
        [model for key in keys for model in key.models or [""]]
    )
    assert "table.embedx.initial_range" in {key.path for key in keys}
