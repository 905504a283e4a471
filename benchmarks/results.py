"""Makes the tables of the docs from the published runs, and repeats these runs.

    python benchmarks/results.py tables
    python benchmarks/results.py check
    python benchmarks/results.py run [NAME ...]

tables  makes the tables of the docs, and the results in the README, from benchmarks/published/
check   exits with 1 if one of these tables is not what the published runs say, or if a published
        run is not quoted, was not made with the default settings or not from a commit
run     repeats the published runs, writes them to benchmarks/results/ and lists all goals

A page has the tables of the published run NAME between the comments `begin NAME` and `end NAME`, or
a link to its file. A run is published by copying its file from benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import result_tables
from report import ROOT
from result_tables import Run, number

_BLOCK = re.compile(r"<!-- begin (\w+) -->\n\n(.*?)\n\n<!-- end \1 -->", re.DOTALL)


class Results:
    """The published runs and the pages of a tree."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        files = sorted((root / "benchmarks/published").glob("*.json"))
        self.runs: dict[str, Run] = {file.stem: json.loads(file.read_text()) for file in files}

    def pages(self) -> Iterator[tuple[Path, str, str]]:
        """Each page with its text now, and as the published runs say."""

        def made(found: re.Match[str]) -> str:
            name = found[1]
            if name not in self.runs:
                return found[0]
            text = result_tables.block(name, self.runs[name])
            return f"<!-- begin {name} -->\n\n{text}\n\n<!-- end {name} -->"

        for path in sorted((self.root / "docs").rglob("*.md")):
            text = path.read_text()
            yield path, text, _BLOCK.sub(made, text)
        readme = self.root / "README.md"
        text = readme.read_text()
        lines = [headline(line, self.runs) for line in text.split("\n")]
        yield readme, text, "\n".join(lines)

    def tables(self) -> list[Path]:
        """Writes the pages. Returns those that changed."""
        found = [(path, new) for path, old, new in self.pages() if old != new]
        for path, new in found:
            path.write_text(new)
        return [path for path, _ in found]

    def wrong(self) -> Iterator[str]:
        """What is not as the published runs say, and the runs that may not be published."""
        blocks, links = [], set()
        for path, old, new in self.pages():
            if old != new:
                page = path.relative_to(self.root)
                yield f"{page}: a table differs from benchmarks/published: make it with `tables`"
            blocks += [name for name, _ in _BLOCK.findall(old)]
            links |= set(re.findall(r"published/(\w+)\.json", old))
        for name in sorted({name for name in blocks if blocks.count(name) > 1}):
            yield f"docs: expected one block `begin {name}`, found several"
        for name in sorted({*blocks, *links} ^ self.runs.keys()):
            yield f"expected benchmarks/published/{name}.json and a page that quotes it"
        readme = (self.root / "README.md").read_text()
        for about in HEADLINES:
            if (found := readme.count(f"\n| {about} |")) != 1:
                yield f"README.md: expected one line on {about!r}, found {found}"
        for name, run in self.runs.items():
            if why := refused(run):
                yield f"benchmarks/published/{name}.json: {why}"


def refused(run: Run) -> str:
    """Why a run may not be published; empty if it may be."""
    if not run["figures"]:
        return "measured nothing"
    if others := [w for w in run["command"] if re.match("-(?!-(resume|seeds|wheel)(=|$))", w)]:
        return f"expected the default settings, found {' '.join(others)}"
    if not re.fullmatch("[0-9a-f]+", run["commit"]):
        return f"expected a commit without changes, found {run['commit']}"
    return ""


# ---- the README


def _values(run: Run, pattern: str) -> list[float]:
    """The figures of the goals whose names match; at least one has to."""
    goals = [goal for goal in run["goals"] if re.fullmatch(pattern, goal["name"])]
    if not goals:
        raise KeyError(f"{run['command'][0]} has no goal {pattern!r}")
    return [goal["value"] for goal in goals if "value" in goal]


def _between(run: Run, pattern: str) -> str:
    values = _values(run, pattern)
    if not values:
        return "not measured"
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _zoo(run: Run) -> str:
    figures = run["figures"]
    ours, trees = figures["finalmlp"]["mean"], figures["catboost"]["auc"]
    linear = figures["with logs"]["auc"]
    _, low, high = figures["finalmlp"]["less"]["catboost"]
    tie = " (a tie)" if low < 0 < high else ""
    return f"{ours:.4f} (`finalmlp`); CatBoost {trees:.4f}{tie}; logistic regression {linear:.4f}"


def _generated(run: Run) -> str:
    aucs = [auc for (auc,) in run["figures"]["deepfm_synthetic"]["found"]]
    return f"{statistics.fmean(aucs):.4f}; best possible 0.8245"


