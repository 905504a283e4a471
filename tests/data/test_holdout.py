"""data.holdout: each row of a file is on one side, the same one whatever reads the file."""

from __future__ import annotations

import csv
import gzip
import itertools
import os
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format
from paddlebox.config.data import HoldoutConfig, ShareBy
from paddlebox.config.slots import Csv
from paddlebox.data import loader
from paddlebox.data.cache import open_cache
from paddlebox.data.first_look import FirstLook
from paddlebox.data.holdout import Rows, check_split
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.data.pipeline import StageTimes
from paddlebox.data.reader import read_chunks
from paddlebox.data.sharing import Share
from paddlebox.errors import ConfigError, DataError
from paddlebox.ranks.world import World
from tests.ranks.threads import coordination
from tests.support.configs import make_config, make_slots
from tests.support.options import load_options

ROWS = 3000
SLOTS = make_slots(click="label", age="dense", user={"hash": True}, item={})
NUMBERS = make_slots(click="label", age="dense", user={}, item={})
TEXTS = (Format.MULTISLOT, Format.FEASIGN_SLOT, Format.SLOT_VALUE)
SIDES = (Rows.HELD_OUT, Rows.TRAINED)
TENTH = HoldoutConfig(share=0.1)
USERS = HoldoutConfig(share=0.3, by="user")


def rows(first: int = 1) -> list[dict[str, Any]]:
    """The item is the number of the row. Days are 1 to 10; no slot uses `day` and `part`."""
    random = np.random.default_rng(first)
    return [
        {
            "click": int(random.random() < 0.3),
            "age": float(random.integers(0, 99)),
            "user": int(random.integers(1, 60)),
            "item": item,
            "day": 1 + (item - first) * 10 // ROWS,
            "part": "test" if item % 4 == 0 else "",
        }
        for item in range(first, first + ROWS)
    ]


def line_of(data_format: Format, row: dict[str, Any]) -> str:
    click, age, user, item = (row[name] for name in ("click", "age", "user", "item"))
    if data_format is Format.MULTISLOT:
        return f"1 {click} 1 {age} 1 {user} 1 {item}\n"
    pairs = (("click", click), ("age", age), ("user", user), ("item", item))
    if data_format is Format.FEASIGN_SLOT:
        return " ".join(f"{value}:{name}" for name, value in pairs) + "\n"
    return " ".join(f"{name}:{value}" for name, value in pairs) + "\n"


def write(folder: Path, data_format: Format, own: Sequence[dict[str, Any]], name: str) -> str:
    path = folder / name
    if data_format is Format.CSV:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, own[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(own)
    elif data_format.is_columnar:
        table = pa.Table.from_pylist(list(own))
        if data_format is Format.PARQUET:
            pq.write_table(table, path, row_group_size=128)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=128)
    else:
        path.write_text("".join(line_of(data_format, row) for row in own))
    return str(path)


def options(
    data_format: Format = Format.CSV, holdout: HoldoutConfig = TENTH, **more: Any
) -> LoadOptions:
    """Of training, unless `rows` says otherwise."""
    slots = more.pop("slots", SLOTS if data_format is Format.CSV else NUMBERS)
    given = {"holdout": holdout, "rows": Rows.TRAINED, "seed": 5, **more}
    return load_options(data_format, slots, 64, **given)


