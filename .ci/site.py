"""MkDocs hook of `make docs`. README.md becomes the front page. A link to a file outside docs/
leads to a copy of that file in the site. A link to a file that does not exist is not changed, so
that `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(?=[#)])")


def site_name(path: str) -> str:
    """The path, in the site, of a file of the repository. Pages keep their path below docs/ or the
    root. Other files are in source/ as .txt, so that browsers show them as text."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return path if path.endswith(".md") else f"source/{path}.txt"


def target(page: str, link: str) -> str | None:
    """The path, from the root, of the file to which this page links; None if it does not exist."""
    path = os.path.normpath(os.path.join(os.path.dirname(page), link))
    return path if (ROOT / path).is_file() else None


def outside_files(pages: Iterable[str]) -> set[str]:
    """Files outside docs/ to which these pages link, directly or through another such file."""
    found = {"README.md"}
    waiting = [*pages, "README.md"]
    while waiting:
        page = waiting.pop()
        for link in LINK.findall((ROOT / page).read_text()):
            path = target(page, link)
            if path is not None and not path.startswith("docs/") and path not in found:
                found.add(path)
                waiting += [path] if path.endswith(".md") else []
    return found


def relinked(page: str, text: str) -> str:
    """The text of the page with the links of the site."""
    folder = os.path.dirname(site_name(page)) or "."

    def link_in_site(match: re.Match[str]) -> str:
        path = target(page, match[0])
        return os.path.relpath(site_name(path), folder) if path is not None else match[0]

    return LINK.sub(link_in_site, text)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in sorted(outside_files(pages)):
        files.append(File.generated(config, site_name(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return relinked(os.path.relpath(page.file.abs_src_path, ROOT), markdown)
