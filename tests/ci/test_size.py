"""The sizes count what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci import scripts

size = scripts.load("size")

SOURCE = '''"""A module."""

# A comment.
WORDS = """of

two paragraphs"""


def call() -> None:
    """Two lines
    of words."""
    print("x")  # another comment
'''


def test_code_is_neither_blank_nor_comment_nor_docstring(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    found = size.measure(tmp_path / "a.py")
    assert (found.lines, found.code, found.docstrings) == (12, 4, 3)


def test_keys_of_both_parts_of_a_row_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        "| `name` | str | required | name of the run |",
        *(f"| `table.{part}.rule` | `naive` | `naive` | rule |" for part in ("embed", "embedx")),
        "| `model.type` | `lr`, `dcn` | required | a model |",
        *("", "### Keys that only some models have", ""),
        "| mmoe, ple | `model.tower` | list of int | [64] | widths |",
        "| dcn | `model.layers` | int | 3 | layers |",
    ]
    (tmp_path / "docs").mkdir()
    page = "\n".join(["# Configuration", "", "## Keys", "", *rows, "", "## slots.yaml", ""])
    (tmp_path / "docs/config.md").write_text(page)
    monkeypatch.setattr(size, "ROOT", tmp_path)
    assert size.config_keys() == (4, 1)  # name, rule, type and tower; layers


def test_the_spine_has_a_limit_and_imports_only_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    package = tmp_path / "paddlebox"
    monkeypatch.setattr(size, "PACKAGE", package)
    package.mkdir()
    for name in ("a", "b", "errors"):
        (package / f"{name}.py").write_text("")
    guide = tmp_path / "CONTRIBUTING.md"
    guide.write_text(
        "# Guide\n\n### The spine\n\n1. `paddlebox/a.py` begins.\n2. `paddlebox/b.py` ends.\n\n"
        "Leaf modules: `paddlebox.errors`; of `paddlebox.c`: `d`.\n\n### More\n3. `paddlebox/x.py`"
    )
    (package / "a.py").write_text("from paddlebox import b\nfrom paddlebox.c.d import e\n")
    (package / "b.py").write_text("from paddlebox.errors import X\n")
    assert size.check_spine() == []
    (package / "b.py").write_text("from paddlebox.errors import X\nfrom paddlebox.c import f\n")
    assert size.check_spine() == [
        "paddlebox/b.py: uses paddlebox.c, neither of the spine nor a leaf module"
    ]
    (package / "b.py").write_text("from paddlebox.errors import X\n")
    (package / "a.py").write_text("")
    assert size.check_spine() == [
        "CONTRIBUTING.md: no file of the spine uses the leaf module paddlebox.c.d"
    ]
    (package / "b.py").write_text("\n" * 3501)
    assert "2 files with 3501 lines, expected at most 12 with 3500" in size.check_spine()[0]
    (package / "b.py").unlink()
    assert size.check_spine() == ["CONTRIBUTING.md: the spine names no file paddlebox/b.py"]
