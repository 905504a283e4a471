"""Weights of ids on their way to the lookups of an export, without a trained model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import Slots
from paddlebox.data.loader import load_files
from paddlebox.data.positions import Positions
from paddlebox.serving import gate, predictor, source, writer
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.generation import OpenModel
from paddlebox.serving.users import UserScorer
from paddlebox.tools.diagnose import cli
from tests.support.configs import make_config, make_slots

# Two instances: user 7, tags 5:3 6:1; user 8, no tag. 0 is padding.
FEASIGNS = np.array([7, 5, 6, 0, 8], np.uint64)
OFFSETS = np.array([0, 1, 4, 5, 5], np.int32)
WEIGHTS = np.array([1, 3, 1, 9, 1], np.float32)


class Rows:
    """In place of a ServeTable: keeps the factors of the last lookup."""

    output_width = 1

    def __init__(self) -> None:
        self.factors: Any = None

    def pull(self, feasigns: Any, offsets: Any, dense: Any, out: Any, factors: Any = None) -> None:
        self.factors = None if factors is None else factors.tolist()

    def pull_parsed(self, chunk: Any, out: Any, factors: Any = None) -> None:
        self.factors = None if factors is None else factors.tolist()


class Dense:
    """In place of a DenseProgram."""

    def run(self, instances: int, fill: Any, *arguments: Any, output: int = 0) -> np.ndarray:
        assert output == 0
        fill(*arguments, None)
        return np.full(instances, 0.5, np.float32)


def slots_of(pooling: str = "mean", weighted: bool = True, **more: Any) -> Slots:
    tags = {"weighted": weighted, "pooling": pooling}
    return make_slots(click="label", user=more.pop("user", {}), tags=tags, **more)


def opened(slots: Slots, sequences: tuple[str, ...] = ()) -> Any:
    """A generation of which only the lookups and the dense part are replaced."""
    generation: Any = object.__new__(OpenModel)
    generation.config, generation.slots = make_config(data={"key_space": "shared"}), slots
    generation._rows, generation._dense = Rows(), Dense()
    generation._fields = FieldParser(generation.config, slots)
    generation._sparse_count, generation._weighted = len(slots.sparse), slots.weighted
    generation._poolings = slots.poolings()
    generation._positions = Positions(slots, sequences)
    return generation


@pytest.mark.parametrize(
    ("pooling", "factors"),
    [
        ("sum", [1, 3, 1, 0, 1]),
        ("mean", [1, 0.75, 0.25, 0, 1]),
        ("sqrtn", pytest.approx([1, 3 / 10**0.5, 1 / 10**0.5, 0, 1])),
    ],
)
def test_lookups_have_the_factors_of_the_definition(pooling: str, factors: Any) -> None:
    generation = opened(slots_of(pooling))
    found = generation.predict_feasigns(FEASIGNS, OFFSETS, None, WEIGHTS)
    assert found.tolist() == [0.5, 0.5]
    assert generation._rows.factors == factors
    of_feasigns = generation._rows.factors
    generation.predict([{"user": 7, "tags": ["5:3", 6, "0:9"]}, {"user": 8}])
    assert generation._rows.factors == [*of_feasigns[:3], of_feasigns[4]]  # without padding


def test_slots_without_weights_are_pooled_without_padding() -> None:
    generation = opened(slots_of("mean", weighted=False))
    generation.predict_feasigns(FEASIGNS, OFFSETS, None)
    assert generation._rows.factors == [1, 0.5, 0.5, 0, 1]
    plain = opened(slots_of("sum", weighted=False))
    plain.predict_feasigns(FEASIGNS, OFFSETS, None)
    assert plain._rows.factors is None


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (None, r"expected weights of the feasigns, because slots tags are weighted"),
        (WEIGHTS[:1], r"weights have shape \(1,\), expected that of the feasigns, \(5,\)"),
        (WEIGHTS.reshape(5, 1), r"weights have shape \(5, 1\)"),
        (WEIGHTS[:4], r"weights have shape \(4,\)"),
        (WEIGHTS * -1, r"expected numbers in \[0, 2\^32\]"),
        (WEIGHTS * np.float32("nan"), r"expected numbers in \[0, 2\^32\]"),
        (WEIGHTS * np.float32(2**33), r"expected numbers in \[0, 2\^32\]"),
        (
            np.array([1, 3, 1, 1, 2], np.float32),
            "expected 1 in slot 'user', which is not weighted, found 2 at index 4",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        opened(slots_of()).predict_feasigns(FEASIGNS, OFFSETS, None, weights)


def test_weights_without_a_weighted_slot_are_refused() -> None:
    with pytest.raises(ValueError, match="no slot is weighted: leave them out"):
        opened(slots_of(weighted=False)).predict_feasigns(FEASIGNS, OFFSETS, None, WEIGHTS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offsets", [[0, 1, 4, 4, 4], [1, 1, 4, 5, 5], [0, 4, 1, 5, 5], [0, 9, 5]])
def test_offsets_that_do_not_fit_are_named(weighted: bool, offsets: list[int]) -> None:
    generation = opened(slots_of(weighted=weighted))
    with pytest.raises(ValueError, match="offsets: expected ascending values from 0 to 5"):
        generation.predict_feasigns(
            FEASIGNS, np.array(offsets, np.int32), None, WEIGHTS if weighted else None
        )


def test_lists_that_are_no_multiple_of_the_poolings_are_refused() -> None:
    one = np.ones(1, np.float32)
    for poolings in ([], ["mean", "sum"]):
        with pytest.raises(ValueError, match="1 lists, expected a multiple of"):
            core.factors_of_lists(np.array([0, 1], np.int32), poolings, one)
    wide = np.array([-(2**31), 2**31 - 1], np.int32)
    with pytest.raises(ValueError, match="offsets: expected ascending values"):
        core.factors_of_lists(wide, ["mean"], one)


def test_a_sequence_beside_a_weighted_slot_leaves_its_weights() -> None:
    generation = opened(slots_of(user={"max_length": 2}), ("user",))
    generation.predict([{"user": [7, 9], "tags": ["5:3", "6:1"]}, {"tags": "4:2"}])
    assert generation._rows.factors == [1, 1, 0.75, 0.25, 1]


def test_events_of_a_user_have_factors() -> None:
    slots, scorer = slots_of(), object.__new__(UserScorer)
    scorer._rows, scorer._poolings, scorer._time = Rows(), slots.poolings(), "ts"
    scorer._fields = FieldParser(make_config(data={"key_space": "shared"}), slots)
    scorer._pulled([{"user": 7, "tags": ["5:3", "6:1"], "ts": 4}], "history")
    assert scorer._rows.factors == [1, 0.75, 0.25]


def loaded_of(folder: Path, slots: Slots) -> Any:
    (folder / "data.csv").write_text("click,user,tags\n1,7,5:3|6:1\n0,8,\n")
    config = make_config(data={"key_space": "shared"})
    return load_files(config, slots, [str(folder / "data.csv")], 8, "files are read")


class Asked:
    """In place of a generation or a Predictor: keeps the weights that it is given."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.config, self.weights = slots, make_config(), [np.zeros(0)]

    def predict_feasigns(self, feasigns: Any, offsets: Any, dense: Any, weights: Any) -> Any:
        self.weights = [] if weights is None else weights.tolist()
        return np.array([0.5, 0.25], np.float32)


