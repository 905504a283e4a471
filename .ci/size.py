"""Prints the sizes of functions, classes, constructors and files of the Python package.

    python .ci/size.py

Lines include docstrings and comments. The methods of a class include those of its bases in the
package. The script never fails; its table is for orientation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES, METHODS, PARAMETERS, FILE_LINES = 80, 30, 8, 400
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Class:
    place: str
    bases: list[str]
    methods: set[str]


@dataclass
class Sizes:
    """All sizes, each with its place in the source."""

    functions: list[tuple[int, str]] = field(default_factory=list)
    methods: list[tuple[int, str]] = field(default_factory=list)
    parameters: list[tuple[int, str]] = field(default_factory=list)
    files: list[tuple[int, str]] = field(default_factory=list)


def measure(package: Path) -> Sizes:
    sizes, classes = Sizes(), dict[str, Class]()
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        name = str(path.relative_to(package.parent))
        sizes.files.append((len(text.splitlines()), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                sizes.functions.append((lines(node), f"{name}:{node.lineno} {node.name}"))
            elif isinstance(node, ast.ClassDef):
                place = f"{name}:{node.lineno} {node.name}"
                sizes.parameters += [(count, place) for count in parameters(node)]
                classes[node.name] = Class(place, [*bases(node)], {m.name for m in methods(node)})
    sizes.methods = [(len(with_bases(name, classes)), classes[name].place) for name in classes]
    return sizes


def lines(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def methods(node: ast.ClassDef) -> Iterator[Function]:
    return (member for member in node.body if isinstance(member, Function))


def bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        if isinstance(base, ast.Subscript):
            base = base.value
        yield ast.unparse(base).rpartition(".")[2]


def with_bases(name: str, classes: dict[str, Class]) -> set[str]:
    if name not in classes:
        return set()
    found = classes[name]
    return found.methods.union(*(with_bases(base, classes) for base in found.bases if base != name))


def parameters(node: ast.ClassDef) -> Iterator[int]:
    """The number of parameters of __init__, without self."""
    for method in methods(node):
        if method.name == "__init__":
            given = method.args
            yield len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def report(sizes: Sizes) -> list[str]:
    of_functions = [count for count, _ in sizes.functions]
    total = sum(count for count, _ in sizes.files)
    in_tools = sum(count for count, name in sizes.files if name.startswith("paddlebox/tools/"))
    answer = [
        f"functions: {len(of_functions)}, lines p50 {quantile(of_functions, 0.5)}, "
        f"p90 {quantile(of_functions, 0.9)}, max {max(of_functions)}",
        f"lines: {total}, outside paddlebox/tools {total - in_tools}",
    ]
    for title, found, bound in (
        (f"functions over {FUNCTION_LINES} lines", sizes.functions, FUNCTION_LINES),
        (f"classes over {METHODS} methods", sizes.methods, METHODS),
        (f"constructors over {PARAMETERS} parameters", sizes.parameters, PARAMETERS),
        (f"files over {FILE_LINES} lines", sizes.files, FILE_LINES),
    ):
        over = sorted((each for each in found if each[0] > bound), reverse=True)
        answer.append(f"{title}: {len(over)}")
        answer += [f"  {count:5d}  {place}" for count, place in over]
    return answer


if __name__ == "__main__":
    print("\n".join(report(measure(ROOT / "paddlebox"))))
