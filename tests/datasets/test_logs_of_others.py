"""Avazu, Criteo's days, Taobao, Amazon and KuaiRand, on made-up files of their form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Format, load_slots
from tests.datasets.test_task_datasets import FOLDER, load, rows

DAY = 86400
MONDAY = 1511712000  # 27 November 2017, 0:00 in China


def check_columns(dataset: str, path: Path) -> None:
    slots = load_slots(FOLDER / dataset / "slots.yaml")
    slots.check_format(Format.CSV)
    used = {slot.column or slot.name for slot in slots.slots if not slot.made}
    assert used == set(rows(path)[0])


def avazu(hours: list[str]) -> str:
    features = load("avazu").FEATURES
    lines = [",".join(("id", "click", "hour", *features))]
    lines += [
        ",".join([str(number), str(number % 2), hour, *(f"{name}-{number}" for name in features)])
        for number, hour in enumerate(hours)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("packed", [False, True])
def test_avazu_has_a_file_a_day_and_the_last_day_is_for_testing(
    tmp_path: Path, packed: bool
) -> None:
    source = tmp_path / "train.gz"
    text = avazu(["14102100", "14102123", "14102200", "14102305"]).encode()
    source.write_bytes(gzip.compress(text) if packed else text)
    load("avazu").main(["--input", str(source), "--out", str(tmp_path)])
    names = ["train-20141021.csv", "train-20141022.csv", "test-20141023.csv"]
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == sorted(names)
    found = [row for name in names for row in rows(tmp_path / name)]
    assert [row["C21"] for row in found] == [f"C21-{number}" for number in range(4)]
    assert [(row["click"], row["hour_of_day"], row["weekday"]) for row in found] == [
        ("0", "00", "1"), ("1", "23", "1"), ("0", "00", "2"), ("1", "05", "3"),
    ]  # fmt: skip
    check_columns("avazu", tmp_path / names[0])


def test_avazus_rows_out_of_order_and_its_test_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "train"
    source.write_text(avazu(["14102200", "14102100"]))
    arguments = ["--input", str(source), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="20141021 comes after 20141022"):
        load("avazu").main(arguments)
    source.write_text(avazu(["14102200"]).replace("click,", ""))
    with pytest.raises(SystemExit, match="Kaggle's test has no clicks"):
        load("avazu").main(arguments)


def test_criteos_days_are_cut_in_order_and_what_is_complete_stays(tmp_path: Path) -> None:
    for day in (2, 10, 23):
        lines = "".join(f"{day}\t{line}" + "\t" * 38 + "\n" for line in range(7))
        (tmp_path / f"day_{day}.gz").write_bytes(gzip.compress(lines.encode()))
    days = [str(tmp_path / f"day_{day}.gz") for day in (10, 2, 23)]
    arguments = ["--days", *days, "--out", str(tmp_path / "out"), "--rows", "3"]
    load("criteo_1tb").main(arguments)
    parts = sorted((tmp_path / "out" / "train").glob("day_*/part-*.txt.gz"))
    text = "".join(gzip.decompress(part.read_bytes()).decode() for part in parts)
    assert [line.split("\t")[:2] for line in text.splitlines()] == [
        [str(day), str(line)] for day in (2, 10) for line in range(7)
    ]
    assert len(list((tmp_path / "out" / "test" / "day_23").glob("part-*"))) == 3
    before = [part.stat().st_mtime_ns for part in parts]
    parts[1].unlink()  # as if it had been stopped
    load("criteo_1tb").main(arguments)
    after = [part.stat().st_mtime_ns for part in parts]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, *[True] * 4]


def test_a_file_that_is_not_a_day_of_criteo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_text("1\t2\n")
    with pytest.raises(SystemExit, match="expected 40 columns separated by tabs, found 2"):
        load("criteo_1tb").main(["--days", str(tmp_path / "day_0"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"day_0\.gz to day_23\.gz"):
        load("criteo_1tb").main(["--days", str(tmp_path / "x.gz"), "--out", str(tmp_path)])


def taobao() -> str:
    acts = [
        ("7", "100", "1", "pv", MONDAY + 60),
        ("7", "102", "2", "pv", MONDAY + 7200),
        ("7", "101", "1", "pv", MONDAY + 3600),  # not in time order
        ("7", "109", "9", "buy", MONDAY + 3700),
        ("7", "103", "2", "pv", MONDAY + 6 * DAY),  # of the last day
        ("8", "100", "1", "pv", MONDAY - 10 * DAY),  # not of the nine days
        ("8", "104", "3", "pv", MONDAY),
    ]
    return "".join(",".join(map(str, act)) + "\n" for act in acts)


def test_taobaos_histories_have_the_latest_first_and_each_act_another_item(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text(taobao())
    out = tmp_path / "out"
    load("taobao").main(["--input", str(tmp_path / "u.csv"), "--out", str(out), "--length", "2"])
    train, test = rows(out / "train-000.csv"), rows(out / "test.csv")
    assert [(row["done"], row["item"]) for row in train if row["done"] == "1"] == [
        ("1", "i101"), ("1", "i102"),
    ]  # fmt: skip
    assert [row["done"] for row in train] == ["1", "0", "1", "0"]
    assert train[2] == {
        "done": "1", "user": "u7", "item": "i102", "category": "c2", "weekday": "0", "hour": "2",
        "history": "i101|i100", "history_categories": "c1|c1",
    }  # fmt: skip
    assert {k: v for k, v in train[3].items() if k not in ("done", "item", "category")} == {
        k: v for k, v in train[2].items() if k not in ("done", "item", "category")
    }
    categories = {"i100": "c1", "i101": "c1", "i102": "c2", "i103": "c2", "i104": "c3"}
    assert all(categories[row["item"]] == row["category"] for row in [*train, *test])
    assert (test[0]["item"], test[0]["history"]) == ("i103", "i102|i101")
    check_columns("taobao", out / "test.csv")


def test_taobaos_draws_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    lines = [f"{user},{100 * user + k},{k},pv,{MONDAY + k}\n" for user in (1, 2) for k in range(9)]
    (tmp_path / "u.csv").write_text("".join(lines))
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        arguments = ["--input", str(tmp_path / "u.csv"), "--out", str(tmp_path / name)]
        load("taobao").main([*arguments, "--seed", seed])
    a, b, c = ((tmp_path / name / "train-000.csv").read_bytes() for name in "abc")
    assert a == b != c
    (tmp_path / "u.csv").write_text("1,2,3,seen,4\n")
    with pytest.raises(SystemExit, match="line 1: expected user,item,category,behavior,seconds"):
        load("taobao").main(["--input", str(tmp_path / "u.csv"), "--out", str(tmp_path / "d")])


REVIEWS = [("A", "x", 5, 30), ("B", "x", 2, 10), ("A", "y", 4, 20), ("A", "z", 1, 40)]


@pytest.mark.parametrize("version", [2018, 2023])
def test_amazons_rows_are_by_time_and_know_nothing_of_later(tmp_path: Path, version: int) -> None:
    prepare = load("amazon_reviews")
    user, item, rating, at, unit = prepare.VERSIONS[version]
    reviews: list[dict[str, Any]] = [
        {user: u, item: i, rating: float(r), at: t * unit, "text": "no"} for u, i, r, t in REVIEWS
    ]
    (tmp_path / "r.json").write_text("".join(json.dumps(one) + "\n" for one in reviews))
    category, brand = ("category", "brand") if version == 2018 else ("categories", "store")
    meta = {item: "x", category: ["All", "Cables, long"], brand: "a|b"}
    (tmp_path / "m.gz").write_bytes(gzip.compress(json.dumps(meta).encode()))
    arguments = ["--reviews", str(tmp_path / "r.json"), "--meta", str(tmp_path / "m.gz")]
    prepare.main([*arguments, "--out", str(tmp_path), "--test-ratio", "0.25", "--rows", "2"])
    names = ("train-000", "train-001", "test")
    found = [row for name in names for row in rows(tmp_path / f"{name}.csv")]
    assert [(row["liked"], row["user"], row["item"], row["history"]) for row in found] == [
        ("0", "uB", "ix", ""), ("1", "uA", "iy", ""), ("1", "uA", "ix", "iy"),
        ("0", "uA", "iz", "ix|iy"),
    ]  # fmt: skip
    assert [row["user_mean"] for row in found] == ["0.000", "0.000", "4.000", "4.500"]
    assert [row["item_count"] for row in found] == ["0", "0", "1", "0"]
    assert (found[0]["category"], found[0]["brand"]) == ("Cables long", "a b")
    check_columns("amazon_reviews", tmp_path / "test.csv")


def test_amazons_version_of_2014_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{'asin': 'x'}\n")
    with pytest.raises(SystemExit, match=r"line 1: expected a JSON object, .* 2014"):
        load("amazon_reviews").main(["--reviews", str(tmp_path / "r.json"), "--out", str(tmp_path)])
    (tmp_path / "r.json").write_text('{"asin": "x"}\n')
    with pytest.raises(SystemExit, match=r"expected reviewerID, .* found \['asin'\]"):
        load("amazon_reviews").main(["--reviews", str(tmp_path / "r.json"), "--out", str(tmp_path)])


def kuairand(folder: Path) -> None:
    prepare = load("kuairand")
    log = (*prepare.OF_LOG, *prepare.LABELS, "date", "hourmin", "duration_ms", "time_ms")
    for name, dates in (("4_08_to_4_21", (20220408,)), ("4_22_to_5_08", (20220506, 20220508))):
        lines = [
            f"{k},{10 + k},1,{k % 2},0,0,{date},{1300 + k},{k * 1000},{date}00{k}"
            for date in dates
            for k in range(2)
        ]
        text = "\n".join([",".join(log), *lines]) + "\n"
        (folder / f"log_standard_{name}_pure.csv").write_text(text)
    user = [",".join(("user_id", *prepare.OF_USER)) + " ", "1," + ",".join(prepare.OF_USER)]
    (folder / "user_features_pure.csv").write_text("\n".join(user) + "\n")
    video = ["video_id,upload_dt," + ",".join(prepare.OF_VIDEO), '11,x,a,NORMAL,,m,"3,4"']
    (folder / "video_features_basic_pure.csv").write_text("\n".join(video) + "\n")


def test_kuairands_logs_are_joined_with_users_and_videos(tmp_path: Path) -> None:
    kuairand(tmp_path)
    out = tmp_path / "out"
    load("kuairand").main(["--folder", str(tmp_path), "--out", str(out)])
    assert sorted(path.name for path in out.glob("*.csv")) == [
        "test-001.csv", "train-000.csv", "train-001.csv",
    ]  # fmt: skip
    unknown, known = rows(out / "train-001.csv")
    assert (known["is_click"], known["hour"], known["seconds"]) == ("1", "13", "1.0")
    assert (known["onehot_feat17"], known["video_author_id"]) == ("onehot_feat17", "a")
    assert known["video_tag"] == "3|4"
    assert (unknown["onehot_feat17"], unknown["video_tag"], unknown["video_id"]) == ("", "", "10")
    assert len(rows(out / "test-001.csv")) == 2
    check_columns("kuairand", out / "train-000.csv")


def test_kuairands_rows_have_the_clicks_before_them_and_users_stay_together(tmp_path: Path) -> None:
    kuairand(tmp_path)
    columns = "user_id,video_id,tab,is_click,long_view,is_like,date,hourmin,duration_ms,time_ms"
    lines = ["7,5,1,1,0,0,20220408,1300,0,30", "8,6,1,1,0,0,20220408,1300,0,20",
             "7,4,1,1,0,0,20220408,1300,0,10", "7,3,1,0,0,0,20220409,1300,0,40",
             "7,2,1,1,0,0,20220409,1300,0,40"]  # fmt: skip
    log = tmp_path / "log_standard_4_08_to_4_21_pure.csv"
    log.write_text("\n".join([columns, *lines]) + "\n")
    later = ["7,1,1,0,0,0,20220508,1300,0,50"]
    (tmp_path / "log_standard_4_22_to_5_08_pure.csv").write_text(
        "\n".join([columns, *later]) + "\n"
    )
    out = tmp_path / "out"
    load("kuairand").main(["--folder", str(tmp_path), "--out", str(out), "--history", "2"])
    found = [(row["user_id"], row["video_id"], row["time"], row["history"])
             for row in rows(out / "train-000.csv")]  # fmt: skip
    assert found == [
        ("7", "4", "10", ""), ("7", "5", "30", "4"), ("7", "3", "40", "5|4"),
        ("7", "2", "40", "5|4"), ("8", "6", "20", ""),
    ]  # fmt: skip
    assert [row["history"] for row in rows(out / "test-001.csv")] == ["2|5"]
    slots = load_slots(FOLDER / "kuairand" / "slots_history.yaml")
    slots.check_format(Format.CSV)
    assert {slot.name for slot in slots.slots} < set(rows(out / "train-000.csv")[0])


def test_kuairands_clicks_of_one_time_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    kuairand(tmp_path)
    columns = "user_id,video_id,tab,is_click,long_view,is_like,date,hourmin,duration_ms,time_ms"
    lines = [f"7,{video},1,1,0,0,20220408,1300,0,{time}"
             for video, time in ((6, 10), (4, 10), (5, 10), (1, 20))]  # fmt: skip
    log = tmp_path / "log_standard_4_08_to_4_21_pure.csv"
    log.write_text("\n".join([columns, *lines]) + "\n")
    out = tmp_path / "out"
    load("kuairand").main(["--folder", str(tmp_path), "--out", str(out), "--history", "3"])
    assert [row["history"] for row in rows(out / "train-000.csv")] == ["", "", "", "5|4|6"]


@pytest.mark.parametrize("history", ["0", "2"])
def test_a_line_of_kuairands_log_that_was_cut_is_refused(tmp_path: Path, history: str) -> None:
    kuairand(tmp_path)
    log = tmp_path / "log_standard_4_08_to_4_21_pure.csv"
    log.write_text(log.read_text() + "7,5,1,1,0,0,20220408\n")
    lacking = "time_ms" if history == "2" else "hourmin, duration_ms"
    given = ["--folder", str(tmp_path), "--out", str(tmp_path / "out"), "--history", history]
    with pytest.raises(SystemExit, match=rf"{log.name}, line 4: no {lacking}"):
        load("kuairand").main(given)


def test_a_folder_that_is_not_kuairands_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected log_standard_"):
        load("kuairand").main(["--folder", str(tmp_path), "--out", str(tmp_path / "out")])
    kuairand(tmp_path)
    log = tmp_path / "log_standard_4_08_to_4_21_pure.csv"
    log.write_text(log.read_text().replace("long_view", "view"))
    with pytest.raises(SystemExit, match="missing columns: long_view"):
        load("kuairand").main(["--folder", str(tmp_path), "--out", str(tmp_path / "out")])