def test_a_gate_gives_weights_to_the_versions_whose_slots_have_them(tmp_path: Path) -> None:
    loaded = loaded_of(tmp_path, slots_of())
    new, before = Asked(slots_of()), Asked(slots_of(weighted=False))
    gate._evaluate(new, loaded)  # type: ignore[arg-type]
    gate._evaluate(before, loaded)  # type: ignore[arg-type]
    assert new.weights == [1, 3, 1, 1]
    assert before.weights == []


@pytest.mark.parametrize("weighted", [True, False])
def test_diagnose_gives_the_export_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighted: bool
) -> None:
    asked = Asked(slots_of(weighted=weighted))

    class Context(SimpleNamespace):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            pass

        def __enter__(self) -> Asked:
            return asked

        def __exit__(self, *error: Any) -> None:
            pass

    monkeypatch.setattr(predictor, "Predictor", Context)
    monkeypatch.setattr(source, "RunSource", Context)
    monkeypatch.setattr(writer, "export", lambda *_: None)
    loaded = loaded_of(tmp_path, slots_of())
    loaded = SimpleNamespace(
        instances=loaded.instances, size=2, options=SimpleNamespace(slots=asked.slots)
    )
    labels = np.array([1, 0], np.float32)
    served = cli._serve(tmp_path, 1, None, loaded)
    assert isinstance(served, np.ndarray)
    assert cli._compare(served, labels, labels, None)["largest_difference"] == 0.5
    assert asked.weights == ([1, 3, 1, 1] if weighted else [])
