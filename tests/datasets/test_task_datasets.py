"""Census-Income, MovieLens and generated purchases: every row once, and what the columns become."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paddlebox.config import Format, load_slots

FOLDER = Path(__file__).resolve().parents[2] / "datasets"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_prepare", FOLDER / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def census_line(age: int, marital: str, income: str) -> str:
    cells = [f"c{column}" for column in range(42)]
    cells[0], cells[7], cells[41] = str(age), marital, income
    return ", ".join(cells)


@pytest.mark.parametrize("packed", [False, True])
def test_census_rows_keep_their_order_and_labels_are_no_features(
    tmp_path: Path, packed: bool
) -> None:
    lines = [
        census_line(age, "Never married" if age % 2 else "Divorced",
                    "50000+." if age % 3 == 0 else "- 50000.")
        for age in range(10)
    ]  # fmt: skip
    text = "\n".join(lines).encode()
    source = tmp_path / "census-income.data"
    source.write_bytes(gzip.compress(text) if packed else text)
    load("census_income").main(["--input", str(source), "--out", str(tmp_path), "--parts", "2"])
    names = ("train-000", "train-001", "test")
    found = [row for name in names for row in rows(tmp_path / f"{name}.csv")]
    assert [int(row["age"]) for row in found] == list(range(10))
    assert [row["never_married"] for row in found] == list("0101010101")
    assert [row["income"] for row in found] == list("1001001001")
    assert not {"c7", "c24", "c41", "Divorced"} & set(found[0].values())
    slots = load_slots(FOLDER / "census_income" / "slots.yaml")
    slots.check_format(Format.CSV)
    assert {slot.column or slot.name for slot in slots.slots if not slot.made} == set(found[0])
    assert slots.tasks == ("income", "never_married")


def test_a_line_of_another_file_is_an_error_with_its_number(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_text(census_line(1, "x", "50000+.") + "\n1, 2, 3\n")
    with pytest.raises(SystemExit, match=r"line 2: expected 42 columns .* found 3"):
        load("census_income").main(["--input", str(source), "--out", str(tmp_path / "out")])


def test_complete_files_are_not_written_again_and_damaged_ones_are(tmp_path: Path) -> None:
    source, out = tmp_path / "a", tmp_path / "out"
    source.write_text("\n".join(census_line(age, "x", "50000+.") for age in range(9)))
    arguments = ["--input", str(source), "--out", str(out), "--parts", "2"]
    prepare = load("census_income")
    prepare.main(arguments)
    first, second = out / "train-000.csv", out / "train-001.csv"
    before = first.stat().st_mtime_ns
    whole = second.read_bytes()
    second.write_bytes(whole[:-5])
    prepare.main(arguments)
    assert first.stat().st_mtime_ns == before
    assert second.read_bytes() == whole
    prepare.main([*arguments[:-1], "1"])
    assert len(rows(first)) == 7


RATINGS = """userId,movieId,rating,timestamp
1,10,4.0,100
1,11,3.0,300
1,12,5.0,200
2,10,3.5,150
2,12,1.0,400
2,13,4.5,250
"""
MOVIES = """movieId,title,genres
10,"Ten, the (1990)",Comedy|Drama
11,Eleven (1991),(no genres listed)
12,Twelve,War
13,Thirteen (1993),War
"""


def test_a_history_is_what_a_user_liked_before_the_latest_first(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(RATINGS)
    (tmp_path / "m.csv").write_text(MOVIES)
    load("movielens").main(
        ["--ratings", str(tmp_path / "r.csv"), "--movies", str(tmp_path / "m.csv")]
        + ["--out", str(tmp_path), "--test-ratio", "0.34"]
    )
    train, test = rows(tmp_path / "train.csv"), rows(tmp_path / "test.csv")
    assert [(row["user"], row["movie"]) for row in train] == [
        ("u1", "m10"), ("u1", "m12"), ("u2", "m10"), ("u2", "m13"),
    ]  # fmt: skip
    assert test[0] == {
        "liked": "0", "user": "u1", "movie": "m11", "genres": "", "year": "y1991",
        "history": "m12|m10", "user_count": "2", "user_mean": "4.500", "time": "300",
    }  # fmt: skip
    assert (test[1]["history"], test[1]["liked"]) == ("m13|m10", "0")
    assert train[0]["genres"] == "Comedy|Drama"
    slots = load_slots(FOLDER / "movielens" / "slots.yaml")
    assert {slot.name for slot in slots.slots} | {"time"} == set(test[0])


def test_ratings_that_do_not_lie_by_user_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(RATINGS + "1,13,4.0,500\n")
    (tmp_path / "m.csv").write_text(MOVIES)
    with pytest.raises(SystemExit, match="rows of user 1 are not next to each other"):
        load("movielens").main(
            ["--ratings", str(tmp_path / "r.csv"), "--movies", str(tmp_path / "m.csv")]
            + ["--out", str(tmp_path)]
        )


def test_generated_purchases_are_of_clicks_and_the_same_for_the_same_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = load("conversions")
    monkeypatch.setattr(prepare, "CHUNK_ROWS", 1500)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        prepare.main(["--out", str(tmp_path / name), "--rows", "4000", "--seed", seed])
    a, b, c = ((tmp_path / name / "test.csv").read_bytes() for name in "abc")
    assert a == b != c
    found = rows(tmp_path / "a" / "train-000.csv")
    assert len(found) == 3200
    assert {(row["click"], row["buy"]) for row in found} == {("0", "0"), ("1", "0"), ("1", "1")}
    best = float(capsys.readouterr().out.split("click ")[1].split(",")[0])
    assert 0.75 < best < 0.9


def test_generated_pages_are_whole_and_who_sees_them_can_know_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = load("page_views")
    monkeypatch.setattr(prepare, "CHUNK_PAGES", 700)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        prepare.main(["--out", str(tmp_path / name), "--pages", "2000", "--parts", "3",
                      "--seed", seed])  # fmt: skip
    a, b, c = ((tmp_path / name / "test.csv").read_bytes() for name in "abc")
    assert a == b != c
    seen: set[str] = set()
    for name in ("train-000", "train-001", "train-002", "test"):
        found = rows(tmp_path / "a" / f"{name}.csv")
        pages = {row["logkey"][16:] for row in found}
        assert len(found) == 3 * len(pages)
        assert not pages & seen
        seen |= pages
        assert [row["logkey"][11:16] for row in found[:4]] == ["0de01", "0de02", "0de03", "0de01"]
        assert [row["position"] for row in found[:3]] == ["p1", "p2", "p3"]
    assert len(seen) == 2000
    said = capsys.readouterr().out.splitlines()[1]
    page, alone = (float(word) for word in said.split() if word.startswith("0."))
    assert 0.7 < alone < page < 0.9
    slots = load_slots(FOLDER / "page_views" / "slots.yaml")
    assert {slot.name for slot in slots.slots} == set(found[0]) - {"logkey"}
