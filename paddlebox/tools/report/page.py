"""The page around figures: one file, without references to others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from paddlebox import __version__
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.store.files import store_errors
from paddlebox.tools.report.figures import Figure
from paddlebox.tools.report.text import esc

# The page loads nothing, even if a name in the data contains HTML.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Tile:
    """One figure of the headline."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    figures: Sequence[Figure]

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().split())


@dataclass(frozen=True)
class Page:
    title: str
    about: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    state: str = ""
    footer: str = ""
    reload_s: float = 0  # seconds between reloads; 0: none

    def html(self) -> str:
        own = files("paddlebox.tools.report")
        style, script = (own.joinpath(f"page.{kind}").read_text() for kind in ("css", "js"))
        pill = (
            f'<span class="pill {esc(self.state)}">{esc(self.state)}</span>' if self.state else ""
        )
        tiles = "".join(
            f"<div><span>{esc(t.name)}</span><strong>{esc(t.value)}</strong><em>{esc(t.note)}</em></div>"
            for t in self.tiles
        )
        links = "".join(f'<a href="#{esc(s.anchor)}">{esc(s.title)}</a>' for s in self.sections)
        body = "".join(
            f'<section><h2 id="{esc(s.anchor)}">{esc(s.title)}</h2>'
            f"<div class=grid>{''.join(figure.html() for figure in s.figures)}</div></section>\n"
            for s in self.sections
        )
        return (
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
            f"<title>{esc(self.title)}</title><style>{style}</style></head>\n"
            f'<body data-reload="{self.reload_s:g}">'
            f"<header><h1>{esc(self.title)}</h1>{pill}</header>"
            f"<p class=about>{esc(self.about)}</p><nav>{links}</nav>"
            f"<div class=tiles>{tiles}</div>\n{body}"
            f"<footer>{esc(self.footer)} paddlebox {esc(__version__)}</footer>"
            f"<div id=tip hidden></div><script>{script}</script></body></html>\n"
        )


def write_page(page: Page, path: AnyPath) -> None:
    """Write the page atomically, so that a browser never loads a part of it.

    Raises: StoreError if it cannot be written.
    """
    path = as_path(path, "path")
    temporary = path.with_name(f"{path.name}.tmp")
    with store_errors(str(path), "write the page"):
        temporary.write_text(page.html())
        os.replace(temporary, path)