def items(of: LoadedPass) -> list[int]:
    found: list[int] = []
    for begin in range(0, of.size, 64):
        feasigns, offsets = of.instances.pack_feasigns(begin, min(begin + 64, of.size))
        cells = [feasigns[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        found += [cell[0] for cell in cells[1::2]]
    return found


def read(files: Sequence[str], wanted: LoadOptions) -> list[int]:
    return items(load(files, wanted, 1 << 30))


def both(files: Sequence[str], *given: Any, **more: Any) -> tuple[list[int], list[int]]:
    """The items that are held out, and those that are trained."""
    held, trained = (read(files, options(*given, rows=side, **more)) for side in SIDES)
    return held, trained


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "read_chunks", partial(read_chunks, chunk_bytes=2048))


@pytest.fixture
def files(tmp_path: Path, small_chunks: None) -> list[str]:
    """Two CSV files, which are read in small chunks."""
    return [
        write(tmp_path, Format.CSV, rows(1 + number * ROWS), f"{number}.csv") for number in range(2)
    ]


@pytest.mark.parametrize("data_format", [*TEXTS, Format.CSV, Format.PARQUET, Format.ARROW])
def test_each_row_is_on_one_side(tmp_path: Path, small_chunks: None, data_format: Format) -> None:
    files = [write(tmp_path, data_format, rows(1 + n * ROWS), f"{n}.x") for n in range(2)]
    held, trained = both(files, data_format)
    assert sorted(held + trained) == list(range(1, 2 * ROWS + 1))
    assert abs(len(held) - 2 * ROWS * 0.1) < 4 * (2 * ROWS * 0.1 * 0.9) ** 0.5
    assert both(files[:1], data_format)[0] == [item for item in held if item <= ROWS]
    again = {item % ROWS for item in held if item <= ROWS}
    assert again != {item % ROWS for item in held if item > ROWS}  # files differ
    assert both(files, data_format, seed=6)[0] != held
    plain = read(files, options(data_format, rows=Rows.ALL))
    assert sorted(plain) == sorted(held + trained)


def test_pieces_of_a_file_are_split_differently(tmp_path: Path) -> None:
    path = write(tmp_path, Format.PARQUET, rows(), "rows.parquet")
    held, _ = both([path], Format.PARQUET)
    first, second = ({item - 1 - begin for item in held} & {*range(128)} for begin in (0, 128))
    assert first
    assert second
    assert first != second


def test_criteo_is_split(tmp_path: Path) -> None:
    path = tmp_path / "criteo.tsv"
    lines = ["\t".join(["1", *["3"] * 13, f"{number:x}", *["a"] * 25]) for number in range(1000)]
    path.write_text("\n".join(lines))
    slots = make_slots(label="label", I1="dense", C1="sparse")
    sizes = [
        load([str(path)], options(Format.CRITEO_TSV, slots=slots, rows=side), 1 << 30).size
        for side in SIDES
    ]
    assert sum(sizes) == 1000
    assert 60 < sizes[0] < 140


def test_the_side_depends_on_nothing_else(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, trained = both(files)
    assert both(files[::-1])[0] == [*(i for i in held if i > ROWS), *(i for i in held if i <= ROWS)]
    assert both(files, threads=4) == (held, trained)
    assert both(files, budget_bytes=20_000) == (held, trained)
    assert sorted(both(files, shuffle_seed=3)[0]) == held
    assert both(files, slots=make_slots(click="label", user={}, item={})) == (held, trained)
    monkeypatch.setattr(loader, "read_chunks", read_chunks)
    assert both(files) == (held, trained)
    moved = tmp_path / "elsewhere" / "0.csv"
    moved.parent.mkdir()
    moved.write_bytes(Path(files[0]).read_bytes())
    assert both([str(moved)])[0] == [item for item in held if item <= ROWS]
    packed = moved.with_suffix(".csv.gz")
    packed.write_bytes(gzip.compress(moved.read_bytes()))
    packed.rename(moved)
    assert both([str(moved)])[0] == [item for item in held if item <= ROWS]


def test_copies_of_a_file_are_split_alike(files: list[str]) -> None:
    held, trained = both(files[:1])
    again_held, again_trained = both([files[0], files[0]])
    assert again_held == held * 2
    assert again_trained == trained * 2


def test_parsed_files_of_both_sides_are_cached(files: list[str], tmp_path: Path) -> None:
    for path in files:
        os.utime(path, (0, 0))  # a file that has just changed is not cached
    found = both(files)
    cache = open_cache(tmp_path / "cache", 1 << 20)
    assert cache is not None
    for misses, hits in ((4, 0), (4, 4)):
        assert both(files, cache=cache) == found
        assert (cache.misses, cache.hits) == (misses, hits)
    again = load(files, options(cache=cache), 1 << 30)
    assert (again.files_from_cache, again.left_out) == (2, len(found[0]))
    read(files, options(cache=cache, seed=6))
    read(files, options(cache=cache, holdout=HoldoutConfig(share=0.2)))
    read(files, options(cache=cache, rows=Rows.ALL))
    assert cache.misses == 10


@pytest.mark.parametrize("data_format", [Format.CSV, Format.PARQUET])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "share",
    [
        Share(ShareBy.FILES),
        Share(ShareBy.BYTES),
        Share(ShareBy.INSTANCE),
        Share(ShareBy.SLOT, "user"),
    ],
)
def test_ranks_read_what_one_rank_reads(
    tmp_path: Path, small_chunks: None, share: Share, ranks: int, data_format: Format
) -> None:
    files = [write(tmp_path, data_format, rows(1 + n * ROWS), f"{n}.x") for n in range(3)]
    for side in SIDES:
        wanted = options(data_format, share=share, rows=side)

        def on(world: World, wanted: LoadOptions = wanted) -> LoadedPass:
            own = files[world.rank :: world.size] if share.by is ShareBy.FILES else files
            return load(own, wanted, 1 << 30, world=world, times=StageTimes(None, 3))

        found = coordination(ranks, on)
        assert sorted(itertools.chain(*map(items, found))) == read(
            files, options(data_format, rows=side)
        )
        assert sum(one.left_out for one in found) == 3 * ROWS - sum(one.size for one in found)


def users_of(found: Sequence[int]) -> set[int]:
    own = rows()
    return {own[item - 1]["user"] for item in found}


def test_all_rows_of_a_user_are_on_one_side_in_every_format(tmp_path: Path) -> None:
    of_format = []
    for data_format in (Format.CSV, Format.PARQUET, Format.ARROW):
        path = write(tmp_path, data_format, rows(), f"rows.{data_format.value}")
        held, trained = both([path], data_format, USERS)
        assert sorted(held + trained) == list(range(1, ROWS + 1))
        assert not users_of(held) & users_of(trained)
        assert 8 <= len(users_of(held)) <= 30  # of 59
        of_format.append(held)
    assert of_format[0] == of_format[1] == of_format[2]


@pytest.mark.parametrize("data_format", [Format.CSV, Format.PARQUET, Format.ARROW])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"column": "day", "at_least": 9}, lambda row: row["day"] >= 9),
        ({"column": "day", "at_least": 9.5}, lambda row: row["day"] == 10),
        ({"column": "age", "at_least": "50"}, lambda row: row["age"] >= 50),
        ({"column": "part", "equals": "test"}, lambda row: row["part"] == "test"),
        ({"column": "part", "at_least": "a"}, lambda row: row["part"] == "test"),
        ({"column": "day", "equals": 3}, lambda row: row["day"] == 3),
    ],
)
def test_a_column_that_no_slot_uses_decides(
    tmp_path: Path, data_format: Format, rule: dict[str, Any], expected: Any
) -> None:
    path = write(tmp_path, data_format, rows(), "rows")
    held, trained = both([path], data_format, HoldoutConfig(**rule))
    assert held == [row["item"] for row in rows() if expected(row)]
    assert sorted(held + trained) == list(range(1, ROWS + 1))


