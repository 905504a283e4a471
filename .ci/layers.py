"""Checks that includes and imports go one way. Prints each violation; exits 1 if there is any.

Below, a part may use those on its right, itself, and nothing else of the project.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CPP = {
    "base": set[str](),
    "row": {"base"},
    "rule": {"row", "base"},
    "store": {"rule", "row", "base"},
    "table": {"store", "rule", "row", "base"},
    "serve": {"table", "store", "rule", "row", "base"},
    "feed": {"row", "base"},
    "metric": {"base"},
    "dense": {"base"},
    "ranks": {"base"},
    "cuda": {"store", "ranks", "rule", "row", "base"},
    "paddle": {
        *("cuda", "serve", "table", "store", "rule", "row", "feed", "metric", "dense", "ranks"),
        "base",
    },
}
# Headers of others that only ops/paddle may include.
FRAMEWORK = re.compile(r"(paddle|pybind11|Python\.h)(/|$)")

_FLOOR = {"closing", "config", "errors", "heartbeat"}
_NATIVE = _FLOOR | {"_native"}
_DATA = _NATIVE | {"store", "data"}
_MODELS = _NATIVE | {"ops", "nn", "models"}
_TRAIN = _DATA | _MODELS | {"saves", "ranks", "train"}
PYTHON = {
    "closing": set[str](),
    "errors": set[str](),
    "heartbeat": set[str](),
    "config": {"errors"},
    "_paddle_version": set[str](),
    "_build_info": set[str](),
    "_native": _FLOOR | {"_paddle_version", "_build_info", "_ops"},
    "store": _NATIVE,
    "ranks": _NATIVE | {"_call", "store"},
    "saves": _NATIVE | {"store"},
    "box_wrapper": _NATIVE | {"store", "saves", "data"},
    "data": _NATIVE | {"store"},
    "_call": _NATIVE,
    "ops_dense": _NATIVE | {"_call"},
    "ops_seqpool": _NATIVE | {"_call"},
    "ops": _NATIVE | {"_call", "ops_dense", "ops_seqpool"},
    "nn": _NATIVE | {"ops"},
    "models": _NATIVE | {"ops", "nn"},
    "watch": _FLOOR | {"watch"},
    "train": _TRAIN | {"watch"},
    "serving": _TRAIN - {"train"},
    "launch": _TRAIN | {"serving", "watch"},
}
# Product tooling: uses the whole core, and nothing uses it.
PYTHON["tools"] = {*PYTHON, "tools"}
# The package itself: names only, loaded on first use. It is the face, so nothing inside uses it.
FACADE = "__init__"
NO_PADDLE = {"config", "errors", "heartbeat", "_paddle_version"}
OUTSIDE = {"tools", "tests", "datasets", "benchmarks", "configs"}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def cpp_violations(root: Path) -> Iterator[str]:
    """Violations among ops/<layer>/*: 'path:line: what'."""
    for path in sorted((root / "ops").rglob("*")):
        if path.suffix not in {".h", ".inl", ".cc", ".cu", ".cuh"}:
            continue
        name = path.relative_to(root)
        layer = name.parts[1]
        if layer not in CPP or len(name.parts) != 3:
            yield f"{name}:1: not in one of the layers ops/{{{','.join(CPP)}}}/"
            continue
        text = path.read_text(encoding="utf-8")
        for match in _INCLUDE.finditer(text):
            header = match.group(1)
            target = header.split("/")[0]
            where = f"{name}:{_line(text, match.start())}"
            if ".." in header.split("/"):
                yield f"{where}: includes {header}: include paths start at ops/"
            elif FRAMEWORK.match(header):
                if layer != "paddle":
                    yield f"{where}: includes {header}: only ops/paddle may"
            elif target in CPP and target != layer and target not in CPP[layer]:
                yield f"{where}: ops/{layer} includes {header}, which is not below it"


def _imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, also those inside functions and importlib calls.

    `from a import b` gives a.b: b may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            argument = node.args[0]
            if (
                name in {"import_module", "__import__"}
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
            ):
                yield node.lineno, argument.value


def python_violations(root: Path) -> Iterator[str]:
    """Violations among paddlebox/**/*.py: 'path:line: what'."""
    for path in sorted((root / "paddlebox").rglob("*.py")):
        name = path.relative_to(root)
        unit = name.parts[1].removesuffix(".py")
        if unit == FACADE:
            continue
        if unit not in PYTHON:
            yield f"{name}:1: paddlebox.{unit} has no place among the layers: give it one here"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(name))
        for line, module in _imported(tree, list(name.parts[:-1])):
            parts = module.split(".")
            where = f"{name}:{line}: imports {module}"
            if parts[0] in OUTSIDE:
                yield f"{where}: nothing in paddlebox may"
            elif parts[0] == "paddle" and unit in NO_PADDLE:
                yield f"{where}: paddlebox.{unit} must load without Paddle"
            elif parts[0] == "paddlebox":
                target = parts[1] if len(parts) > 1 else FACADE
                if target in {unit, "__version__"}:
                    continue
                if target not in PYTHON and target != "_ops":
                    yield f"{where}: import the module that defines it, not the package's face"
                elif target not in PYTHON[unit]:
                    yield f"{where}, which is not below paddlebox.{unit}"


def python_circles(root: Path) -> Iterator[str]:
    """The first circle of imports between folders of paddlebox/ and of paddlebox/tools/."""
    graph: dict[str, set[str]] = {}
    for path in sorted((root / "paddlebox").rglob("*.py")):
        name = path.relative_to(root)
        importer = _folder(name.with_suffix("").parts)
        if importer == FACADE:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(name))
        for _, module in _imported(tree, list(name.parts[:-1])):
            parts = module.split(".")
            if parts[0] == "paddlebox" and len(parts) > 1 and _folder(parts) != importer:
                graph.setdefault(importer, set()).add(_folder(parts))
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = [f"paddlebox.{folder}" for folder in reversed(error.args[1])]
        yield f"{circle[0].replace('.', '/')}:1: circle of imports: {' -> '.join(circle)}"


def _folder(parts: Sequence[str]) -> str:
    """`train` for paddlebox.train.loop, `tools.report` for paddlebox.tools.report.page."""
    return ".".join(parts[1 : 3 if parts[1] == "tools" else 2])


def main(root: Path) -> int:
    violations = [*cpp_violations(root), *python_violations(root), *python_circles(root)]
    for violation in violations:
        print(violation)
    print(f"layers: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
