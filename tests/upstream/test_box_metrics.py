"""BoxWrapper's metrics, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError
from paddlebox.store.group import Group
from tests.support.fixtures import OpenTable

SCALED = (1_000_000, False, 0, "scale")  # the last arguments of init_metric
CLICK = np.array([1, 0, 1, 0], np.int64)
P = np.array([0.9, 0.8, 0.7, 0.1], np.float32)
# cmatch 222 with ranks 1 and 2, cmatch 223 with ranks 1 and 3
PLACES = np.array([222 << 32 | 1, 222 << 32 | 2, 223 << 32 | 1, 223 << 32 | 3], np.int64)
COLUMNS: dict[str, np.ndarray] = {
    "click": CLICK,
    "p": P,
    "q": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    "places": PLACES,
    "mask": np.array([1, 0, 2, 1], np.int64),
    "age": np.array([3, 3, 4, 3], np.int64),
    "spend": np.array([2.5, 0, -1, 4], np.float32),
    "scale": np.array([2, 1, 0.5, 3], np.float32),
    "soft": np.array([1, 0.25, 0.5, 0], np.float32),
}


@pytest.fixture
def box(open_table: OpenTable) -> Iterator[Any]:
    from paddlebox import compat

    table = open_table()
    dataset = compat.PadBoxSlotDataset(table)
    yield compat.BoxWrapper(table, dataset)
    dataset.close()


def added(box: Any, method: str, **arguments: Any) -> str:
    """A metric of phase 1 that has the batch above; returns its name."""
    given = {
        "label_varname": "click",
        "pred_varname": "p",
        "cmatch_rank_varname": "places",
        "mask_varname": "",
        "metric_phase": 1,
        "cmatch_rank_group": "",
        "ignore_rank": False,
        **arguments,
    }
    box.init_metric(method, "metric", **given)
    box.add_data(COLUMNS)
    return "metric"


def test_an_auc_has_eight_values_in_the_order_of_paddlebox(box: Any) -> None:
    auc, bucket_error, mae, rmse, actual, predicted, copc, size = box.get_metric_msg(
        added(box, "AucCalculator")
    )
    assert auc == 0.75  # of the pairs (0.9, 0.8), (0.9, 0.1), (0.7, 0.8), (0.7, 0.1)
    assert bucket_error == 0  # of groups of too few shows
    assert mae == pytest.approx((0.1 + 0.8 + 0.3 + 0.1) / 4)
    assert rmse == pytest.approx(np.sqrt((0.01 + 0.64 + 0.09 + 0.01) / 4))
    assert (actual, predicted) == (0.5, pytest.approx(0.625))
    assert (copc, size) == (pytest.approx(0.8), 4)


def test_reading_resets_and_passes_add_up(box: Any) -> None:
    name = added(box, "AucCalculator")
    box.add_data(COLUMNS)
    assert box.get_metric_msg(name)[7] == 8
    assert box.get_metric_msg(name) == [-0.5, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("method", "arguments", "size", "clicks"),
    [
        ("CmatchRankAucCalculator", {"cmatch_rank_group": "222_1 223_3"}, 2, 1),
        ("CmatchRankAucCalculator", {"cmatch_rank_group": "223", "ignore_rank": True}, 2, 1),
        ("MaskAucCalculator", {"mask_varname": "mask"}, 3, 2),
        (
            "MultiMaskAucCalculator",
            {"mask_varname": "mask age", "cmatch_rank_group": "1 3"},
            *(2, 1),
        ),
        (
            "CmatchRankMaskAucCalculator",
            {"cmatch_rank_group": "222_1 222_2", "mask_varname": "mask"},
            *(1, 1),
        ),
        ("CmatchRankMaskAucCalculator", {"cmatch_rank_group": "222_1 222_2"}, 2, 1),
    ],
)
def test_masks_and_places_choose_instances(
    box: Any, method: str, arguments: dict[str, Any], size: int, clicks: int
) -> None:
    found = box.get_metric_msg(added(box, method, **arguments))
    assert (found[7], round(found[4] * found[7])) == (size, clicks)


def test_each_place_has_its_prediction_in_a_multi_task_auc(box: Any) -> None:
    groups = "222_1 223_3"
    name = added(box, "MultiTaskAucCalculator", pred_varname="p q", cmatch_rank_group=groups)
    found = box.get_metric_msg(name)
    assert found[7] == 2
    assert found[5] == pytest.approx((0.9 + 0.4) / 2)  # p of the first, q of the last
    assert found[0] == 1.0


def test_the_first_of_two_tasks_with_one_place_gets_its_instances(box: Any) -> None:
    groups = "222_1 222_1"
    name = added(box, "MultiTaskAucCalculator", pred_varname="q p", cmatch_rank_group=groups)
    found = box.get_metric_msg(name)
    assert (found[7], found[5]) == (1, pytest.approx(0.1))


@pytest.mark.parametrize(
    ("method", "arguments", "rows"),
    [
        ("ContinueMaskCalculator", {"mask_varname": "mask"}, [0, 2, 3]),
        (
            "ContinueMultiMaskCalculator",
            {"mask_varname": "mask age", "cmatch_rank_group": "1 3"},
            [0, 3],
        ),
        ("GPUContinueMultiMaskCalculator", {"mask_varname": "age", "cmatch_rank_group": "4"}, [2]),
    ],
)
def test_a_continuous_target_has_five_values(
    box: Any, method: str, arguments: dict[str, Any], rows: list[int]
) -> None:
    name = added(box, method, label_varname="spend", **arguments)
    spend, p = COLUMNS["spend"][rows].astype(float), P[rows].astype(float)
    assert box.get_continue_metric_msg(name) == pytest.approx(
        [
            np.abs(p - spend).mean(),
            np.sqrt(((p - spend) ** 2).mean()),
            spend.mean(),
            p.mean(),
            len(rows),
        ]
    )


def test_predictions_that_are_no_numbers_are_counted(box: Any) -> None:
    box.init_metric("NanInfCalculator", "broken", "click", "p", "", "", 1, "", False)
    p = np.array([np.nan, np.inf, -np.inf, 0.5], np.float32)
    box.add_data({"click": CLICK, "p": p})
    assert box.get_nan_inf_metric_msg("broken") == [1, 2, 0.75, 4]


def test_scaled_samples_count_by_their_weights(box: Any) -> None:
    """The pairs of (0.9: 2, 0.7: 0.5) positives and (0.8: 1, 0.1: 3) negatives."""
    found = box.get_metric_msg(added(box, "AucCalculator", sample_scale_varnam="scale"))
    auc, _, mae, rmse, actual, predicted, copc, size = found
    assert auc == pytest.approx((2 * 4 + 0.5 * 3) / (2.5 * 4))
    assert mae == pytest.approx((2 * 0.1 + 0.8 + 0.5 * 0.3 + 3 * 0.1) / 6.5)
    squares = 2 * 0.01 + 0.64 + 0.5 * 0.09 + 3 * 0.01
    assert rmse == pytest.approx(np.sqrt(squares / 6.5))
    assert (actual, size) == (pytest.approx(2.5 / 6.5), 6.5)
    assert predicted == pytest.approx((1.8 + 0.8 + 0.35 + 0.3) / 6.5)
    assert copc == pytest.approx(2.5 / 3.25)


def test_a_soft_label_is_a_part_of_a_click(box: Any) -> None:
    """The mask leaves 0.9 (1 positive), 0.7 (half of each) and 0.1 (1 negative)."""
    given = {"label_varname": "soft", "mask_varname": "mask"}
    found = box.get_metric_msg(added(box, "FloatMaskAucCalculator", **given))
    assert found[0] == pytest.approx((1 * 1.5 + 0.5 * (1 + 0.25)) / (1.5 * 1.5))
    assert found[2] == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    assert (found[4], found[7]) == (0.5, 3)


def test_metrics_are_of_their_phase(box: Any) -> None:
    for name, phase in (("join", 1), ("update", 0), ("join too", 1)):
        box.init_metric("AucCalculator", name, "click", "p", "", "", phase, "", False)
    assert (
        box.get_metric_name_list() == box.get_metric_name_list(-1) == ["join", "update", "join too"]
    )
    assert box.get_metric_name_list(1) == ["join", "join too"]
    box.add_data(COLUMNS)
    box.flip_phase()
    box.add_data(COLUMNS)
    box.add_data(COLUMNS)
    sizes = [box.get_metric_msg(name)[7] for name in ("join", "update", "join too")]
    assert sizes == [4, 8, 4]


def test_ranks_are_summed(box: Any) -> None:
    class TwoRanks(Group):
        rank, size = 1, 2

        def arrays_of_others(self, make: Any) -> dict[int, Any]:
            return {0: make()}

    name = added(box, "AucCalculator")
    box.init_metric("AucCalculator", "scaled", "click", "p", "-", "-", 1, "", False, *SCALED)
    box.add_data(COLUMNS)
    box._table.world = TwoRanks()
    found = box.get_metric_msg(name)
    assert (found[0], found[7]) == (0.75, 16)
    assert box.get_metric_msg("scaled")[7] == 13


class TestMistakes:
    @pytest.mark.parametrize(
        ("method", "arguments", "message"),
        [
            (
                "MaskAucCalculator",
                {"mask_varname": "mask", "sample_scale_varnam": "scale"},
                "MaskAucCalculator takes no weights .* expected '', found 'scale'",
            ),
            ("AucCalculator", {"bucket_size": 100}, "bucket_size 100.*1000000 buckets"),
            ("AucCalc", {}, "expected one of AucCalculator, .*found 'AucCalc'"),
            ("AucCalculator", {"pred_varname": "p q"}, "expected one prediction"),
            ("MultiTaskAucCalculator", {}, "one cmatch_rank per prediction"),
            ("MultiMaskAucCalculator", {"mask_varname": "a b"}, "one value per mask"),
            ("CmatchRankAucCalculator", {"cmatch_rank_group": "222"}, "expected CMATCH_RANK num"),
            ("CmatchRankAucCalculator", {}, "expected CMATCH_RANK num"),
            (
                "MultiMaskAucCalculator",
                {"mask_varname": "mask", "cmatch_rank_group": "x"},
                r"values of the masks, integers, found \['x'\]",
            ),
            (
                "CmatchRankAucCalculator",
                {"cmatch_rank_group": "222_1", "ignore_rank": True},
                "expected CMATCH numbers",
            ),
        ],
    )
    def test_an_unfit_metric(
        self, box: Any, method: str, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=f"init_metric 'metric': .*{message}"):
            added(box, method, **arguments)

    def test_names_and_getters(self, box: Any) -> None:
        name = added(box, "AucCalculator")
        with pytest.raises(ConfigError, match="names metric: expected"):
            added(box, "AucCalculator")
        with pytest.raises(ConfigError, match="'metric' is read by get_metric_msg"):
            box.get_continue_metric_msg(name)
        with pytest.raises(ConfigError, match="no metric 'other'; there are metric"):
            box.get_metric_msg("other")

    def test_a_batch_that_lacks_a_column_or_has_a_wrong_value(self, box: Any) -> None:
        added(box, "AucCalculator")
        with pytest.raises(ConfigError, match="the batch has no click; it has p"):
            box.add_data({"p": P})
        with pytest.raises(ValueError, match=r"metric 'metric': .*2"):
            box.add_data({"p": P, "click": 2 * CLICK})

    def test_a_soft_label_outside_of_its_range_or_a_negative_weight(self, box: Any) -> None:
        added(box, "AucCalculator", sample_scale_varnam="scale")
        with pytest.raises(ValueError, match=r"'metric': prediction 0 is 0.9, its label 1 and"):
            box.add_data({**COLUMNS, "scale": -COLUMNS["scale"]})
        with pytest.raises(ConfigError, match="the batch has no scale; it has click, p"):
            box.add_data({"p": P, "click": CLICK})
        box.init_metric("FloatMaskAucCalculator", "soft", "spend", "p", "-", "mask", 1, "", False)
        with pytest.raises(ValueError, match=r"'soft': prediction 0 is 0.9, its label 2.5"):
            box.add_data(COLUMNS)
