#!/usr/bin/env python3
"""Makes rows of random walks over a graph of users and items: which item comes next?

    python datasets/graph_walks/prepare.py --edges data/movielens/train.csv --user user \\
        --items movie history --at-least liked 1

A walk goes from a user to an item of that user, on to another user of that item, and so on. Each
user starts --walks walks of --length items. The draws of a walk depend on --seed and on the numbers
of the walk and the user, so the same arguments give the same rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import identity, open_text, refused, report, write_parts

HEADER = "walked,user,item,history"
SEPARATOR = "|"  # of several items in a cell


class Side(NamedTuple):
    """The nodes of a side, and the neighbours of each: node n has those of [starts[n], starts[n +
    1])."""

    names: list[str]
    starts: np.ndarray
    neighbours: np.ndarray

    def step(self, nodes: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """A random neighbour of each node."""
        begin, end = self.starts[nodes], self.starts[nodes + 1]
        places = begin + (draw.random(len(nodes)) * (end - begin)).astype(np.int64)
        return np.asarray(self.neighbours[places])


def edges_of(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yields (user, item). Raises SystemExit if the file lacks a column."""
    with open_text(options.edges) as file:
        lines = csv.DictReader(file)
        known = lines.fieldnames or []
        column, least = options.at_least or ("", "0")
        asked = [options.user, *options.items, *([column] if column else [])]
        if missing := [name for name in asked if name not in known]:
            raise SystemExit(
                f"{options.edges}: expected the columns {', '.join(asked)}, found "
                f"{', '.join(known)}: {', '.join(missing)} is missing"
            )
        for line in lines:
            if column and float(line[column] or 0) < float(least):
                continue
            for name in options.items:
                for item in line[name].split(SEPARATOR):
                    if item and line[options.user]:
                        yield line[options.user], item


def read_graph(options: argparse.Namespace) -> tuple[Side, Side]:
    """The users and the items. An edge counts once, however often the file has it. Raises
    SystemExit if there is no edge, or if a user has the name of an item."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    found = array("q")
    for user, item in edges_of(options):
        found.append(users.setdefault(user, len(users)))
        found.append(items.setdefault(item, len(items)))
    if not found:
        raise SystemExit(f"{options.edges}: expected edges, found none")
    if both := next((name for name in users if name in items), None):
        raise SystemExit(
            f"{options.edges}: expected other names for users than for items, found {both!r} as "
            "both: put a letter in front of each"
        )
    edges = np.unique(np.frombuffer(found, np.int64).reshape(-1, 2), axis=0)
    return side(list(users), edges[:, 0], edges[:, 1]), side(list(items), edges[:, 1], edges[:, 0])


def side(names: list[str], nodes: np.ndarray, others: np.ndarray) -> Side:
    order = np.argsort(nodes, kind="stable")
    return Side(names, np.searchsorted(nodes[order], np.arange(len(names) + 1)), others[order])


def walk(users: Side, items: Side, length: int, draw: np.random.Generator) -> np.ndarray:
    """A walk from each user: (users, length, 2), at each step a user and then an item."""
    at, steps = np.arange(len(users.names)), []
    for _ in range(length):
        item = users.step(at, draw)
        steps.append(np.stack([at, item], axis=1))
        at = items.step(item, draw)
    return np.stack(steps, axis=1)


def rows_of(users: Side, items: Side, options: argparse.Namespace) -> Iterator[str]:
    """Yields a row for each item of each walk. Its history has the other items before it, the
    latest first, each once."""
    for number in range(options.walks):
        draw = np.random.default_rng([options.seed, number])
        for steps in walk(users, items, options.length, draw).tolist():
            for place, (user, item) in enumerate(steps):
                before = dict.fromkeys(one for _, one in steps[:place][::-1] if one != item)
                history = SEPARATOR.join(items.names[one] for one in before)
                yield f"1,{users.names[user]},{items.names[item]},{history}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a CSV file of walks over a graph.")
    parser.add_argument("--edges", type=Path, required=True, help="CSV file with a header")
    parser.add_argument("--user", required=True, help="column of the users")
    parser.add_argument(
        "--items", nargs="+", required=True, metavar="COLUMN",
        help="columns of the items; a cell may have several, separated by a vertical bar",
    )  # fmt: skip
    parser.add_argument(
        "--at-least",
        nargs=2,
        metavar=("COLUMN", "VALUE"),
        help="lines that are edges; default: all",
    )
    parser.add_argument("--out", type=Path, default=Path("data/graph_walks"), help="folder")
    parser.add_argument("--walks", type=int, default=10, help="walks from each user")
    parser.add_argument("--length", type=int, default=6, help="items of a walk")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if min(options.walks, options.length) < 1 or options.seed < 0:
        parser.error("expected --walks and --length of 1 or more, and --seed of 0 or more")
    with refused(options.edges):
        users, items = read_graph(options)
        made_of = {
            "input": identity(options.edges),
            **{k: v for k, v in vars(options).items() if k not in ("edges", "out")},
        }
        files = [("train.csv", len(users.names) * options.walks * options.length)]
        write_parts(options.out, files, HEADER, rows_of(users, items, options), made_of)
    report(options.out, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
