"""Cutting a Criteo file: every line once, in order, the last ones for testing."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from paddlebox.config import Format, load_slots

FOLDER = Path(__file__).resolve().parents[2] / "datasets" / "criteo"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("criteo_prepare", FOLDER / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = b"".join(b"%d\t\tx\n" % line for line in range(23))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", [TEXT, TEXT[:-1]])
def test_every_line_is_kept_in_order(
    prepare: ModuleType, tmp_path: Path, packed: bool, text: bytes
) -> None:
    source = tmp_path / "all.txt"
    source.write_bytes(gzip.compress(text) if packed else text)
    out = tmp_path / "out"
    prepare.main(["--input", str(source), "--out", str(out), "--parts", "3", "--test-ratio", "0.2"])
    names = ["train-000.txt", "train-001.txt", "train-002.txt", "test.txt"]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert b"".join((out / name).read_bytes() for name in names) == text
    assert [len((out / name).read_bytes().splitlines()) for name in names] == [6, 6, 6, 5]


def test_nothing_is_kept_for_testing_if_asked(prepare: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "all.txt"
    source.write_bytes(TEXT)
    arguments = ["--input", str(source), "--out", str(tmp_path), "--parts", "1"]
    prepare.main([*arguments, "--test-ratio", "0"])
    assert not (tmp_path / "test.txt").exists()
    assert (tmp_path / "train-000.txt").read_bytes() == TEXT


def test_a_file_is_not_overwritten_by_its_own_part(prepare: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "test.txt"
    source.write_bytes(TEXT)
    with pytest.raises(SystemExit, match="overwrite"):
        prepare.main(["--input", str(source), "--out", str(tmp_path)])
    assert source.read_bytes() == TEXT


def test_a_missing_or_cut_file_is_one_clear_error(prepare: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="No such file"):
        prepare.main(["--input", str(tmp_path / "none"), "--out", str(tmp_path)])
    source = tmp_path / "cut.gz"
    source.write_bytes(gzip.compress(TEXT)[:-9])
    with pytest.raises(SystemExit, match=r"cut\.gz"):
        prepare.main(["--input", str(source), "--out", str(tmp_path / "out")])
    assert not list((tmp_path / "out").iterdir())


def test_slots_use_every_column_of_the_format() -> None:
    slots = load_slots(FOLDER / "slots.yaml")
    slots.check_format(Format.CRITEO_TSV)
    used = {slot.column or slot.name for slot in slots.slots}
    assert used == {"label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))}
    assert len(slots.dense) == 13
    assert len(slots.sparse) == 39


def test_the_crossed_slots_are_the_slots_and_crosses() -> None:
    slots, crossed = (
        yaml.safe_load((FOLDER / name).read_text())["slots"]
        for name in ("slots.yaml", "slots_crossed.yaml")
    )
    assert crossed[: len(slots)] == slots
    assert all(one["name"] == "_".join(one["cross"]) for one in crossed[len(slots) :])