@pytest.mark.parametrize(
    ("values", "at_least", "held"),
    [
        (pa.array([date(2024, 1, 4), date(2024, 1, 5), None]), "2024-01-05", [2]),
        (pa.array([1, 2, 3], pa.timestamp("s")), "1970-01-01 00:00:02", [2, 3]),
        (pa.array(["9", "10", None]), 9.5, [2]),
        (pa.array(["9", "10", "11"]).dictionary_encode(), 10, [2, 3]),
        (pa.array([b"a", b"\xff", None]), "b", [2]),
        (pa.array(["a", "b", "c"], pa.string_view()), "b", [2, 3]),
        (pa.array([2**63 + 1, 2**63, 2**63 + 2], pa.uint64()), 2**63 + 1, [1, 3]),
        (pa.array([0.5, 1.5, float("2e30")]), 1.5, [2, 3]),
        (pa.array([None, None, None]), 0, []),
    ],
)
def test_values_of_every_type_are_compared(
    tmp_path: Path, values: Any, at_least: Any, held: list[int]
) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"click": [0, 1, 0], "age": [1.0] * 3, "user": [1] * 3, "item": [1, 2, 3]})
    table = table.append_column("at", values)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    rule = HoldoutConfig(column="at", at_least=at_least)
    found = both([str(path)], Format.ARROW, rule)
    assert found == (held, [item for item in (1, 2, 3) if item not in held])


