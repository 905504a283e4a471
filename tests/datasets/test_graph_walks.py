"""Walks go along edges only, are the same for the same seed, and refuse what is no graph."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from paddlebox.config import Format, load_slots
from tests.datasets.test_task_datasets import FOLDER, MOVIES, RATINGS, load, rows
from tests.support.processes import tool

# Two parts that no edge connects; m5 is not liked.
EDGES = """liked,user,movie,history
1,u1,m1,
1,u1,m2,m1
1,u2,m2,m3
0,u2,m5,m6
1,u3,m8,m9|m8
1,u4,m9,
"""
PARTS = [({"u1", "u2"}, {"m1", "m2", "m3"}), ({"u3", "u4"}, {"m8", "m9"})]
PAIRS = {
    ("u1", "m1"),
    ("u1", "m2"),
    ("u2", "m2"),
    ("u2", "m3"),
    ("u3", "m8"),
    ("u3", "m9"),
    ("u4", "m9"),
}


def arguments(folder: Path, text: str = EDGES) -> list[str]:
    (folder / "edges.csv").write_text(text)
    return [
        *("--edges", str(folder / "edges.csv"), "--user", "user", "--items", "movie", "history"),
        *("--at-least", "liked", "1", "--walks", "20", "--length", "4"),
    ]


def test_each_row_is_an_edge_and_its_history_is_the_walk_before_it(tmp_path: Path) -> None:
    load("graph_walks").main([*arguments(tmp_path), "--out", str(tmp_path / "out")])
    found = rows(tmp_path / "out/train.csv")
    assert len(found) == 4 * 20 * 4  # users, walks, items
    assert {(row["user"], row["item"]) for row in found} == PAIRS
    walks = [found[at : at + 4] for at in range(0, len(found), 4)]
    assert [walk[0]["user"] for walk in walks] == ["u1", "u2", "u3", "u4"] * 20
    for walk in walks:
        (part,) = [part for part in PARTS if walk[0]["user"] in part[0]]
        seen: list[str] = []
        for row in walk:
            assert row["walked"] == "1"
            assert row["user"] in part[0]
            assert row["item"] in part[1]
            expected = dict.fromkeys(one for one in reversed(seen) if one != row["item"])
            assert row["history"] == "|".join(expected)
            seen.append(row["item"])
        # A walk goes on to a user of the item.
        for before, after in itertools.pairwise(walk):
            assert (after["user"], before["item"]) in PAIRS
    slots = load_slots(FOLDER / "graph_walks/slots.yaml")
    slots.check_format(Format.CSV)
    assert {slot.column or slot.name for slot in slots.slots} == set(found[0])


def test_an_edge_is_taken_as_often_as_the_others_of_its_user_however_often_it_is_there(
    tmp_path: Path,
) -> None:
    text = "liked,user,movie,history\n" + "1,u1,m1,\n" * 50 + "1,u1,m2,\n"
    out = tmp_path / "out"
    load("graph_walks").main([*arguments(tmp_path, text), "--out", str(out), "--walks", "200"])
    found = [row["item"] for row in rows(out / "train.csv")]
    assert 300 < found.count("m2") < 500  # of 800


def test_walks_are_the_same_for_the_same_seed_and_the_same_edges(tmp_path: Path) -> None:
    given = arguments(tmp_path)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        load("graph_walks").main([*given, "--out", str(tmp_path / name), "--seed", seed])
    packed = tmp_path / "edges.csv.gz"
    packed.write_bytes(gzip.compress(EDGES.encode()))
    again = [str(packed) if one.endswith("edges.csv") else one for one in given]
    load("graph_walks").main([*again, "--out", str(tmp_path / "d")])
    a, b, c, d = ((tmp_path / name / "train.csv").read_bytes() for name in "abcd")
    assert a == b == d != c


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("liked,user,item\n1,u1,m1\n", "expected the columns user, movie, history, liked, found "
         "liked, user, item: movie, history is missing"),
        ("liked,user,movie,history\n0,u1,m1,\n", "expected edges, found none"),
        ("liked,user,movie,history\n1,7,8,\n1,8,9,\n", "found '8' as both"),
        ("liked,user,movie,history\nyes,u1,m1,\n", "could not convert string to float: 'yes'"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_graph_is_refused_before_anything_is_written(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        load("graph_walks").main([*arguments(tmp_path, text), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_deepfm_starts_with_the_rows_of_all_users_and_movies_of_the_walks(tmp_path: Path) -> None:
    """The commands of the page."""
    (tmp_path / "r.csv").write_text(RATINGS)
    (tmp_path / "m.csv").write_text(MOVIES)
    load("movielens").main(
        ["--ratings", str(tmp_path / "r.csv"), "--movies", str(tmp_path / "m.csv")]
        + ["--out", str(tmp_path), "--test-ratio", "0.34"]
    )
    load("graph_walks").main(
        ["--edges", str(tmp_path / "train.csv"), "--user", "user", "--items", "movie", "history"]
        + ["--at-least", "liked", "1", "--out", str(tmp_path / "walks")]
    )
    for name, files, more in (
        ("dssm_graph_walks", tmp_path / "walks/train.csv", ()),
        (
            "deepfm_movielens",
            tmp_path / "train.csv",
            ("--init-from", tmp_path / "dssm_graph_walks"),
        ),
    ):
        given = ("-c", f"configs/{name}.yaml", "--run-dir", tmp_path / name, *more)
        done = tool("train", *given, "-o", f"data.train_files=[{files}]")
        assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "deepfm_movielens/init.json").read_text())
    assert (found["rows"]["carried"], found["rows"]["dropped"]) == (5, 0)  # 2 users, 3 movies
    parts = found["parts"]
    assert parts["embedx_w"] == "carried"
    assert parts["embed state"].startswith("reset")
    assert parts["embedx state"].startswith("reset")
    # Dense parameters of other layers have other shapes.
    assert not [one for one in found["dense"]["carried"] if one["name"].startswith("linear")]
