"""Griffe extension of `make docs`, for docs/reference.md. Griffe reads a section, such as Raises,
only if its text begins on the line after its title. In our docstrings it may begin on the line of
the title. Such a section becomes a paragraph."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension, Object  # type: ignore[import-not-found]

SECTION = re.compile(r"^(Returns|Raises|Raises also): (?=\S)(.*(?:\n {4}.*)*)", re.MULTILINE)


def paragraphs(docstring: str) -> str:
    """The docstring with its sections of this kind as paragraphs, and without tags of HTML."""

    def paragraph(match: re.Match[str]) -> str:
        first, _, others = match[2].partition("\n")
        return f"**{match[1]}:** {first}\n{textwrap.dedent(others)}".rstrip()

    parts = SECTION.sub(paragraph, docstring).split("`")  # every other one is code
    parts[::2] = [re.sub(r"<(?=[\w/]+>)", "&lt;", part) for part in parts[::2]]
    return "`".join(parts)


class Paragraphs(Extension):  # type: ignore[misc]
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = paragraphs(obj.docstring.value)