def test_the_split_reads_a_column_before_a_slot_changes_its_type(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    at = pa.array([1, 2, 3], pa.timestamp("s"))
    table = pa.table({"click": [0, 1, 0], "user": [7, 7, 7], "item": [1, 2, 3], "time": at})
    pq.write_table(table, path)
    rule = HoldoutConfig(column="time", at_least="1970-01-01 00:00:03")
    slots = make_slots(click="label", user={}, item={})
    for time_column in ("", "time"):
        wanted = options(Format.PARQUET, rule, slots=slots, time_column=time_column)
        assert read([str(path)], wanted) == [1, 2]


def test_rows_without_a_user_are_split_one_by_one(tmp_path: Path) -> None:
    own = [{**row, "user": "" if row["item"] % 2 else row["user"]} for row in rows()]
    held, trained = both([write(tmp_path, Format.CSV, own, "rows.csv")], Format.CSV, USERS)
    without = [item for item in held if item % 2]
    assert abs(len(without) - ROWS * 0.15) < 4 * (ROWS * 0.15 * 0.7) ** 0.5
    assert not users_of([i for i in held if not i % 2]) & users_of(
        [i for i in trained if not i % 2]
    )
    for row in own:
        row["user"] = row["user"] or None
    columns = write(tmp_path, Format.PARQUET, own, "rows.parquet")
    held, trained = both([columns], Format.PARQUET, USERS)
    assert sorted(held + trained) == list(range(1, ROWS + 1))
    assert 0 < len([item for item in held if item % 2]) < ROWS // 2


def test_a_file_without_a_header_is_split(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"1,2,u{n % 9},{n},{n}\n" for n in range(1, 91)))
    slots = SLOTS.model_copy(
        update={"csv": Csv(columns=("click", "age", "user", "item", "n"), header=False)}
    )
    rule = HoldoutConfig(column="n", at_least="80")
    assert both([str(path)], Format.CSV, rule, slots=slots)[0] == list(range(80, 91))
    wrong = options(Format.CSV, HoldoutConfig(share=0.1, by="usr"), slots=slots)
    with pytest.raises(ConfigError, match=r"data\.holdout: no column 'usr'.*did you mean 'user'"):
        wrong.check()


def test_skipped_lines_do_not_move_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write(tmp_path, Format.CSV, rows(), "rows.csv"))
    path.write_text("\ufeff" + "note\n" * 200 + path.read_text())
    slots = SLOTS.model_copy(update={"csv": Csv(skip=200)})
    found = []
    for size in (500, 2000, 1 << 20):  # the skipped lines are in several chunks, or in one
        monkeypatch.setattr(loader, "read_chunks", partial(read_chunks, chunk_bytes=size))
        found.append(both([str(path)], slots=slots))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0] + found[0][1]) == ROWS


def test_values_in_quotes_are_compared(tmp_path: Path) -> None:
    lines = ["note", "click,age,user,item", '1,2,"a, ""b""",1', "0,2,c,2", '1,2,"c",3', "\r"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    slots = SLOTS.model_copy(update={"csv": Csv(skip=1)})
    for value, expected in (('a, "b"', [1]), ("c", [2, 3])):
        rule = HoldoutConfig(column="user", equals=value)
        held = read(
            [str(tmp_path / "rows.csv")], options(Format.CSV, rule, slots=slots, rows=Rows.HELD_OUT)
        )
        assert held == expected


def test_malformed_lines_are_on_one_side_and_keep_their_numbers(
    tmp_path: Path, small_chunks: None
) -> None:
    lines = [f"{n % 2},1,u,{n}" for n in range(1, 1001)]
    bad = [100, 200, 300, 400, 500, 600, 700, 800, 900]
    for number in bad:
        lines[number - 1] = f"x,1,u,{number}"
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["click,age,user,item", *lines]) + "\n")
    quoted = []
    for side in SIDES:
        with pytest.raises(DataError) as failed:
            read([str(path)], options(rows=side, holdout=HoldoutConfig(share=0.5)))
        text = str(failed.value)
        quoted += [int(line.partition(":")[0]) for line in text.split("rows.csv:")[1:]]
        assert 400 < int(text.split(" of ")[1].split()[0]) < 600  # lines of this side
    assert set(quoted) <= {number + 1 for number in bad}
    counted = 0
    for side in SIDES:
        wanted = options(rows=side, max_bad_line_ratio=0.5)
        counted += load([str(path)], wanted, 1 << 30).bad_lines
    assert counted == len(bad)