def _hot_path(run: Run) -> str:
    kernels, planned = (
        _between(run, f".* 1 threads: times fbgemm_rowwise, {how}")
        for how in ("kernels alone", "with the plan")
    )
    return f"{kernels} times FBGEMM's row-wise Adagrad; with the time of the plan {planned} times"


def _end_to_end(run: Run) -> str:
    peers = ("fbgemm_rowwise", "torch")
    shipped, best, narrow = (
        " and ".join(_between(run, pattern.format(peer)) for peer in peers)
        for pattern in (
            "times {}, as shipped",
            "times {}, best settings",
            "bfloat16, times {}, best settings, bfloat16",
        )
    )
    found = f"{shipped} times as shipped; {best} times with best settings"
    return found if "not measured" in narrow else f"{found}; {narrow} in bfloat16"


def _out_of_memory(run: Run) -> str:
    rate = _between(run, ".*samples/s, of all in memory")
    same = "the same" if min(_values(run, ".*same digest")) == 1 else "**not** the same"
    return f"{rate} of the speed with all rows in memory, and {same} bytes as result"


def _ranks(run: Run) -> str:
    name = re.compile("([0-9]+) ranks, samples/s of as many copies")
    several = [
        f"{(size := found[1])} ranks: {result_tables.figure(goal)} of the samples/s of copies, and "
        f"{_between(run, f'{size} ranks, ahead of torchrec: times')} times torchrec's"
        for goal in run["goals"]
        if (found := name.fullmatch(goal["name"])) and "value" in goal
    ]
    return "; ".join(several) or "not measured"


def _kills(run: Run) -> str:
    kills = sum(of["kills"] for of in run["figures"].values())
    wrong = sum(len(of["wrong"]) for of in run["figures"].values())
    result = f"**{wrong} wrong**" if wrong else "no commit lost, the same bytes at the end"
    return f"{kills} kills: {result}"


# Question of a line -> the benchmark of its figures, and how they are written.
HEADLINES: dict[str, tuple[str, Callable[[Run], str]]] = {
    "AUC on a Criteo sample, trained on the first 80 %": ("zoo_criteo", _zoo),
    "AUC on generated data": ("zoo_claims", _generated),
    "kernels of pull and push, one thread": ("hot_path", _hot_path),
    "whole training steps, one thread, compared with FBGEMM and with PyTorch": (
        "end_to_end",
        _end_to_end,
    ),
    "4.8 GB of rows with 1.2 GB of memory": ("out_of_memory", _out_of_memory),
    "ranks of one model, compared with copies that exchange nothing, and with torchrec": (
        "ranks_rates",
        _ranks,
    ),
    "killed at random moments, and after single changes of files": ("kills", _kills),
}


def headline(line: str, runs: dict[str, Run]) -> str:
    """A line of the README as the published runs say."""
    cells = line.split(" | ")
    name, written = HEADLINES.get(cells[0].removeprefix("| "), ("", str))
    if name not in runs:
        return line
    return " | ".join([cells[0], written(runs[name]), *cells[2:]])


# ---- repeating runs


def repeat(runs: dict[str, Run], folder: Path) -> int:
    """Repeats runs and lists all goals. Returns: 1 if a goal was missed or a benchmark failed, 2 if
    nothing was measured."""
    lines, codes = [], set()
    for name, run in runs.items():
        out = folder / f"{name}.json"
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / run["command"][0]),
            *run["command"][1:],
        ]
        print(f"== {' '.join(run['command'])}", flush=True)
        started = time.time()
        code = subprocess.run([*command, "--out", out], check=False).returncode
        if out.is_file() and out.stat().st_mtime >= started:
            goals = json.loads(out.read_text())["goals"]
            lines += [f"{goal['outcome']:12} {name}: {goal['name']}" for goal in goals]
        else:
            code = code if code == 2 else 1  # it failed, or says what it lacks
            lines.append(f"{'not measured' if code == 2 else 'FAILED':12} {name}")
        codes.add(code)
    print("== goals", *lines, sep="\n")
    return 1 if 1 in codes else 0 if 0 in codes else 2


def main(arguments: Sequence[str] | None = None) -> int:
    results = Results()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("tables", "check"):
        commands.add_parser(name)
    running = commands.add_parser("run")
    names = [  # some runs are of benchmarks that the project no longer has
        name
        for name, run in results.runs.items()
        if (ROOT / "benchmarks" / run["command"][0]).is_file()
    ]
    running.add_argument("names", nargs="*", choices=names, default=names, metavar="NAME")
    running.add_argument("--folder", type=Path, default=ROOT / "benchmarks/results")
    options = parser.parse_args(arguments)
    if options.command == "run":
        return repeat({name: results.runs[name] for name in options.names}, options.folder)
    if options.command == "tables":
        for page in results.tables():
            print(f"written to {page}")
        return 0
    found = list(results.wrong())
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
