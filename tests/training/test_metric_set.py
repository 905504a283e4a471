"""Metrics against slow plain ones, and that neither order nor parts show."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlebox._native import core
from paddlebox.config.metrics import MetricConfig
from paddlebox.errors import ConfigError
from paddlebox.training.metric_set import MetricSet, normalised_entropy

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
PROBABILITY = st.floats(0, 1, width=32)
# Few values, so that ties and groups are frequent.
ROW = st.tuples(
    st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), PROBABILITY),
    st.integers(0, 1),
    st.integers(0, 4),
)
ROWS = st.lists(ROW, max_size=60)


def columns(rows: list[tuple[float, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, labels, groups."""
    p, y, g = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(p, np.float32), np.array(y, np.float32), np.array(g, np.uint64)


def spec(method: str, **fields: Any) -> MetricConfig:
    return MetricConfig.model_validate({"name": "m", "method": method, **fields})


def measured(one: MetricConfig, rows: list[tuple[float, int, int]]) -> dict[str, float]:
    metrics = MetricSet([one])
    p, y, g = columns(rows)
    metrics.add(p, y, {"user": g})
    return metrics.compute()["m"]


def plain_auc(p: np.ndarray, y: np.ndarray) -> float:
    """How often a positive is above a negative, a tie being half."""
    above = p[y == 1][:, None] - p[y == 0][None, :]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


@settings(deadline=None)
@given(ROWS)
def test_the_usual_values_and_the_entropy(rows: list[tuple[float, int, int]]) -> None:
    found = measured(spec("auc"), rows)
    p, y, _ = columns(rows)
    p, y = p.astype(np.float64), y.astype(np.float64)
    assert found["size"] == len(p)
    if not rows:
        assert found["ne"] is None
        return
    errors = p - y
    assert found["mae"] == math.fsum(abs(errors)) / len(p)
    assert found["rmse"] == math.sqrt(math.fsum(errors * errors) / len(p))
    assert found["predicted_ctr"] == math.fsum(p) / len(p)
    assert found["actual_ctr"] == y.mean()
    assert found["copc"] == (y.sum() / math.fsum(p) if math.fsum(p) > 0 else 0)
    clipped = np.clip(p, 1e-7, 1 - 1e-7)
    logloss = -np.mean(np.where(y == 1, np.log(clipped), np.log(1 - clipped)))
    assert math.isclose(found["logloss"], logloss, rel_tol=1e-12)
    if 0 < y.mean() < 1:
        # Two values in one of a million buckets tie there, and here do not.
        buckets = np.minimum((p * 1e6).astype(int), 999_999)
        assert math.isclose(found["auc"], plain_auc(buckets, y), rel_tol=1e-12)
        rate = np.float64(y.mean())
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert math.isclose(found["ne"], logloss / entropy, rel_tol=1e-9)
    else:
        assert found["auc"] is None
        assert found["ne"] is None


@given(ROWS)
def test_the_auc_inside_groups(rows: list[tuple[float, int, int]]) -> None:
    found = measured(spec("wuauc", group="user"), rows)
    p, y, g = columns(rows)
    aucs, sizes = [], []
    for group in np.unique(g):
        mine = g == group
        if 0 < y[mine].mean() < 1:
            aucs.append(plain_auc(p[mine], y[mine]))
            sizes.append(int(mine.sum()))
    assert (found["groups"], found["size"]) == (len(aucs), sum(sizes))
    if aucs:
        assert math.isclose(found["uauc"], np.mean(aucs), rel_tol=1e-12)
        assert math.isclose(found["wuauc"], np.average(aucs, weights=sizes), rel_tol=1e-12)
    else:
        assert found["uauc"] is None
        assert found["wuauc"] is None


@settings(deadline=None)
@given(ROWS, st.integers(1, 5))
def test_the_ranking_inside_groups(rows: list[tuple[float, int, int]], k: int) -> None:
    found = measured(spec("ranking", group="user", k=k), rows)
    p, y, g = columns(rows)
    hit, recall, ndcg, mrr, size = [], [], [], [], 0
    for group in np.unique(g):
        mine = sorted(zip(-p[g == group], y[g == group], strict=True))  # a tie: negatives first
        places = [at for at, (_, label) in enumerate(mine, 1) if label]
        if not places:
            continue
        size += len(mine)
        hit.append(places[0] <= k)
        recall.append(sum(at <= k for at in places) / len(places))
        best = sum(1 / math.log2(at + 1) for at in range(1, min(k, len(places)) + 1))
        ndcg.append(sum(1 / math.log2(at + 1) for at in places if at <= k) / best)
        mrr.append(1 / places[0])
    assert (found["groups"], found["size"]) == (len(hit), size)
    lists: dict[str, list[Any]] = {"hit_rate": hit, "recall": recall, "ndcg": ndcg, "mrr": mrr}
    for name, of in lists.items():
        expected = pytest.approx(np.mean(of), rel=1e-12) if of else None
        assert found[name] == expected, name


