"""The run that the pages and the diagnosis are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configs import write_config, write_slots
from tests.support.shared import once, own_copy
from tests.tools.common import trained, write_file


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "report-data", _make_data)


def _make_data(folder: Path) -> None:
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


@pytest.fixture(scope="session")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = own_copy(tmp_path_factory, "reported", lambda folder: trained(data, folder / "one"))
    return made / "one"