def test_malformed_lines_do_not_move_the_others(tmp_path: Path) -> None:
    own = [{**row, "age": "x" if row["item"] % 10 == 0 else 1} for row in rows()]
    path = write(tmp_path, Format.CSV, own, "rows.csv")
    without_age = both([path], slots=make_slots(click="label", user={}, item={}))
    for found, every in zip(both([path], max_bad_line_ratio=0.2), without_age, strict=True):
        assert found == [item for item in every if item % 10]


def test_malformed_rows_of_columns_keep_their_numbers(tmp_path: Path) -> None:
    own = rows()[:300]
    own[250]["click"] = None
    path = write(tmp_path, Format.PARQUET, own, "rows.parquet")
    texts = []
    for side in SIDES:
        wanted = options(Format.PARQUET, rows=side, max_bad_line_ratio=0.0)
        try:
            assert read([path], wanted)
        except DataError as failed:
            texts.append(str(failed))
    (text,) = texts
    assert "rows.parquet:251: " in text


def test_lines_that_are_left_out_are_counted(files: list[str]) -> None:
    held, trained = both(files)
    loaded = [load(files, options(rows=side), 1 << 30) for side in SIDES]
    assert [one.left_out for one in loaded] == [len(trained), len(held)]
    assert [one.lines for one in loaded] == [2 * (ROWS + 1)] * 2
    assert load(files, options(rows=Rows.ALL), 1 << 30).left_out == 0


def test_a_parser_plugin_and_a_command_get_the_lines_of_their_side(
    tmp_path: Path, small_chunks: None
) -> None:
    path = write(tmp_path, Format.MULTISLOT, rows(), "rows.txt")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "def parse(lines):\n"
        "    cells = [line.split() for line in lines.decode().splitlines()]\n"
        "    at = lambda n: [int(float(cell[n])) for cell in cells]\n"
        "    return {'click': at(1), 'age': at(3), 'user': [[n] for n in at(5)],\n"
        "            'item': [[n] for n in at(7)]}\n"
    )
    found = both([path], Format.MULTISLOT)
    parsed: dict[str, Any] = {"parser": f"{plugin}:parse", "allow_commands": True}
    assert both([path], Format.MULTISLOT, **parsed) == found
    loaded = load([path], options(Format.MULTISLOT, **parsed), 1 << 30)
    assert (loaded.left_out, loaded.lines) == (len(found[0]), ROWS)
    # The places of lines are those in what the command prints.
    piped = {"pipe_command": "grep -v ' 7$'", "allow_commands": True}
    held, trained = both([path], Format.MULTISLOT, **piped)
    assert sorted(held + trained) == [item for item in range(1, ROWS + 1) if item != 7]


@pytest.mark.parametrize("data_format", [Format.CSV, Format.PARQUET])
def test_an_unknown_column_is_named_with_the_nearest(tmp_path: Path, data_format: Format) -> None:
    path = write(tmp_path, data_format, rows()[:10], "rows")
    for rule, said in (
        (HoldoutConfig(share=0.1, by="usr"), r"holdout\.by 'usr': no such column.*mean 'user'"),
        (HoldoutConfig(column="dy", equals="1"), r"holdout\.column 'dy': .*did you mean 'day'"),
        (
            HoldoutConfig(column="part", at_least="5"),
            r"rows: data\.holdout\.column 'part': 'test' is not a number, as at_least 5 is",
        ),
    ):
        with pytest.raises(DataError, match=said):
            read([path], options(data_format, rule))