@given(st.lists(st.tuples(FINITE, FINITE), max_size=50))
def test_a_continuous_target_is_summed_exactly(pairs: list[tuple[float, float]]) -> None:
    p, y = np.array(pairs, np.float32).reshape(-1, 2).T
    metrics = MetricSet([spec("continuous", label="spent")])
    metrics.add(p, None, {"spent": y})
    found = metrics.compute()["m"]
    n = max(1, len(p))
    p, y = p.astype(np.float64), y.astype(np.float64)
    assert found == {
        "mae": math.fsum(abs(p - y)) / n,
        "rmse": math.sqrt(math.fsum((p - y) ** 2) / n),
        "actual_value": math.fsum(y) / n,
        "predicted_value": math.fsum(p) / n,
        "size": len(p),
    }


@given(st.lists(st.floats(width=32), max_size=50))
def test_values_that_are_not_numbers_are_counted(values: list[float]) -> None:
    metrics = MetricSet([spec("nan_inf")])
    p = np.array(values, np.float32)
    metrics.add(p, np.zeros(len(p), np.float32), {})
    nan, inf = sum(map(math.isnan, values)), sum(map(math.isinf, values))
    assert metrics.compute()["m"] == {
        "nan": nan,
        "inf": inf,
        "rate": (nan + inf) / max(1, len(values)),
        "size": len(values),
    }


ALL = [
    MetricConfig.model_validate(fields)
    for fields in (
        {"name": "all"},
        {"name": "users", "method": "wuauc", "group": "user"},
        {"name": "some", "mask": {"user": [1.0, 3.0]}},
        {"name": "error", "method": "continuous", "label": "user_float"},
        {"name": "weighted", "method": "weighted_auc", "weight": "user_float"},
        {"name": "soft", "method": "weighted_auc", "label": "soft", "mask": {"user": [1.0, 2.0]}},
        {"name": "bad", "method": "nan_inf"},
        {"name": "lists", "method": "ranking", "group": "user", "k": 2},
    )
]


def fed(rows: list[tuple[float, int, int]], *cuts: int) -> MetricSet:
    metrics = MetricSet(ALL)
    bounds = [0, *cuts, len(rows)]
    for begin, end in pairwise(bounds):
        p, y, g = columns(rows[begin:end])
        given = {"user": g, "user_float": g.astype(np.float32) / 3, "soft": (y + p) / 2}
        metrics.add(p, y, given)
    return metrics


def same_state(a: MetricSet, b: MetricSet) -> None:
    left, right = a.state(), b.state()
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)
        assert array.dtype == right[name].dtype
        assert array.dtype.kind in "iuf"  # plain numbers, as a commit keeps them


@settings(deadline=None, max_examples=4)
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 60))
def test_order_batches_and_parts_do_not_show(
    rows: list[tuple[float, int, int]], random: Random, cut: int
) -> None:
    cut = min(cut, len(rows))
    whole = fed(rows)
    turned = list(rows)
    random.shuffle(turned)
    same_state(fed(turned, len(rows) // 3), whole)
    # As ranks would: each its part, then added up, in either order.
    first, second = fed(rows[:cut]), fed(rows[cut:])
    merged = fed(rows[cut:])
    merged.merge(first)
    first.merge(second)
    same_state(first, whole)
    same_state(merged, whole)
    assert first.compute() == merged.compute() == whole.compute()


@settings(deadline=None, max_examples=4)
@given(ROWS, st.integers(0, 60))
def test_a_state_goes_on_where_it_was_taken(rows: list[tuple[float, int, int]], cut: int) -> None:
    cut = min(cut, len(rows))
    resumed = fed([(0.5, 1, 9)])
    resumed.load_state(fed(rows[:cut]).state())
    resumed.merge(fed(rows[cut:]))
    same_state(resumed, fed(rows))


@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.sampled_from([1e30, -1e30, 1e-40, 3e38]),
        ),
        max_size=40,
    )
)
def test_a_sum_is_rounded_once_however_its_terms_cancel(values: list[float]) -> None:
    sums = core.ErrorSums()
    p = np.array(values, np.float32)
    sums.add(p, np.zeros(len(p), np.float32))
    expected = math.fsum(p.astype(np.float64)) / max(1, len(p))
    assert sums.compute()["predicted_value"] == expected


