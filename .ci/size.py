"""Prints how large the project is. Fails only if the spine breaks its rules.

    python .ci/size.py

The spine is the numbered list of files below "The spine" in CONTRIBUTING.md: the way of one pass
from the command to durable rows. It has at most 12 files of 3,500 lines together, and they import
only each other and the leaf modules that the section names.

A line of code is one that is neither blank nor comment nor docstring. A docstring is any string
that is a statement of its own. The core is config, data, store, training, nn, models and the Python
of the operators. Benchmarks are the scripts in benchmarks/ without those in its folders. Words are
counted in all pages of docs/, formats included; README, CONTRIBUTING and CHANGELOG stand apart.

Config keys are the rows of the tables in docs/config.md. `table.embed` and `table.embedx` have the
same keys, which count once. Those that a single model declares are counted apart.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "paddlebox"
CORE = ("config", "data", "store", "training", "nn", "models")
NATIVE = {".cc", ".cu", ".h", ".inl"}
LONG = 800  # lines of a file
SPINE_FILES, SPINE_LINES = 12, 3500
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Module:
    path: Path
    lines: int
    code: int
    docstrings: int

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def of_core(self) -> bool:
        first = self.path.relative_to(PACKAGE).parts[0]
        return first in CORE or first == "_call.py" or first.startswith("ops")


def measure(path: Path) -> Module:
    text = path.read_text()
    docstrings = set[int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                docstrings |= set(range(first, (last or first) + 1))
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    blank = {number for number, line in enumerate(lines, 1) if not line.strip()}
    return Module(path, len(lines), len(code - docstrings - blank), len(docstrings))


def words(*paths: Path) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def config_keys() -> tuple[int, int]:
    """The number of keys of no or several models, and of those that a single model declares."""
    page = (ROOT / "docs" / "config.md").read_text()
    table = page.partition("\n## Keys\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(?: ([\w, ]+) \|)? `([^` ]+)`[,` \w.]* \|", table, re.MULTILINE)
    single = [key for models, key in rows if models and "," not in models]
    others = [key for models, key in rows if not models or "," in models]
    shared = {key.replace("table.embedx.", "table.embed.") for key in others}
    return len(shared), len(single)


def spine(text: str) -> tuple[list[str], list[str]]:
    """The files of the spine, and the leaf modules and headers that they may use.

    Args:
        text: CONTRIBUTING.md.
    """
    section = text.partition("\n### The spine\n")[2].partition("\n#")[0]
    listed, _, leaves = section.partition("\nLeaf modules: ")
    whole, *of_packages = re.split(r"; of\s+`(\S+)`:", leaves.partition("\n\n")[0])
    names = re.findall(r"`(\S+)`", whole)
    for package, chunk in zip(of_packages[::2], of_packages[1::2], strict=True):
        names += [f"{package}.{name}" for name in re.findall(r"`(\S+)`", chunk)]
    return re.findall(r"^\d+\. `(\S+)`", listed, re.MULTILINE), names


def uses(path: Path) -> Iterator[str]:
    """The modules of the project that a file imports, or the headers that it includes."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from (f"ops/{name}" for name in re.findall(r'^#include "(\S+)"', text, re.MULTILINE))
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [
                    whole if any(file.exists() for file in files_of(whole)) else module
                    for whole in (f"{module}.{name.name}" for name in names)
                ]
            case _:
                continue
        yield from (name for name in found if name.partition(".")[0] == PACKAGE.name)


def files_of(module: str) -> tuple[Path, Path]:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def within(name: str, leaf: str) -> bool:
    return name == leaf or name.startswith(f"{leaf}.")


def check_spine() -> list[str]:
    """What is wrong with the spine."""
    files, leaves = spine((ROOT / "CONTRIBUTING.md").read_text())
    paths = [ROOT / file for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if not path.is_file()]
    if missing or not files:
        return [
            f"CONTRIBUTING.md: the spine names no file {name}" for name in missing or ["at all"]
        ]
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    wrong = []
    if len(files) > SPINE_FILES or lines > SPINE_LINES:
        wrong.append(
            f"the spine has {len(files)} files with {lines} lines, expected at most {SPINE_FILES} "
            f"with {SPINE_LINES}"
        )
    used = {name for path in paths for name in uses(path)}
    wrong += [
        f"CONTRIBUTING.md: no file of the spine uses the leaf module {leaf}"
        for leaf in leaves
        if not any(within(name, leaf) for name in used)
    ]
    own = {file.removesuffix(".py").replace("/", ".") for file in files} | {*files}
    for file, path in zip(files, paths, strict=True):
        for name in dict.fromkeys(uses(path)):
            if name not in own and not any(within(name, leaf) for leaf in leaves):
                wrong.append(f"{file}: uses {name}, neither of the spine nor a leaf module")
    return wrong


def report() -> list[str]:
    modules = [measure(path) for path in sorted(PACKAGE.rglob("*.py"))]
    lines = sum(module.lines for module in modules)
    native = [path for path in (ROOT / "ops").rglob("*") if path.suffix in NATIVE]
    long = [(module.lines, module.name) for module in modules if module.lines > LONG]
    keys, single = config_keys()
    rows: list[tuple[str, int]] = [
        ("paddlebox/: code lines", sum(module.code for module in modules)),
        ("  of it the core", sum(module.code for module in modules if module.of_core)),
        ("paddlebox/: docstring lines", sum(module.docstrings for module in modules)),
        ("paddlebox/: all lines", lines),
        ("paddlebox/: files", len(modules)),
        ("paddlebox/: mean lines of a file", round(lines / len(modules))),
        (f"paddlebox/: files of more than {LONG} lines", len(long)),
        *((f"  {name}", count) for count, name in sorted(long, reverse=True)),
        ("ops/: lines of C++ and CUDA", sum(len(p.read_text().splitlines()) for p in native)),
        ("benchmarks/: scripts", len([*(ROOT / "benchmarks").glob("*.py")])),
        ("docs/: words", words(*(ROOT / "docs").rglob("*.md"))),
        *((f"  {n}: words", words(ROOT / n)) for n in ("README.md", "CONTRIBUTING.md")),
        ("  CHANGELOG.md: words", words(ROOT / "CHANGELOG.md")),
        ("config keys", keys),
        ("  besides them, keys of single models", single),
    ]
    return [f"{text:45} {count:8,}" for text, count in rows]


if __name__ == "__main__":
    print("\n".join(report()))
    sys.exit("\n".join(check_spine()) or None)
