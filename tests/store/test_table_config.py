"""What each key of `table:` does to rows, from the config to the bytes of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import TableConfig, load_slots
from paddlebox.errors import ConfigError
from paddlebox.store.group import Group
from paddlebox.store.table import Table
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import sorted_unique_keys
from paddlebox.training.opening import open_table
from tests.support.configs import make_config, write_slots

# Words of a row of D = 1 with adagrad: docs/formats/row.md.
SLOT_AND_FLAGS, DELTA_SCORE, EMBED_W, EMBEDX_W = 0, 3, 6, 8
HAS_EMBEDX = 1 << 16
KEY = np.array([7])
NAIVE = {"rule": "naive", "learning_rate": 1.0, "initial_range": 0.0}


@pytest.fixture(autouse=True)
def _dygraph() -> None:
    paddle.disable_static()


def opened(folder: Path, **table: Any) -> TableSet:
    fields = {"embedx_dim": 1, "embedx_threshold": 0.0, "embedx": NAIVE, "embed": NAIVE, **table}
    budgets = {"mem": {"budget_bytes": "1MiB"}, "hbm": {"budget_bytes": "16MiB"}}
    return open_table(make_config(table=fields, **budgets), folder)


def push(
    feasigns: np.ndarray, gradient: Any = (0.0, 0.0), show: float = 1.0, click: float = 0.0
) -> None:
    """One push of each feasign. gradient: of the sum loss to embed_w and each column of embedx."""
    row = np.array([[show, click, *np.divide(gradient, len(feasigns))]], np.float32)
    ops.push_box_sparse(paddle.to_tensor(feasigns), paddle.to_tensor(row.repeat(len(feasigns), 0)))


def rows_after(table: TableSet, *pushes: dict[str, Any], feasigns: np.ndarray = KEY) -> np.ndarray:
    """(n, words) rows after a pass with these pushes, in the order of feasigns."""
    table.begin(table.stage(sorted_unique_keys(feasigns)))
    for one in pushes:
        push(feasigns, **one)
    table.end()
    table.commit()
    found, rows = table.first.read_all()
    return rows[np.argsort(found)]


# The end of a weight that begins at 0 and has these gradients, by one option of its rule.
RULES: dict[str, tuple[dict[str, Any], list[float], float]] = {
    "rule": ({"rule": "adagrad_v2"}, [1, 2], -(1 + 2 / 5**0.5)),
    "learning_rate": ({**NAIVE, "learning_rate": 0.5}, [1, 2], -1.5),
    "initial_g2sum": ({"rule": "adagrad", "initial_g2sum": 1.0}, [1, 2], -(1 + 2 / 2**0.5)),
    "l1": ({"rule": "ftrl", "l1": 0.5}, [2], -(2 - 0.5) / (1 + 2)),
    "l2": ({"rule": "ftrl", "l2": 1.0}, [2], -2 / (1 + 2 + 1)),
    "lower bound": (NAIVE, [20], -10),
    "upper bound": (NAIVE, [-20], 10),
}


@pytest.mark.parametrize("option", RULES)
@pytest.mark.parametrize("part", ["embed", "embedx"])
def test_a_weight_moves_by_its_rule(tmp_path: Path, part: str, option: str) -> None:
    fields, gradients, expected = RULES[option]
    fields = {"learning_rate": 1.0, "initial_range": 0.0, **fields}
    with opened(tmp_path, **{part: fields}) as table:
        # The first push makes embedx, and does not train it.
        steps = gradients if part == "embed" else [0.0, *gradients]
        (row,) = rows_after(table, *({"gradient": (one, one)} for one in steps))
    states = {"ftrl": 2, "naive": 0}
    at = EMBED_W if part == "embed" else EMBED_W + 1
    assert row[at] == pytest.approx(expected, rel=1e-4)
    assert len(row) == at + 1 + states.get(fields["rule"], 1) + (part == "embed")


@pytest.mark.parametrize("part", ["embed", "embedx"])
def test_new_weights_are_uniform_in_their_range(tmp_path: Path, part: str) -> None:
    feasigns = np.arange(1, 1001)
    with opened(tmp_path, **{part: {**NAIVE, "initial_range": 0.25}}) as table:
        rows = rows_after(table, {}, feasigns=feasigns)
    weights = rows[:, EMBED_W if part == "embed" else EMBED_W + 1]
    assert 0.24 < np.abs(weights).max() <= 0.25
    assert abs(weights.mean()) < 0.02


def test_operators_find_the_table_by_its_name(tmp_path: Path) -> None:
    ids, offsets = np.array([[0]], np.int32), np.array([0, 1], np.int32)
    counts, no_plan = np.ones((1, 2), np.float32), np.zeros(0, np.int32)
    arrays = (paddle.to_tensor(array) for array in (ids, offsets, counts, no_plan))
    with opened(tmp_path, name="users") as table:
        table.begin(table.stage(sorted_unique_keys(KEY)))
        found = ops.fused_pull_seqpool_cvm(
            *(*arrays, ops.create_anchor()), slots=1, embedx_dim=1, table="users"
        )
        assert found.shape == [1, 4]
        table.abandon()


def test_a_row_has_embedx_dim_columns(tmp_path: Path) -> None:
    with opened(tmp_path, embedx_dim=3) as table:
        (row,) = rows_after(table, {"gradient": [0] * 4}, {"gradient": [1, 2, 3, 4]})
    assert row[EMBED_W:].tolist() == [-1, -2, -3, -4]


def test_embedx_comes_with_the_push_that_reaches_the_threshold(tmp_path: Path) -> None:
    with opened(tmp_path, embedx_threshold=2.0) as table:
        flags = [
            int(rows_after(table, {"click": 1.0}).view(np.uint32)[0, SLOT_AND_FLAGS]) & HAS_EMBEDX
            for _ in range(3)
        ]
    assert flags == [0, HAS_EMBEDX, HAS_EMBEDX]


def test_five_shows_with_two_clicks_score(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        (row,) = rows_after(table, {"show": 5.0, "click": 2.0})
    assert row[DELTA_SCORE] == pytest.approx(3 * 0.1 + 2)


def test_without_show_scale_a_gradient_is_not_divided_by_shows(tmp_path: Path) -> None:
    adagrad = {"rule": "adagrad", "learning_rate": 1.0}
    with opened(tmp_path, embed=adagrad, show_scale=False) as table:
        (row,) = rows_after(table, {"gradient": (2, 0), "show": 4.0})
    assert row[EMBED_W] == -2


def test_each_step_halves_the_weights_of_all_rows_also_of_those_that_are_absent(
    tmp_path: Path,
) -> None:
    push_of_one = {"gradient": (-1, -1)}
    with opened(tmp_path, weight_decay=0.5) as table:
        (row,) = rows_after(table, push_of_one, push_of_one)  # the first creates embedx
        assert [*row[EMBED_W:]] == [(1 / 2 + 1) / 2, 1 / 2]
        absent, other = rows_after(table, push_of_one, feasigns=np.array([9]))
        assert [*absent[EMBED_W:]] == [3 / 8, 1 / 4]
        assert other[EMBED_W] == 1 / 2
        assert [event["kind"] for event in table.first.events] == ["weight_decay"] * 2
    with opened(tmp_path, weight_decay=0.5) as table:
        absent, _ = rows_after(table, push_of_one, feasigns=np.array([9]))
    assert [*absent[EMBED_W:]] == [3 / 16, 1 / 8]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"embed": {"rule": "ftrl"}}, r"set embed\.l2"),
        ({"embedx": {"rule": "adagrad_v2"}}, "expected naive, adagrad or adam"),
        ({"row_precision": "float16"}, "set row_precision float32"),
        ({"embed": {"learning_rate": 20.0}}, "is not below 1"),
    ],
)
def test_weight_decay_of_other_rules_and_rows_is_an_error(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_config(table={"weight_decay": 0.1, **table})


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"hbm": {"place": "gpu"}}, r"weight_decay does not work together with hbm\.place gpu"),
        ({"save": {"out": "saves"}}, r"save\.out: it changes all rows"),
    ],
)
def test_weight_decay_on_a_device_or_with_saves_is_an_error(
    sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        make_config(table={"weight_decay": 0.1}, **sections)


def test_weight_decay_needs_one_rank(tmp_path: Path) -> None:
    class Two(Group):
        size = 2

    with pytest.raises(ConfigError, match=r"table\.weight_decay with 2 ranks"):
        open_table(make_config(table={"weight_decay": 0.1}), tmp_path, world=Two())


def test_events_of_kept_passes_are_numbered_without_a_folder() -> None:
    fields = {"embedx_dim": 1, "embed": NAIVE, "embedx": NAIVE, "weight_decay": 0.5}
    with Table(TableConfig.model_validate(fields, strict=False), mem_budget_bytes=1 << 20) as table:
        table.begin(table.stage(sorted_unique_keys(KEY)))
        push(KEY)
        table.end()
        table.keep(pass_number=1)
        table.life.reset_rows()
        assert [event["seq"] for event in table.first.events] == [1, 2]


@pytest.mark.parametrize(("mode", "expected"), [("skip", 0), ("clip", 5)])
def test_a_bad_gradient_is_left_out_or_clipped(tmp_path: Path, mode: str, expected: int) -> None:
    with opened(tmp_path, on_bad_grad=mode, embed={**NAIVE, "learning_rate": 0.5}) as table:
        (row,) = rows_after(table, {}, {"gradient": (-np.inf, 0)})
    assert row[EMBED_W] == expected


@pytest.mark.parametrize(("precision", "bits"), [("float16", 10), ("bfloat16", 7)])
def test_embedx_is_rounded_when_the_pass_ends(tmp_path: Path, precision: str, bits: int) -> None:
    with opened(tmp_path, row_precision=precision) as table:
        (row,) = rows_after(table, {}, {"gradient": (-4 / 3, -4 / 3)})
    steps = row[EMBED_W : EMBED_W + 2] * 2**bits  # of the last bit of 1.33
    assert steps[0] != steps[1] == np.round(steps[1])
    assert abs(steps[0] - steps[1]) < 1


def test_rows_of_a_slot_learn_at_its_own_rate(tmp_path: Path) -> None:
    slower = {"type": "sparse", "learning_rate_factor": 0.5}
    path = write_slots(tmp_path, click="label", user="sparse", item=slower)
    config = make_config(
        data={"slots": str(path)},
        table={"embed": NAIVE},
        mem={"budget_bytes": "1MiB"},
    )
    feasigns = np.array([1, 2])
    keys = sorted_unique_keys(feasigns)
    slots = np.array([int(key == sorted_unique_keys(feasigns[1:])[0]) for key in keys], np.uint16)
    with open_table(config, tmp_path, slots=load_slots(path)) as table:
        table.begin(table.stage(keys, slots))
        push(feasigns, [1] * 9)
        table.end()
        table.commit()
        found, rows = table.first.read_all()
    assert rows[np.argsort(found), EMBED_W].tolist() == [-1, -0.5]


def test_a_filter_has_filter_bytes(tmp_path: Path) -> None:
    admission = {"min_count": 2, "filter_bytes": "128KiB"}
    with opened(tmp_path, admission=admission) as table:
        keys = sorted_unique_keys(KEY)
        counted = table.count_keys(keys, np.ones(1, np.uint32))
        table.begin(table.stage(keys))
        table.end()
        table.commit(counted=counted)
        counts = table.first.admission_counts()
    assert counts is not None
    assert counts.nbytes == 128 << 10