def test_only_instances_of_the_mask_and_the_cmatch_count() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32)
    y = np.array([0, 1, 0, 1, 0], np.float32)
    packed = np.array([222 << 32 | 1, 222 << 32 | 2, 223 << 32 | 1, 5, 222 << 32 | 0x101])
    page = np.array([1, 1, 2, 3, 2], np.float32)

    def size(**fields: Any) -> int:
        metrics = MetricSet([spec("auc", **fields)])
        metrics.add(p, y, {"box_cmatch_rank": packed.astype(np.int64), "page": page})
        return int(metrics.compute()["m"]["size"])

    assert size() == 5
    assert size(mask={"box_cmatch_rank": ["222_1"]}) == 2  # of rank only the lowest byte counts
    assert size(mask={"box_cmatch_rank": ["222"]}) == 3
    assert size(mask={"box_cmatch_rank": ["222_2", "223_1"]}) == 2
    assert size(mask={"page": [1.0]}) == 2
    assert size(mask={"page": [1.0, 3.0]}) == 3
    assert size(mask={"page": [2.0], "box_cmatch_rank": ["222"]}) == 1


def test_weights_and_soft_labels_are_counted() -> None:
    """Positives: 2 of 0.75 and 1 of 0.25; negatives: 1 of 0.5 and 3 of 0.25."""
    p, y = np.array([0.75, 0.5, 0.25], np.float32), np.array([1, 0, 0.25], np.float32)
    metrics = MetricSet([spec("weighted_auc", weight="price")])
    metrics.add(p, y, {"price": np.array([2, 1, 4], np.float32)})
    found = metrics.compute()["m"]
    assert (found["auc"], found["size"], found["weight"]) == (9.5 / 12, 3, 7)
    assert found["ne"] == pytest.approx(normalised_entropy(found["logloss"], 3 / 7))


@settings(deadline=None, max_examples=10)
@given(ROWS)
def test_a_weighted_auc_without_weights_is_the_usual_one(
    rows: list[tuple[float, int, int]],
) -> None:
    usual, weighted = measured(spec("auc"), rows), measured(spec("weighted_auc"), rows)
    assert weighted == {**usual, "weight": len(rows)}


def test_tasks_have_their_own_predictions_and_labels() -> None:
    tasks = [
        MetricConfig(name="click", prediction="p_click"),
        MetricConfig(name="buy", prediction="p_buy", label="bought"),
    ]
    metrics = MetricSet(tasks)
    given_columns = {
        "p_click": np.array([0.1, 0.9], np.float32),
        "p_buy": np.array([0.9, 0.1], np.float32),
        "bought": np.array([0, 1], np.float32),
    }
    metrics.add(None, np.array([0, 1], np.float32), given_columns)
    assert [metrics.compute()[name]["auc"] for name in ("click", "buy")] == [1.0, 0.0]


def test_the_entropy_worked_by_hand() -> None:
    """Always predicting the rate of clicks is no better, and no worse, than the rate."""
    assert normalised_entropy(-math.log(0.5), 0.5) == 1.0
    assert normalised_entropy(-math.log(0.5) / 2, 0.5) == pytest.approx(0.5, rel=1e-9)


def test_a_column_that_is_missing_is_named() -> None:
    metrics = MetricSet([spec("wuauc", group="user")])
    one = np.zeros(1, np.float32)
    with pytest.raises(ConfigError, match="'m': the batch has no 'user'; there are: item"):
        metrics.add(one, one, {"item": one})
    with pytest.raises(ConfigError, match="the program has no prediction"):
        metrics.add(None, one, {"user": one})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "wuauc"}, "group is for wuauc"),
        ({"method": "ranking"}, "group is for wuauc and ranking"),
        ({"group": "user"}, "group is for wuauc"),
        ({"k": 20}, "k is for ranking; method is auc, k 20"),
        ({"method": "ranking", "group": "user", "k": 0}, "k: expected at least 1, found 0"),
        ({"weight": "price"}, "weight is for weighted_auc; method is auc, weight 'price'"),
        ({"mask": {"box_cmatch_rank": ["a"]}}, "expected CMATCH_RANK or CMATCH"),
        ({"mask": {"box_cmatch_rank": [2221]}}, "in quotes, .* found 2221"),
        ({"mask": {"age": ["1"]}}, "mask: age: expected numbers, found '1'"),
        ({"name": "copc"}, "a usual metric"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricConfig.model_validate({"name": "m", **fields})


@pytest.mark.parametrize("change", ["buckets", "bucket", "sums", "negative"])
def test_a_state_of_something_else_is_refused(change: str) -> None:
    metrics = MetricSet([spec("auc")])
    metrics.add(np.array([0.5], np.float32), np.array([1], np.float32), {})
    state = metrics.state()
    key = f"m/{change}"
    changed: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "buckets": lambda a: a + 1,
        "bucket": lambda a: a + 10**6,
        "sums": lambda a: a[:-1],
        "negative": lambda a: a[:0],
    }
    state[key] = changed[change](state[key])
    before = metrics.compute()
    with pytest.raises(ValueError, match="the state has"):
        metrics.load_state(state)
    assert metrics.compute() == before
    with pytest.raises(ValueError, match="has no"):
        metrics.load_state({})
