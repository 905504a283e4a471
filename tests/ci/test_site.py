"""The site of the docs: README.md is its front page, files that pages link to are copied."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("site_hook", ROOT / ".ci" / "site.py")
assert _spec is not None
assert _spec.loader is not None
site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(site)


@pytest.mark.parametrize(
    ("page", "link", "in_site"),
    [
        ("README.md", "docs/data.md#formats", "data.md#formats"),
        ("README.md", "CONTRIBUTING.md", "CONTRIBUTING.md"),
        ("docs/data.md", "../README.md", "index.md"),
        ("docs/data.md", "../ops/feed/text/plugin.h", "source/ops/feed/text/plugin.h.txt"),
        ("docs/formats/row.md", "../life.md", "../life.md"),
        ("datasets/criteo_1tb/README.md", "../criteo/README.md", "../criteo/README.md"),
        ("docs/data.md", "https://ui.perfetto.dev", "https://ui.perfetto.dev"),
        ("docs/data.md", "missing.md", "missing.md"),  # left for the strict build to report
    ],
)
def test_a_link_leads_to_where_the_site_has_the_file(page: str, link: str, in_site: str) -> None:
    assert site.relinked(page, f"see [it]({link}) there") == f"see [it]({in_site}) there"


def test_files_outside_docs_are_found_through_the_pages_that_link_to_them() -> None:
    found = site.outside_files(["datasets/criteo_1tb/README.md"])
    assert {"README.md", "CONTRIBUTING.md", "datasets/criteo/README.md"} <= found
    assert not any(path.startswith("docs/") for path in found)
