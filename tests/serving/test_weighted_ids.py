"""Weights of ids on their way to the lookups of an export, without a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import Slots
from paddlebox.data.loader import load_files
from paddlebox.serving import gate, predictor, source, writer
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.generation import OpenModel
from paddlebox.serving.users import UserRequest, UserScorer
from paddlebox.tools.diagnose import cli
from tests.support.configs import make_config, make_slots

# Two instances: user 7, tags 5:3 6:1; user 8, no tag. 0 is padding.
FEASIGNS = np.array([7, 5, 6, 0, 8], np.uint64)
OFFSETS = np.array([0, 1, 4, 5, 5], np.int32)
WEIGHTS = np.array([1, 3, 1, 9, 1], np.float32)


TAGS = {5: 10.0, 6: 100.0, 7: 1.0, 8: 2.0, 9: 4.0}  # feasign -> its embed_w; embedx is 0


class Dense:
    """In place of a DenseProgram: keeps what it is fed."""

    def run(self, instances: int, fill: Any, *arguments: Any, output: int = 0) -> np.ndarray:
        assert output == 0
        self.fed = np.empty((instances, self.width), np.float32)
        fill(*arguments, self.fed)
        return np.full(instances, 0.5, np.float32)

    def __init__(self, width: int) -> None:
        self.width = width


def slots_of(pooling: str = "mean", weighted: bool = True, **more: Any) -> Slots:
    tags = {"weighted": weighted, "pooling": pooling}
    return make_slots(click="label", user=more.pop("user", {}), tags=tags, **more)


def rows_of(cells: int, dense: int) -> tuple[Any, Any]:
    """A native ServeTable with the rows of TAGS, and what must outlive it."""
    writer = core.LayerWriter(1, False, "float32", 0, False)
    feasigns = np.array(sorted(TAGS, key=core.mix), np.uint64)
    rows = np.zeros((len(TAGS), 8), np.float32)
    rows[:, 6] = [TAGS[feasign] for feasign in feasigns.tolist()]
    writer.add(feasigns, rows)
    writer.finish()
    table = core.ServeTable("rows", 1, False, "float32", cells, dense, 0, False)
    about, filter_table = writer.about, writer.filter_table
    blocks = [block for _, block in writer.take_blocks()]
    table.add_layer(1, about["bits"], blocks, about["filter"], filter_table)
    return table, (blocks, filter_table)


def inputs_of(
    slots: Slots, sequences: tuple[str, ...] = (), users: dict[str, Any] | None = None
) -> tuple[Any, FieldParser, Any]:
    config = make_config(data={"key_space": "shared"})
    feed = {**feed_of(config, slots), "users": users}
    places = slots.positions(sequences)
    feed["sequences"] = [
        count if slot.name in sequences else 0
        for slot, count in zip(slots.sparse, places, strict=True)
    ]
    table, held = rows_of(sum(places), slots.dense_width + len(sequences))
    return core.ModelInputs(json.dumps(feed), [table]), FieldParser(feed), held


def opened(slots: Slots, sequences: tuple[str, ...] = ()) -> Any:
    """A generation of which only the rows and the dense part are replaced."""
    generation: Any = object.__new__(OpenModel)
    generation.config, generation.slots = make_config(data={"key_space": "shared"}), slots
    generation._inputs, generation._fields, generation.held = inputs_of(slots, sequences)
    generation._dense = Dense(generation._inputs.width)
    generation._sparse_count = len(slots.sparse)
    return generation


def weights_of(generation: Any) -> list[list[float]]:
    """The sums of embed_w of each cell."""
    return generation._dense.fed[:, ::2].tolist()


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [("sum", 130), ("mean", 32.5), ("sqrtn", pytest.approx(130 / 10**0.5))],
)
def test_lookups_have_the_factors_of_the_definition(pooling: str, pooled: Any) -> None:
    generation = opened(slots_of(pooling))
    found = generation.predict_feasigns(FEASIGNS, OFFSETS, None, WEIGHTS)
    assert found.tolist() == [0.5, 0.5]
    assert weights_of(generation) == [[1, pooled], [2, 0]]
    generation.predict([{"user": 7, "tags": ["5:3", 6, "0:9"]}, {"user": 8}])
    assert weights_of(generation) == [[1, pooled], [2, 0]]


def test_slots_without_weights_are_pooled_without_padding() -> None:
    generation = opened(slots_of("mean", weighted=False))
    generation.predict_feasigns(FEASIGNS, OFFSETS, None)
    assert weights_of(generation) == [[1, 55], [2, 0]]
    plain = opened(slots_of("sum", weighted=False))
    plain.predict_feasigns(FEASIGNS, OFFSETS, None)
    assert weights_of(plain) == [[1, 110], [2, 0]]


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


def test_a_sequence_beside_a_weighted_slot_leaves_its_weights() -> None:
    generation = opened(slots_of(user={"max_length": 2}), ("user",))
    generation.predict([{"user": [7, 9], "tags": ["5:3", "6:1"]}, {"tags": "5:2"}])
    assert weights_of(generation) == [[1, 4, 32.5, 2], [0, 0, 10, 0]]  # the last: its length


def test_a_list_longer_than_its_sequence_is_an_error() -> None:
    generation = opened(slots_of("sum", False, user={"max_length": 2}), ("user",))
    with pytest.raises(ValueError, match="instance 0: a sequence has 3 ids, expected at most 2"):
        generation.predict_feasigns(FEASIGNS[:3], np.array([0, 3, 3], np.int32), None)


def test_events_of_a_user_have_factors() -> None:
    users = {"known_width": 2, "max_length": 9, "time": "ts", "labels": ["click"]}
    inputs, fields, held = inputs_of(slots_of(), users=users)
    scorer: Any = object.__new__(UserScorer)
    scorer._inputs, scorer._fields, scorer._histories = inputs, fields, core.Histories(0)
    candidate = {"user": 7, "tags": ["5:3", "6:1"], "ts": 4}
    prepared = scorer.prepared(UserRequest([], [candidate]))
    assert prepared.tensors["box_candidates"][:, ::2].tolist() == [[1, 32.5]]
    del held


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
