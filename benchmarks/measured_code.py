"""Digests of the code that a benchmark measures, to find results that are out of date.

A script lists what it measures: `MEASURES = ("ops/feed", "paddlebox/data")`. The script itself,
and the files of benchmarks/ that it imports or starts, are added. Comments, docstrings and layout
do not count. A digest of the content stays the same if the history of the repository is rewritten;
the id of a commit does not.
"""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# These only write or publish what a benchmark found.
_REPORTING = {"report.py", "measured_code.py"}
_SUFFIXES = {".py", ".yaml", ".h", ".inl", ".c", ".cc", ".cu"}
_YAML_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
_CPP = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|\s+', re.DOTALL)


def digests(script: Path, measures: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """The digest of each measured path, and of the script with its parts."""
    files = _parts(script.resolve(), root)
    parts = [path.relative_to(root).as_posix() for path in files if path.is_relative_to(root)]
    return {path: digest(path, root) for path in sorted({*measures, *parts})}


def changed(recorded: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """The paths whose code is no longer the recorded one."""
    return [path for path, old in recorded.items() if digest(path, root) != old]


def digest(path: str, root: Path = ROOT) -> str:
    """Digest of a file or of all code below a folder; "missing" if there is none."""
    files = _files(path, root)
    if not files:
        return "missing"
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(root)}\0{_bare(file)}\0".encode())
    return found.hexdigest()[:16]


def written_since(paths: Iterable[str], moment: float, root: Path = ROOT) -> bool:
    """Whether a file of the paths was written after the moment, in seconds since the epoch."""
    return any(file.stat().st_mtime > moment for path in paths for file in _files(path, root))


def _files(path: str, root: Path) -> list[Path]:
    top = root / path
    files = sorted(top.rglob("*")) if top.is_dir() else [top]
    return [file for file in files if file.suffix in _SUFFIXES and file.is_file()]


def _bare(file: Path) -> str:
    """The content without comments, docstrings and layout."""
    text = file.read_text()
    if file.suffix == ".py":
        return "".join(_python(text))
    if file.suffix == ".yaml":
        return _YAML_COMMENT.sub("", text)
    return _CPP.sub(lambda found: found[0] if found[0].startswith('"') else "", text)


def _python(text: str) -> Iterator[str]:
    skipped = {tokenize.COMMENT, tokenize.NL}
    tokens = [token for token in _tokens(text) if token.type not in skipped]
    starts = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    before, docstring = tokenize.NEWLINE, False
    for token, after in itertools.pairwise(tokens):
        ends_docstring = docstring
        is_statement = before in starts and after.type == tokenize.NEWLINE
        docstring = token.type == tokenize.STRING and is_statement
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            yield f"\0{token.type}"
        elif not (docstring or ends_docstring):
            yield token.string
        before = token.type


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens as of Python 3.11: an f-string is one token, and not several."""
    depth, start, lines = 0, (0, 0), text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            start = token.start if depth == 0 else start
            depth += 1
        elif name == "FSTRING_END":
            depth -= 1
            if depth == 0:
                string = _between(lines, start, token.end)
                yield tokenize.TokenInfo(tokenize.STRING, string, start, token.end, token.line)
        elif depth == 0:
            yield token


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text between two positions, each a line from 1 on and a column."""
    part = lines[start[0] - 1 : end[0]]
    part[-1] = part[-1][: end[1]]
    part[0] = part[0][start[1] :]
    return "".join(part)


def _parts(script: Path, root: Path) -> set[Path]:
    """The script and the files of benchmarks/ that it imports or starts, and theirs."""
    folder = root / "benchmarks"
    scripts = {path.stem: path for path in folder.glob("*.py") if path.name not in _REPORTING}
    peers = {f"peers.{path.stem}": path for path in (folder / "peers").glob("*.py")}
    quotable = {path.name: path for path in folder.glob("*/*") if path.suffix in _SUFFIXES}
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        names = set(_names(path))
        for known in (scripts, peers, quotable):
            waiting += [known[name] for name in names & known.keys()]
    return found


def _names(path: Path) -> Iterator[str]:
    """The modules that a script may import, those that it starts, and the files that it quotes or
    includes."""
    if path.suffix != ".py":
        yield from _INCLUDE.findall(path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                yield from (name.name for name in node.names)
            case ast.ImportFrom(module=str(module)):
                yield from (module, *(f"{module}.{name.name}" for name in node.names))
            case ast.Call(func=ast.Name("Subject"), args=[ast.Constant(str(peer)), *_]):
                yield f"peers.{peer}"  # peers/turns.py starts it
            case ast.Constant(value=str(text)) if "." in text:
                yield text.rpartition("/")[2]
