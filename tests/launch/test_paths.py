"""The paths of a stored config that a command checks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from paddlebox.launch import arguments
from tests.support.configs import make_config


def test_a_key_without_a_path_lists_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []

    def expand(patterns: Sequence[str]) -> list[str]:
        listed.extend(patterns)
        return [*patterns]

    monkeypatch.setattr(arguments, "expand", expand)
    config = make_config(data={"test_files": ["test.csv"]})
    given = Namespace(overrides=[], run_dir=Path("runs/r"))
    arguments.check_paths(config, given, ["data.test_files"])
    assert listed == ["test.csv"]


def test_an_evaluation_of_a_holdout_reads_the_training_files() -> None:
    assert arguments.tested(make_config(data={"holdout": {"share": 0.1}})) == "data.train_files"
    both = {"holdout": {"share": 0.1}, "test_files": ["test.csv"]}
    assert arguments.tested(make_config(data=both)) == "data.test_files"
