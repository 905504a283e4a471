"""Data of two tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, make_synthetic

LAST = ("tags", "publisher", "category", "region", "device")


@pytest.fixture(scope="module")
def wide_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three passes, and slots.yaml files in which the last five slots are of the table wide."""
    folder = make_synthetic(tmp_path_factory.mktemp("data"), passes=3, rows=5000, test_rows=2000)
    text = (ROOT / "datasets/synthetic/slots.yaml").read_text()
    for name in LAST:
        found = f"{{name: {name}, type: sparse}}"
        assert found in text
        text = text.replace(found, f"{{name: {name}, type: sparse, table: wide}}")
    (folder / "slots.yaml").write_text(text)
    return folder
