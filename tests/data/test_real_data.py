"""Real rows, where they are at hand, parse without one malformed line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Format, KeySpace, Slots, load_slots
from paddlebox.data.loader import load
from tests.support.options import load_options

ROOT = Path(__file__).parents[2]


def slots_of(label: str, sparse: range, **dense: int) -> Slots:
    slots: list[dict[str, Any]] = [{"name": label, "type": "label"}]
    slots += [{"name": name, "type": "dense", "dim": dim} for name, dim in dense.items()]
    slots += [{"name": str(number), "type": "sparse"} for number in sparse]
    return Slots.model_validate({"slots": slots})


@pytest.mark.parametrize(
    ("path", "data_format", "slots", "rows"),
    [
        ("criteo/train.tsv.gz", Format.CRITEO_TSV, "datasets/criteo/slots.yaml", 109711),
        ("criteo_1tb/day_0_part.tsv.gz", Format.CRITEO_TSV, "datasets/criteo/slots.yaml", 10000),
        (
            "paddlerec_slots/criteo_slot_dnn/sample_train.txt",
            Format.SLOT_VALUE,
            slots_of("click", range(1, 27), dense_feature=13),
            None,
        ),
        (
            "paddlerec_slots/slot_dnn/demo_10",
            Format.FEASIGN_SLOT,
            slots_of("1", range(2, 1000)),
            None,
        ),
    ],
)
def test_real_rows_have_no_bad_line(
    real_data: Path, path: str, data_format: Format, slots: Slots | str, rows: int | None
) -> None:
    file = real_data / path
    if not file.is_file():
        pytest.skip(f"{file} is absent")
    if isinstance(slots, str):
        slots = load_slots(ROOT / slots)
    options = load_options(data_format, slots, 512, threads=2, key_space=KeySpace.PER_SLOT)
    loaded = load([str(file)], options, max_rows=1 << 30)
    if rows is None:
        rows = len(file.read_text().splitlines())
    assert (loaded.size, loaded.lines, loaded.bad_lines) == (rows, rows, 0)
    assert loaded.instances.unique_keys > rows / 10
