"""Keeps the runs behind the figures of the docs, and makes the tables of them.

    python benchmarks/results.py run benchmarks/feeder.py ...
    python benchmarks/results.py publish benchmarks/results/feeder.json ...
    python benchmarks/results.py tables
    python benchmarks/results.py check
    python benchmarks/results.py stale

run      runs benchmarks one after the other and lists the outcomes of all goals
publish  keeps runs in benchmarks/published/; refuses runs of another size than the default, and
         runs of a tree that no commit has or that changed meanwhile, except with --force. --seeds
         may be given, with at least the number of the published run
tables   makes the tables of the docs, and the table of the README, of the published runs
check    exits with 1 if one of these tables is not what the published runs say
stale    lists the published runs whose measured code has changed since, and missing ones

A page has the tables of benchmarks/NAME.py between the comments `begin NAME` and `end NAME`. As
long as no run is published, the table between them stays and begins with "No run is kept".
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
from dataclasses import dataclass
from pathlib import Path

import measured_code
import result_tables
from result_tables import Run, number

ROOT = Path(__file__).resolve().parent.parent
UNKEPT = "No run is kept"
# Arguments that change neither the figures nor the work.
_FREE = re.compile(r"--(out|scratch|jobs)(=|$)")
_SEEDS = re.compile(r"--seeds(=|$)")
_BLOCK = re.compile(r"<!-- begin (\w+) -->\n\n(.*?)\n\n<!-- end \1 -->", re.DOTALL)


class RefusedError(Exception):
    """A run that is not published."""


@dataclass(frozen=True)
class Results:
    """The published runs and the pages of a tree."""

    root: Path = ROOT

    def kept(self) -> dict[str, Run]:
        files = sorted((self.root / "benchmarks/published").glob("*.json"))
        return {file.stem: json.loads(file.read_text()) for file in files}

    def published(self) -> dict[str, Run]:
        """The runs that tables are made of: those that say which code they measured."""
        return {name: run for name, run in self.kept().items() if "code" in run}

    def benchmarks(self) -> list[str]:
        """The scripts that write a run."""
        files = sorted((self.root / "benchmarks").glob("*.py"))
        return [f.stem for f in files if re.search("^MEASURES = ", f.read_text(), re.MULTILINE)]

    def publish(self, file: Path, force: bool = False) -> Path:
        run = json.loads(file.read_text())
        name = run["command"][0].removesuffix(".py")
        kept = self.kept().get(name, {"settings": {}})
        if why := refused(run, force, seeds=kept["settings"].get("seeds", 1)):
            raise RefusedError(f"{file}: not published: {why}")
        seeds = ["--seeds", str(run["settings"]["seeds"])] if _with_seeds(run) else []
        run["command"] = [run["command"][0], *seeds]  # the others name folders of the machine
        to = self.root / f"benchmarks/published/{name}.json"
        to.write_text(json.dumps(run, indent=1) + "\n")
        return to

    def pages(self) -> Iterator[tuple[Path, str, str]]:
        """Each page with its text now, and as the published runs say."""
        runs = self.published()

        def made(found: re.Match[str]) -> str:
            name = found[1]
            if name not in runs:
                return found[0]
            text = result_tables.block(runs[name])
            return f"<!-- begin {name} -->\n\n{text}\n\n<!-- end {name} -->"

        for path in sorted((self.root / "docs").rglob("*.md")):
            text = path.read_text()
            yield path, text, _BLOCK.sub(made, text)
        readme = self.root / "README.md"
        text = readme.read_text()
        lines = [headline(line, runs) for line in text.split("\n")]
        yield readme, text, "\n".join(lines)

    def tables(self) -> list[Path]:
        """Writes the pages. Returns those that changed."""
        found = [(path, new) for path, old, new in self.pages() if old != new]
        for path, new in found:
            path.write_text(new)
        return [path for path, _ in found]

    def wrong(self) -> Iterator[str]:
        """What is not as the published runs say, or has no run and does not say so."""
        runs, on_pages = self.published(), []
        for path, old, new in self.pages():
            page = path.relative_to(self.root)
            if old != new:
                yield f"{page}: a table differs from benchmarks/published: make it with `tables`"
            for name, text in _BLOCK.findall(old):
                on_pages.append(name)
                if name not in runs and not text.startswith(UNKEPT):
                    yield f"{page}: {name} has no published run: begin its tables with {UNKEPT!r}"
        for name in sorted({*self.benchmarks()} ^ {*on_pages}):
            yield f"docs: expected one benchmark `{name}` and one block `begin {name}`"
        readme = (self.root / "README.md").read_text()
        for about, (name, _) in HEADLINES.items():
            lines = [line for line in readme.split("\n") if line.startswith(f"| {about} |")]
            if len(lines) != 1:
                yield f"README.md: expected one line on {about!r}, found {len(lines)}"
            elif name not in runs and EARLIER not in lines[0]:
                yield f"README.md: {name} has no published run: end the result with {EARLIER!r}"

    def stale(self) -> Iterator[str]:
        runs = self.kept()
        for name, run in runs.items():
            if "code" not in run:
                yield f"{name}: does not say which code it measured"
            elif found := measured_code.changed(run["code"], self.root):
                yield f"{name}: changed since {run['commit']}: {', '.join(found)}"
        for name in self.benchmarks():
            if name not in runs:
                yield f"{name}: no published run"


def _with_seeds(run: Run) -> bool:
    return any(_SEEDS.match(word) for word in run["command"])


def refused(run: Run, force: bool, seeds: int) -> str:
    """Why a run is not published; empty if it may be.

    Args:
        seeds: of the run that is published now. A run with the option --seeds has as many or more.
    """
    if "code" not in run:
        return "it does not say which code it measured: run it again"
    if not run["figures"]:
        return "it measured nothing"
    options = [word for word in run["command"][1:] if word.startswith("-")]
    if others := [word for word in options if not _FREE.match(word) and not _SEEDS.match(word)]:
        return f"expected the default settings, found {' '.join(others)}"
    if _with_seeds(run) and (found := run["settings"]["seeds"]) < seeds:
        return f"expected {seeds} seeds or more, as in the published run, found {found}"
    if re.search("-(dirty|changed)$|^unknown$", run["commit"]) and not force:
        return f"its commit is {run['commit']}: commit all changes and run it again, or --force"
    return ""


# ---- the README

EARLIER = "(earlier version)"


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
        "ranks",
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


# ---- running all


def run_all(scripts: Sequence[Path], folder: Path) -> int:
    """Runs benchmarks and lists all goals. Returns: 1 if a goal was missed or a script failed, 2 if
    nothing was measured."""
    lines, codes = [], set()
    for script in scripts:
        out = folder / f"{script.stem}.json"
        print(f"== {script}", flush=True)
        started = time.time()
        code = subprocess.run([sys.executable, script, "--out", out], check=False).returncode
        if out.is_file() and out.stat().st_mtime >= started:
            goals = json.loads(out.read_text())["goals"]
            lines += [f"{goal['outcome']:12} {script.stem}: {goal['name']}" for goal in goals]
        else:
            code = code if code == 2 else 1  # it failed, or says what it lacks
            lines.append(f"{'not measured' if code == 2 else 'FAILED':12} {script.stem}")
        codes.add(code)
    print("== goals", *lines, sep="\n")
    return 1 if 1 in codes else 0 if 0 in codes else 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("scripts", nargs="+", type=Path)
    running.add_argument("--folder", type=Path, default=Path("benchmarks/results"))
    publishing = commands.add_parser("publish")
    publishing.add_argument("files", nargs="+", type=Path)
    publishing.add_argument("--force", action="store_true", help="also runs of a changed tree")
    for name in ("tables", "check", "stale"):
        commands.add_parser(name)
    options, results = parser.parse_args(arguments), Results()
    if options.command == "run":
        return run_all(options.scripts, options.folder)
    if options.command == "publish":
        try:
            for file in options.files:
                print(f"written to {results.publish(file, options.force)}")
        except RefusedError as error:
            sys.exit(str(error))
    elif options.command == "tables":
        for page in results.tables():
            print(f"written to {page}")
    else:
        found = list(results.wrong() if options.command == "check" else results.stale())
        print("\n".join(found))
        return int(options.command == "check" and bool(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
