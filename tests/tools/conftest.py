"""The run that the pages and the diagnosis are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configs import write_config, write_slots
from tests.tools.common import trained, write_file


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report-data")
    for number in range(4):
        write_file(folder / f"with-ids-{number}.txt", number)
        lines = (folder / f"with-ids-{number}.txt").read_text().splitlines(keepends=True)
        (folder / f"part-{number}.txt").write_text("".join(x.split(" ", 2)[2] for x in lines))
    write_slots(folder, click="label", x="dense", a="sparse", b="sparse", c="sparse")
    train, test = [f"{folder}/part-{n}.txt" for n in range(3)], [f"{folder}/part-3.txt"]
    files = {"format": "multislot", "train_files": train, "test_files": test, "files_per_pass": 1}
    write_config(
        folder,
        name="small",
        data={**files, "batch_size": 100, "key_space": "shared"},
        model={"hidden": [8], "use_cvm": True},
        optimizer={"type": "adam", "learning_rate": 0.01, "averaging": 0.0},
    )
    return folder


@pytest.fixture(scope="session")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(data, tmp_path_factory.mktemp("report-runs") / "one")
