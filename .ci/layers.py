"""Checks the direction of includes and imports. Prints violations; exits with 1 if there are any.

In the tables below, each part may use itself and the parts on its right, and nothing else of the
project.
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
    "library": {"serve", "feed", "table", "store", "rule", "row", "base"},
    "metric": {"base"},
    "dense": {"base"},
    "compat": {"dense", "base"},
    "ranks": {"base"},
    "cuda": {"store", "ranks", "rule", "row", "base"},
    "device": {"cuda", "table", "store", "rule", "row", "base"},
    "gpu": {"cuda", "base"},
    "paddle": {
        *("device", "gpu", "library", "serve", "table", "store", "rule", "row", "feed", "metric"),
        *("compat", "dense", "ranks", "base"),
    },
}
# Layers whose files are in sub-folders, and the folders of its layer that each sub-folder may use.
ROOMS = {
    "feed": {
        "expr": set[str](),
        "text": {"expr"},
        "columns": {"expr", "text"},
        "instances": {"expr", "text"},
    },
    "paddle": {
        "operators": set[str](),
        "bindings": {"operators"},
        "compat": {"operators"},
        "gpu": set[str](),
    },
}
# Headers of other projects that only ops/paddle may include.
FRAMEWORK = re.compile(r"(paddle|pybind11|Python\.h)(/|$)")

_FLOOR = {"closing", "config", "errors", "heartbeat", "mpi"}
_NATIVE = _FLOOR | {"_native"}
_DATA = _NATIVE | {"store", "data"}
_MODELS = _NATIVE | {"ops", "nn", "models"}
_TRAIN = _DATA | _MODELS | {"saves", "training", "watch"}
PYTHON = {
    "closing": set[str](),
    "errors": set[str](),
    "heartbeat": set[str](),
    "mpi": {"errors"},
    "config": {"errors"},
    "_paddle_version": set[str](),
    "_build_info": set[str](),
    "_native": _FLOOR | {"_paddle_version", "_build_info", "_ops"},
    "store": _NATIVE,
    "saves": _NATIVE | {"store"},
    "data": _NATIVE | {"store"},
    "_call": _NATIVE,
    "ops_dense": _NATIVE | {"_call"},
    "ops_jagged": _NATIVE | {"_call"},
    "ops_seqpool": _NATIVE | {"_call"},
    "ops": _NATIVE | {"_call", "ops_dense", "ops_jagged", "ops_seqpool"},
    "nn": _NATIVE | {"ops"},
    "models": _NATIVE | {"ops", "nn"},
    "watch": _FLOOR | {"watch"},
    "training": _TRAIN,
    "ranks": _TRAIN | {"_call", "ranks"},
    "run": _TRAIN | {"ranks", "serving"},
    "serving": _TRAIN - {"training", "watch"},
    "launch": _TRAIN | {"ranks", "run", "serving"},
    "compat": _TRAIN | {"_call", "ops_dense", "ops_seqpool", "ranks"},
}
# The modules of `training` that put a run together: the layer "run".
RUN = {"assembly", "kept_values", "pretrained", "run"}
# What a program calls: may use the whole core, but the core may not use it.
PYTHON["api"] = {*PYTHON, "api"}
# Product tooling: the same, and it may use the API.
PYTHON["tools"] = {*PYTHON, "tools"}
# The command starts any of them.
PYTHON["__main__"] = {*PYTHON, "__main__"}
# The package itself only exports names, which it loads on first use. Nothing inside may use it.
FACADE = "__init__"
NO_PADDLE = {"config", "errors", "heartbeat", "mpi", "_paddle_version"}
OUTSIDE = {"tools", "tests", "datasets", "benchmarks", "configs"}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def _circle(uses: dict[str, set[str]]) -> list[str]:
    """A circle of the graph, whose first node is also the last; empty if there is none."""
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _folders(layer: str) -> list[str]:
    return [f"{layer}/{room}" for room in ROOMS[layer]] if layer in ROOMS else [layer]


def _below(folder: str) -> set[str]:
    """The folders that `folder` may use besides itself."""
    layer, _, room = folder.partition("/")
    beside = ROOMS[layer][room] if room else set()
    return {f"{layer}/{one}" for one in beside}.union(*map(_folders, CPP[layer]))


CPP_FOLDERS = {folder: _below(folder) for layer in CPP for folder in _folders(layer)}


def _cpp_folder(path: str) -> str:
    return path.rpartition("/")[0]


def _cpp_files(root: Path) -> Iterator[str]:
    for path in sorted((root / "ops").rglob("*")):
        if path.suffix in {".h", ".inl", ".cc", ".cu", ".cuh"}:
            yield path.relative_to(root / "ops").as_posix()


def _includes(root: Path, name: str) -> Iterator[tuple[int, str]]:
    """(line, header) of every include of ops/<name>."""
    text = (root / "ops" / name).read_text(encoding="utf-8")
    for match in _INCLUDE.finditer(text):
        yield _line(text, match.start()), match.group(1)


def cpp_violations(root: Path) -> Iterator[str]:
    """Violations in the files of ops/, as 'path:line: message'."""
    for name in _cpp_files(root):
        folder = _cpp_folder(name)
        if folder not in CPP_FOLDERS:
            yield f"ops/{name}:1: not in one of the folders ops/{{{','.join(CPP_FOLDERS)}}}/"
            continue
        for line, header in _includes(root, name):
            target, where = _cpp_folder(header), f"ops/{name}:{line}"
            if ".." in header.split("/"):
                yield f"{where}: includes {header}: include paths start at ops/"
            elif target in CPP_FOLDERS:
                if target not in {folder, *CPP_FOLDERS[folder]}:
                    yield f"{where}: ops/{folder} includes {header}, which is not below it"
            elif FRAMEWORK.match(header) and not folder.startswith("paddle/"):
                yield f"{where}: includes {header}: only ops/paddle may include it"


def cpp_circles(root: Path) -> Iterator[str]:
    """The first circle of includes between folders of ops/, regardless of the tables above."""
    uses: dict[str, set[str]] = {}
    for name in _cpp_files(root):
        targets = {_cpp_folder(header) for _, header in _includes(root, name)}
        uses.setdefault(_cpp_folder(name), set()).update(targets - {_cpp_folder(name)})
    if circle := _circle(uses):
        yield f"ops/{circle[0]}:1: circle of includes: {' -> '.join(circle)}"


def _imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, also in functions and importlib calls.

    `from a import b` gives a.b, because b may be a module.
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
    """Violations in paddlebox/**/*.py, as 'path:line: message'."""
    for path in sorted((root / "paddlebox").rglob("*.py")):
        name = path.relative_to(root)
        unit = _layer(name.with_suffix("").parts)
        if unit == FACADE:
            continue
        if unit not in PYTHON:
            yield f"{name}:1: paddlebox.{unit} is in no layer: add it to .ci/layers.py"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(name))
        for line, module in _imported(tree, list(name.parts[:-1])):
            parts = module.split(".")
            where = f"{name}:{line}: imports {module}"
            if parts[0] in OUTSIDE:
                yield f"{where}: nothing in paddlebox may import it"
            elif parts[0] == "paddle" and unit in NO_PADDLE:
                yield f"{where}: paddlebox.{unit} must load without Paddle"
            elif parts[0] == "paddlebox":
                target = _layer(parts) if len(parts) > 1 else FACADE
                if target in {unit, "__version__"}:
                    continue
                if target not in PYTHON and target != "_ops":
                    yield f"{where}: import from the module that defines it, not from the package"
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
    if circle := [f"paddlebox.{folder}" for folder in _circle(graph)]:
        yield f"{circle[0].replace('.', '/')}:1: circle of imports: {' -> '.join(circle)}"


def _layer(parts: Sequence[str]) -> str:
    """`store` for paddlebox.store.life, `run` for paddlebox.training.run."""
    return "run" if parts[1] == "training" and RUN.intersection(parts[2:3]) else parts[1]


def _folder(parts: Sequence[str]) -> str:
    """`training` for paddlebox.training.plan, `tools.report` for paddlebox.tools.report.page."""
    return ".".join(parts[1:3]) if parts[1] == "tools" else _layer(parts)


def main(root: Path) -> int:
    checks = [cpp_violations, cpp_circles, python_violations, python_circles]
    violations = [violation for check in checks for violation in check(root)]
    for violation in violations:
        print(violation)
    print(f"layers: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
