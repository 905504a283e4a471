"""Weighted ids and pooling: every format, every way a pass is held, and what cannot be combined."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format, HbmPlace, Slots
from paddlebox.config.data import HistoryConfig, Split
from paddlebox.data.batches import BatchInputs, Feed, check_use_var
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.packer import BatchPacker
from paddlebox.data.sequences import SequenceOptions
from paddlebox.errors import ConfigError, DataError
from tests.support.configs import make_slots
from tests.support.fixtures import OpenDataset
from tests.support.options import load_options

CLICK, USER = [1, 0, 1], [7, 8, 9]
TAGS = [[(1, 3.0), (2, 1.0)], [], [(2, 0.25), (3, 4.0), (2, 0.0)]]
FORMATS = [
    *(Format.MULTISLOT, Format.SLOT_VALUE, Format.FEASIGN_SLOT),
    *(Format.CSV, Format.PARQUET, Format.ARROW),
]
FACTORS = {  # by pooling, of the ids in the order of a batch: user, then tags, of each instance
    "sum": [1, 3, 1, 1, 1, 0.25, 4, 0],
    "mean": [1, 0.75, 0.25, 1, 1, 0.25 / 4.25, 4 / 4.25, 0],
    "sqrtn": [1, 3 / 10**0.5, 1 / 10**0.5, 1, 1, 0.25 / 16.0625**0.5, 4 / 16.0625**0.5, 0],
}


def slots_of(data_format: Format = Format.CSV, pooling: str = "sum", **more: Any) -> Slots:
    tags = {"weighted": True, "pooling": pooling}
    if data_format.is_columnar:
        tags["weight_column"] = "w"
    return make_slots(click="label", user={}, tags=tags | more)


def write(folder: Path, data_format: Format, tags: Any = TAGS) -> str:
    path = folder / f"data.{data_format.value}"
    lines = []
    for click, user, of_line in zip(CLICK, USER, tags, strict=True):
        ids = [f"{tag}:{weight}" for tag, weight in of_line]
        if data_format is Format.MULTISLOT:
            listed = f"{len(ids)} {' '.join(ids)}" if ids else "1 0"
            lines.append(f"1 {click} 1 {user} {listed}")
        elif data_format is Format.SLOT_VALUE:
            of_tags = " ".join(f"tags:{one}" for one in ids)
            lines.append(f"{of_tags} click:{click} user:{user}")
        elif data_format is Format.FEASIGN_SLOT:
            of_tags = " ".join(f"{one}:tags" for one in ids)
            lines.append(f"{of_tags} {click}:click {user}:user")
        elif data_format is Format.CSV:
            lines.append(f"{click},{user},{'|'.join(ids)}")
    if data_format.is_columnar:
        columns = {
            "click": CLICK,
            "user": USER,
            "tags": pa.array([[tag for tag, _ in one] for one in tags], pa.list_(pa.int64())),
            "w": pa.array([[weight for _, weight in one] for one in tags], pa.list_(pa.float64())),
        }
        writer = pq.write_table if data_format is Format.PARQUET else feather.write_feather
        writer(pa.table(columns), path)
        return str(path)
    header = ["click,user,tags"] if data_format is Format.CSV else []
    path.write_text("".join(f"{line}\n" for line in [*header, *lines]))
    return str(path)


def loaded(path: str, data_format: Format, slots: Slots, **options: Any) -> LoadedPass:
    return load([path], load_options(data_format, slots, 8, **options), 1 << 30)


def packed(of: LoadedPass, inputs: BatchInputs | None = None) -> Feed:
    rows = np.arange(of.instances.unique_keys, dtype=np.int32)
    return BatchPacker(of, rows, [1], inputs or BatchInputs()).pack(0, of.size)


def factors_in(feed: Feed, suffix: str = "") -> list[float]:
    """The factors by id at the end of a plan (ops/row/plan.h)."""
    plan, nnz = feed[f"box_plan{suffix}"], len(feed[f"box_ids{suffix}"])
    begin = 4 + 2 * plan[1] + plan[2]
    assert len(plan) in (begin, begin + nnz + plan[2])
    return plan[begin : begin + nnz].view(np.float32).tolist() if len(plan) > begin else []


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("pooling", list(FACTORS))
def test_each_format_gives_the_factors_of_the_definition(
    tmp_path: Path, data_format: Format, pooling: str
) -> None:
    path = write(tmp_path, data_format)
    feed = packed(loaded(path, data_format, slots_of(data_format, pooling)))
    assert factors_in(feed) == pytest.approx(FACTORS[pooling], rel=1e-7)
    assert feed["box_show_click"].tolist() == [[1, 1], [1, 0], [1, 1]]


def test_without_weights_and_with_sum_batches_have_no_factors(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("click,user,tags\n1,7,1|2\n")
    plain = make_slots(click="label", user={}, tags={})
    assert factors_in(packed(loaded(f"{tmp_path}/data.csv", Format.CSV, plain))) == []
    mean = make_slots(click="label", user={}, tags={"pooling": "mean"})
    assert factors_in(packed(loaded(f"{tmp_path}/data.csv", Format.CSV, mean))) == [1, 0.5, 0.5]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), 5e9])
def test_a_weight_below_0_or_too_large_or_not_finite_makes_the_line_malformed(
    tmp_path: Path, data_format: Format, weight: float
) -> None:
    path = write(tmp_path, data_format, [*TAGS[:2], [(2, weight)]])
    slots = slots_of(data_format)
    of = loaded(path, data_format, slots, max_bad_line_ratio=0.5)
    assert factors_in(packed(of)) == FACTORS["sum"][:4]
    with pytest.raises(DataError, match=r"slot 'tags': .* weight in \[0, 2\^32\]"):
        loaded(path, data_format, slots)


def test_a_pass_on_disk_and_a_cached_one_have_the_same_factors(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    lines = [
        f"{int(rng.integers(2))},{int(rng.integers(1, 50))},"
        + "|".join(f"{rng.integers(1, 99)}:{rng.integers(9)}" for _ in range(rng.integers(5)))
        for _ in range(500)
    ]
    (tmp_path / "data.csv").write_text("click,user,tags\n" + "\n".join(lines) + "\n")
    slots, path = slots_of(pooling="mean"), f"{tmp_path}/data.csv"
    whole = packed(loaded(path, Format.CSV, slots, shuffle_seed=3))
    assert len(factors_in(whole)) > 500
    disk: dict[str, Any] = {"to_disk": True, "spill_dir": tmp_path, "budget_bytes": 1 << 16}
    spilled = loaded(path, Format.CSV, slots, shuffle_seed=3, **disk)
    assert spilled.spilled_bytes > 0
    rows = np.arange(spilled.instances.unique_keys, dtype=np.int32)
    packer = BatchPacker(spilled, rows, [1], BatchInputs())
    parts: list[float] = []
    for at in range(0, spilled.size, 8):
        parts += factors_in(packer.pack(at, min(at + 8, spilled.size)))
    assert parts == factors_in(whole)
    held = loaded(path, Format.CSV, slots, shuffle_seed=3).instances
    for at in range(0, spilled.size, 8):
        of_batch = (at, min(at + 8, spilled.size))
        window, low, high, _ = spilled.within(*of_batch, rows)
        weights = window.pack_weights(low, high)
        assert weights.tolist() == held.pack_weights(*of_batch).tolist()
    os.utime(path, (1e9, 1e9))  # files written just now are not cached
    cache = ParsedCache(tmp_path / "cache", 1 << 30)
    for hits in (0, 1):
        of = loaded(path, Format.CSV, slots, shuffle_seed=3, cache=cache)
        assert of.files_from_cache == hits
        assert packed(of)["box_plan"].tolist() == whole["box_plan"].tolist()


def test_files_without_ids_go_to_disk_beside_those_with_weights(tmp_path: Path) -> None:
    slots = make_slots(click="label", tags={"weighted": True, "default": 9})
    (tmp_path / "a.csv").write_text("click,tags\n1,5:3|6:4\n0,7:2\n")
    (tmp_path / "b.csv").write_text("click,tags\n1,\n0,\n")
    options = load_options(Format.CSV, slots, 8, shuffle_seed=3)
    to_disk: dict[str, Any] = {"to_disk": True, "spill_dir": tmp_path, "budget_bytes": 1 << 16}
    for disk in ({}, to_disk):
        for files in ("ab", "ba"):
            paths = [f"{tmp_path}/{name}.csv" for name in files]
            of = load(paths, replace(options, **disk), 1 << 30)
            assert (of.spilled_bytes > 0) == bool(disk)
            feasigns, _ = of.instances.pack_feasigns(0, 4)
            held, low, high, _ = of.within(0, 4, np.zeros(of.instances.unique_keys, np.int32))
            weights = held.pack_weights(low, high)
            pairs = sorted(zip(feasigns.tolist(), weights.tolist(), strict=True))
            assert pairs == [(5, 3), (6, 4), (7, 2), (9, 1), (9, 1)]
            assert factors_in(packed(of)) == weights.tolist()


def test_slots_that_are_not_read_and_instances_of_weight_0_leave_the_factors_of_others(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, Format.CSV)
    of = loaded(path, Format.CSV, slots_of(pooling="mean"))
    feed = packed(of, BatchInputs(read_slots=["tags"]))
    assert factors_in(feed) == pytest.approx(FACTORS["mean"])
    ids = feed["box_ids"].tolist()
    assert [at for at, row in enumerate(ids) if row < 0] == [0, 3, 4]  # those of user
    begin = 4 + 2 * feed["box_plan"][1] + feed["box_plan"][2] + len(ids)
    by_row: dict[int, list[float]] = {}
    for row, factor in zip(ids, factors_in(feed), strict=True):
        if row >= 0:
            by_row.setdefault(row, []).append(factor)
    of_plan = feed["box_plan"][begin:].view(np.float32).tolist()
    assert of_plan == [factor for row in sorted(by_row) for factor in by_row[row]]


class Var:
    shape, dtype, lod_level = (-1, 3), "int64", 0

    def __init__(self, name: str) -> None:
        self.name = name


def test_a_program_that_would_lose_weights_is_refused() -> None:
    slots = slots_of()
    check_use_var([Var("user")], slots)
    with pytest.raises(ValueError, match="variable 'tags': its slot is weighted"):
        check_use_var([Var("tags")], slots)
    with pytest.raises(ValueError, match="variable 'box_ids': expected 'box_plan' too"):
        check_use_var([Var("box_ids"), Var("box_dense")], slots)
    check_use_var([Var("box_ids"), Var("box_plan"), Var("box_dense")], slots)


def test_a_program_needs_the_plans_of_the_tables_with_weights_only() -> None:
    other = {"weighted": True, "table": "b"}
    slots = make_slots(click="label", user={}, tags=other)
    names = ["box_ids", "box_dense", "box_ids_b", "box_plan_b"]
    check_use_var([Var(name) for name in names], slots, tables=["a", "b"])
    lost = "variable 'box_ids_b': expected 'box_plan_b' too, .* of slots tags"
    with pytest.raises(ValueError, match=lost):
        check_use_var([Var(name) for name in names[:3]], slots, tables=["a", "b"])


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({"age": {"type": "dense", "weighted": True}}, "'age' has weighted, which is for sparse"),
        ({"age": {"type": "dense", "pooling": "mean"}}, "'age' has pooling, which is for sparse"),
        ({"tags": {"weight_column": "w"}}, "'tags' has weight_column but no weights"),
        ({"tags": {"pooling": "max"}}, "pooling"),
        (
            {"tags": {}, "pair": {"cross": ["user", "tags"], "weighted": True}},
            "'pair' is made of other slots; expected no hash, column, shares or weighted",
        ),
    ],
)
def test_slots_that_contradict_each_other_are_refused(slots: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_slots(click="label", user={}, **slots)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data_format": Format.PARQUET}, "expected weight_column, the name of the column"),
        ({"dedup_slots": "auto"}, "dedup_slots is auto, but slots are weighted, or pooled"),
        ({"sequences": ("tags",)}, "sequence 'tags': expected a slot without weighted and pooling"),
    ],
)
def test_what_weights_do_not_work_with_is_refused(options: Any, expected: str) -> None:
    given = {"data_format": Format.CSV, **options}
    with pytest.raises(ConfigError, match=expected):
        load_options(slots=slots_of(max_length=3), batch_size=8, **given).check()


def test_criteo_files_have_no_weights() -> None:
    slots = make_slots(label="label", C1={"weighted": True})
    with pytest.raises(ConfigError, match="'C1' is weighted, but criteo_tsv has no weights"):
        slots.check_format(Format.CRITEO_TSV)


def test_a_weight_column_is_for_columnar_files_only() -> None:
    slots = slots_of(Format.PARQUET)
    slots.check_format(Format.ARROW)
    with pytest.raises(ConfigError, match="weight_column, which only parquet, arrow and orc use"):
        slots.check_format(Format.CSV)


@pytest.mark.parametrize("name", ["delimiter", "list_separator"])
def test_a_colon_cannot_divide_both_cells_and_weights(name: str) -> None:
    fields = {"slots": [s.model_dump() for s in slots_of().slots], "csv": {name: ":"}}
    with pytest.raises(ConfigError, match=f"csv.{name} is ':', which divides the ids"):
        Slots.model_validate(fields, strict=False).check_format(Format.CSV)


def test_plugins_and_rows_on_a_gpu_have_no_factors(
    open_dataset: OpenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(slots=slots_of(), data_format="csv", allow_commands=True)
    with pytest.raises(ConfigError, match="a parser plugin has no weights, but slots are weighted"):
        dataset.set_so_parser_name("json:loads")
    monkeypatch.setenv("PADDLEBOX_HBM_DEVICE", "host")
    with pytest.raises(ConfigError, match="is gpu, but slots are weighted, or pooled"):
        table = {"fields": {"name": "other"}, "hbm_place": HbmPlace.GPU}
        open_dataset(table, slots=slots_of(), data_format="csv")


def test_histories_of_users_have_no_weights() -> None:
    history = HistoryConfig(length=3)
    sequences = SequenceOptions("user", "time", Split.DIRECT, 4, history=history)
    options = load_options(Format.CSV, slots_of(), 8, user_sequences=sequences)
    with pytest.raises(ConfigError, match="history keeps ids without weights"):
        options.check()
    pooled = make_slots(click="label", user={}, tags={"pooling": "mean"})
    replace(options, slots=pooled).check()
