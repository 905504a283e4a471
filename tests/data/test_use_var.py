"""Feeding a user's own variables: slots as padded (B, n) arrays, and what cannot be fed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, PassError
from paddlebox.training.batch_loop import run_pass
from paddlebox.training.own_program import train_from_dataset
from tests.data.test_protocol import load, train
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import multislot_lines

LINES = [
    "1 1 2 0.5 1.5 1 7 2 3 4",
    "1 0 2 1 2 1 18446744073709551615 1 3",
    "1 1 2 3 4 1 7 3 8 9 8",
]


def var(name: str, width: int, dtype: str = "int64", **more: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=[-1, width], dtype=f"paddle.{dtype}", **more)


def no_step(_: dict[str, Any]) -> tuple[float, None]:
    return 0.5, None


GOOD = [var("user", 1), var("words", 3), var("age", 2, "float32"), var("click", 1, "float32")]


def test_slots_are_padded_with_zeros_and_keep_all_64_bits(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(batch_size=2, use_var=GOOD)
    load(dataset, write_lines("a.txt", LINES))
    first, last = dataset.batches()
    dataset.end_pass()
    assert set(first) == {"user", "words", "age", "click"}
    assert first["user"].tolist() == [[7], [-1]]  # 2^64 - 1 as bits
    assert first["words"].tolist() == [[3, 4, 0], [3, 0, 0]]
    assert last["words"].tolist() == [[8, 9, 8]]
    assert first["age"].tolist() == [[0.5, 1.5], [1, 2]]
    assert [first["click"].tolist(), first["click"].dtype] == [[[1], [0]], np.float32]


def test_a_label_variable_of_int64_is_fed_int64(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(use_var=[var("click", 1)])
    load(dataset, write_lines("a.txt", LINES))
    (batch,) = dataset.batches()
    dataset.end_pass()
    assert batch["click"].dtype == np.int64


@pytest.mark.parametrize("names", [["user", "words"], "user", [*GOOD, "user"]])
def test_names_in_place_of_variables_are_an_error_that_names_what_is_accepted(
    open_dataset: OpenDataset, names: list[Any] | str
) -> None:
    dataset = open_dataset()
    with pytest.raises(ValueError, match=r"found 'user' \(str\): .*static\.InputSpec\(\[None, 1\]"):
        dataset.set_use_var(names)


def test_input_specs_say_in_dygraph_what_is_fed(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    from paddlebox._native import paddle

    specs = [
        paddle.static.InputSpec([None, 3], "int64", "words"),
        paddle.static.InputSpec([None, 1], "float32", "click"),
    ]
    dataset = open_dataset(use_var=specs)
    load(dataset, write_lines("a.txt", LINES))
    (batch,) = dataset
    dataset.end_pass()
    assert batch["words"].tolist() == [[3, 4, 0], [3, 0, 0], [8, 9, 8]]
    assert batch["click"].tolist() == [[1], [0], [1]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (var("usr", 1), r"'usr' is neither a slot \(click, age, user, words\)"),
        (var("user", -1), r"'user' has shape \(-1, -1\).* expected \(-1, n\) with n known"),
        (var("user", 1, lod_level=1), "lod_level 1; expected"),
        (var("user", 1, "float32"), r"'user' has dtype paddle.float32, expected int64"),
        (var("age", 3, "float32"), r"'age' has shape \(-1, 3\), expected \(-1, 2\)"),
        (var("box_ids", 1, "int32"), r"expected a variable of shape \(-1, n\), found box_ids"),
    ],
)
def test_variables_that_cannot_be_fed_are_an_error_before_anything_is_loaded(
    open_dataset: OpenDataset, write_lines: WriteLines, wrong: Any, message: str
) -> None:
    dataset = open_dataset(use_var=[wrong])
    file = write_lines("a.txt", LINES)
    dataset.set_filelist([file])
    with pytest.raises(ValueError, match=message):
        dataset.preload_into_memory()
    dataset.set_use_var(GOOD)  # and the dataset goes on
    dataset.load_into_memory()


def test_a_slot_with_more_feasigns_than_its_variable_is_named(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(use_var=[var("words", 2)])
    load(dataset, write_lines("a.txt", LINES))
    with pytest.raises(ValueError, match=r"'words': an instance has 3 .* shape \(-1, 3\) or more"):
        run_pass(dataset, no_step)


def test_metrics_without_a_label_are_refused(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(use_var=GOOD[:3])
    load(dataset, write_lines("a.txt", LINES))
    with pytest.raises(ValueError, match="use_var has no label"):
        train_from_dataset(None, None, dataset, loss="loss", logits="logits")
    assert run_pass(dataset, no_step).samples == 3


@pytest.mark.parametrize(
    ("use_var", "label", "message"),
    [
        (GOOD, "clik", r"\(user, words, age, click\), found 'clik'; did you mean 'click'\?$"),
        (None, "click", r"label: expected a variable that is fed \(box_label\), found 'click'$"),
    ],
)
def test_a_label_that_is_not_fed_is_an_error_and_the_pass_stays_open(
    open_dataset: OpenDataset, write_lines: WriteLines, use_var: Any, label: str, message: str
) -> None:
    dataset = open_dataset(use_var=use_var)
    load(dataset, write_lines("a.txt", LINES))
    exe = SimpleNamespace(place=None)
    for logits in (None, "logits"):
        with pytest.raises(ConfigError, match=message):
            train_from_dataset(exe, None, dataset, loss="loss", logits=logits, label=label)
    assert run_pass(dataset, no_step, label=dataset.label_variable).samples == 3


def test_training_a_pass_twice_is_refused_and_costs_nothing(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    load(dataset, write_lines("a.txt", multislot_lines(50)))
    run_pass(dataset, no_step)
    with pytest.raises(PassError, match="end_pass is missing"):
        run_pass(dataset, no_step)
    dataset.end_pass()
    with pytest.raises(PassError, match="begin_pass is missing"):
        run_pass(dataset, no_step)
    assert train(dataset, write_lines("b.txt", multislot_lines(50, seed=2)))