def test_a_column_of_lists_cannot_split(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"click": [0], "age": [1.0], "user": [[1, 2]], "item": [1]})
    pq.write_table(table, path)
    with pytest.raises(DataError, match=r"holdout\.by 'user': expected single values, found list"):
        read([str(path)], options(Format.PARQUET, USERS))


def test_scales_of_dense_slots_are_those_of_trained_rows(tmp_path: Path) -> None:
    own = rows()[:500]
    config = make_config(data={"holdout": {"column": "age", "at_least": 50}})
    for data_format in (Format.CSV, Format.PARQUET):
        path = write(tmp_path, data_format, own, f"rows.{data_format.value}")
        chosen = config.having({"data.format": data_format})
        slots = SLOTS if data_format is Format.CSV else NUMBERS
        ((mean, _),) = FirstLook(chosen, slots).numbers([path], 500).scales
        trained = [row["age"] for row in own if row["age"] < 50]
        assert mean == pytest.approx(np.mean(trained), rel=1e-4)


@pytest.mark.parametrize(
    ("holdout", "said"),
    [
        ({"share": 1}, r"data\.holdout\.share: expected less than 1\.0, found 1"),
        ({"share": -0.1}, r"data\.holdout\.share: expected at least 0"),
        ({"share": 0}, r"data\.holdout: expected share, more than 0, or column"),
        ({}, r"data\.holdout: expected share, more than 0, or column"),
        ({"shares": 0.1}, r"did you mean data\.holdout\.share\?"),
        ({"column": "day", "from": 5}, "unknown key; set data.holdout.at_least"),
        ({"by": "user"}, "by is given, but share is not"),
        ({"share": 0.1, "column": "user"}, "found share and column, expected one of them"),
        ({"share": 0.1, "equals": "user"}, "found share and equals, expected one of them"),
        ({"column": "day"}, "column 'day' needs at_least or equals, found neither"),
        ({"column": "day", "at_least": 1, "equals": 2}, "found both"),
        ({"at_least": 1}, "at_least is given, but column, whose value it is, is not"),
    ],
)
def test_rules_that_make_no_sense_are_refused(holdout: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(data={"holdout": holdout})


def test_a_rule_that_the_data_cannot_have_is_refused() -> None:
    by = {"share": 0.1, "by": "user"}
    with pytest.raises(
        ConfigError, match=r"holdout\.by: expected format csv, parquet, arrow or orc"
    ):
        make_config(data={"format": "multislot", "holdout": by})
    with pytest.raises(ConfigError, match=r"holdout\.by: .*found parser x\.py:parse"):
        make_config(data={"holdout": by, "parser": "x.py:parse"}, security={"allow_commands": True})
    hours = {"path_template": "{date}", "from_hour": "20240101", "train_files": None}
    with pytest.raises(ConfigError, match=r"path_template does not work together with data\.hold"):
        make_config(data={**hours, "train_files": [], "holdout": {"share": 0.1}})
    users = {"sequences": {"user": "user"}, "holdout": {"share": 0.1}}
    with pytest.raises(ConfigError, match=r"sequences would miss instances: name a column in data"):
        make_config(data=users)
    make_config(data={**users, "holdout": by})


@pytest.mark.parametrize(
    ("rule", "held", "trained", "said"),
    [
        (TENTH, 0, 4, "some of the 4 instances .* holds out none: raise share"),
        (USERS, 0, 4, "holds out none: instances with equal values .* raise share, or set another"),
        (USERS, 4, 0, "holds out all: .*lower share"),
        (HoldoutConfig(column="day", at_least="1"), 4, 0, "holds out all: correct at_least"),
        (HoldoutConfig(column="day", equals="1"), 0, 4, "which none of the values .* meet"),
    ],
)
def test_a_side_without_instances_is_an_error(
    rule: HoldoutConfig, held: int, trained: int, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        check_split(rule, held, trained)
    check_split(rule, 1, 1)
    check_split(rule, 0, 0)
