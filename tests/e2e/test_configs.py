"""Every config of the zoo trains: a few steps on tiny data in the format that it names."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlebox.config import Config, Slot, Slots, SlotType, load_config, load_slots
from tests.conftest import run_python
from tests.support.marks import long

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
# One of each format and kind of model: dense features, a sequence, several tasks, two towers,
# sequences of users, phases.
FEW = (
    "deepfm_criteo.yaml", "din_movielens.yaml", "dlrm_criteo_1tb.yaml", "dssm_movielens.yaml",
    "grab_movielens.yaml", "join_update_page_views.yaml", "mmoe_census_income.yaml",
)  # fmt: skip
INSTANCES, BATCH = 300, 64
Draw = random.Random

# In one process: to start one for each config would take most of the test's time.
TRAIN_ALL = """
import json, sys, traceback
from pathlib import Path
from paddlebox.config import load_config
from paddlebox.launch import cpu
jobs = json.loads(Path(sys.argv[1]).read_text())
cpu.apply(load_config(next(iter(jobs))).trainer.program, 1)
from paddlebox.training import evaluation, run
done = {}
for path, (overrides, run_dir) in jobs.items():
    try:
        config = load_config(path, overrides)
        summary = run.train(config, Path(run_dir))
        done[path] = [summary, evaluation.evaluate(config, Path(run_dir))]
    except Exception:
        done[path] = traceback.format_exc()
print(json.dumps(done))
"""


def values(slot: Slot, draw: Draw) -> list[str]:
    """An instance's, as text."""
    if slot.type is SlotType.LABEL:
        return [str(int(draw.random() < 0.3))]
    if slot.type is SlotType.DENSE:
        return [f"{draw.random():.3f}" for _ in range(slot.dim)]
    prefix = "v" if slot.hash else ""
    return [f"{prefix}{draw.randrange(1, 60)}" for _ in range(draw.randrange(1, 4))]


def multislot(slots: Slots, draw: Draw) -> str:
    many = [values(slot, draw) for slot in slots.slots if not slot.made]
    return " ".join(" ".join([str(len(one)), *one]) for one in many)


def criteo_tsv(slots: Slots, draw: Draw) -> str:
    numbers = [str(draw.randrange(-1, 300)) if draw.random() < 0.8 else "" for _ in range(13)]
    tokens = [f"{draw.randrange(40):08x}" if draw.random() < 0.9 else "" for _ in range(26)]
    return "\t".join([str(int(draw.random() < 0.3)), *numbers, *tokens])


def csv_columns(slots: Slots) -> dict[str, Slot]:
    return {slot.column or slot.name: slot for slot in slots.slots if not slot.made}


def csv(slots: Slots, draw: Draw) -> str:
    cells = (values(slot, draw) for slot in csv_columns(slots).values())
    return slots.csv.delimiter.join(slots.csv.list_separator.join(cell) for cell in cells)


LINES: dict[str, Callable[[Slots, Draw], str]] = {
    "multislot": multislot,
    "criteo_tsv": criteo_tsv,
    "csv": csv,
}


def write(path: Path, config: Config, slots: Slots, seed: int) -> None:
    draw = random.Random(seed)
    lines = [LINES[config.data.format](slots, draw) for _ in range(INSTANCES)]
    if config.data.format == "csv" and slots.csv.header:
        lines.insert(0, slots.csv.delimiter.join(csv_columns(slots)))
    if config.data.logkey:  # pages of three
        keys = [f"{'0' * 11}0de{at % 3 + 1:02x}{at // 3:016x}" for at in range(INSTANCES)]
        lines = [
            f"{line}{slots.csv.delimiter}{key}"
            for line, key in zip(lines, [slots.tags.logkey, *keys], strict=True)
        ]
    if config.data.sequences.user:
        times = [str(draw.randrange(1000)) for _ in range(INSTANCES)]
        lines = [
            f"{line}{slots.csv.delimiter}{time}"
            for line, time in zip(lines, [slots.tags.time, *times], strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")


def selected(request: pytest.FixtureRequest) -> list[str]:
    """The configs that tests of this session train."""
    tests = (item for item in request.session.items if isinstance(item, pytest.Function))
    return [
        str(item.callspec.params["name"])
        for item in tests
        if item.originalname == "test_a_config_trains_and_evaluates"
    ]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("configs")
    jobs = {}
    for name in selected(request):
        config = load_config(ROOT / "configs" / name)
        slots = load_slots(ROOT / config.data.slots)
        files = [folder / f"{name}-{part}.txt" for part in ("train-0", "train-1", "test")]
        for seed, path in enumerate(files):
            write(path, config, slots, seed)
        overrides = [
            f"data.train_files=[{files[0]}, {files[1]}]",
            f"data.test_files=[{files[2]}]",
            f"data.batch_size={BATCH}",
            "trainer.epochs=1",
            "trainer.reset_rows=false",
        ]
        jobs[f"configs/{name}"] = [overrides, str(folder / "runs" / name)]
    plan = folder / "jobs.json"
    plan.write_text(json.dumps(jobs))
    found: dict[str, Any] = run_python(TRAIN_ALL, str(plan))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in FEW else long(name) for name in CONFIGS])
def test_a_config_trains_and_evaluates(results: dict[str, Any], name: str) -> None:
    result = results[f"configs/{name}"]
    assert isinstance(result, list), result
    summary, evaluated = result
    assert summary["samples"] == 2 * INSTANCES
    assert evaluated["samples"] == INSTANCES
    assert 0 < evaluated["logloss"] < 5


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_opens_with_its_purpose_and_its_command(name: str) -> None:
    text = (ROOT / "configs" / name).read_text()
    head = text[: text.index("\nname:")]
    assert all(line.startswith("#") for line in head.splitlines())
    for part in (f"paddlebox train -c configs/{name}", "expected:"):
        assert part in head
    assert yaml.safe_load(text)["name"] == Path(name).stem
    assert len(text.splitlines()) <= 60
