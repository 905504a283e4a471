"""Shared by the tests of mistakes: a mistake, and the rule that its error message must follow."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ERROR = re.compile(r"^(?:\w+Error|[\w.]+: error): ", re.M)
_QUOTED = re.compile(r"  \S+:\d+: ")  # a line of data, with what is wrong with it
_TROUBLE = re.compile(r" (?:WARNING|ERROR|CRITICAL) ")


@dataclass(frozen=True)
class Said:
    """What a command ended with and printed. code: None for a call from Python."""

    code: int | None
    text: str


@dataclass(frozen=True)
class Named:
    """Words that an error has: the object, what was expected, what was found, what to do."""

    object: str
    expected: str
    found: str
    step: str
    code: int | None = None

    def ending_with(self, code: int) -> Named:
        return replace(self, code=code)


def check(said: Said, named: Named) -> None:
    """One error, said once, with all four, and nothing else that looks like one."""
    starts = [found.start() for found in _ERROR.finditer(said.text)]
    assert len(starts) == 1, f"{len(starts)} errors:\n{said.text}"
    error = said.text[starts[0] :]
    assert "Traceback" not in said.text, said.text
    assert not _TROUBLE.search(said.text), f"more than one message:\n{said.text}"
    assert " errors\n" not in error, f"several problems for one mistake:\n{error}"
    for what in ("object", "expected", "found", "step"):
        words = getattr(named, what)
        assert words in error, f"{what}: {words!r} is not in\n{error}"
    lines = error.splitlines()
    clauses = [line for line in lines if _QUOTED.match(line)]
    for line in lines:
        clauses += [] if line in clauses else [c.strip() for c in re.split(r"[;:.,]\s", line)]
    long = [clause for clause in clauses if len(clause) > 20]
    assert len(long) == len({*long}), f"said twice:\n{error}"
    assert said.code == named.code, f"exit code {said.code}:\n{error}"
