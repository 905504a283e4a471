"""The run that the pages and the diagnosis are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.common import trained, write_file


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report-data")
    for number in range(4):
        write_file(folder / f"with-ids-{number}.txt", number)
        lines = (folder / f"with-ids-{number}.txt").read_text().splitlines(keepends=True)
        (folder / f"part-{number}.txt").write_text("".join(x.split(" ", 2)[2] for x in lines))
    (folder / "slots.yaml").write_text(
        "slots:\n- {name: click, type: label}\n- {name: x, type: dense}\n"
        "- {name: a, type: sparse}\n- {name: b, type: sparse}\n- {name: c, type: sparse}\n"
    )
    (folder / "config.yaml").write_text(
        f"name: small\ndata:\n  format: multislot\n  slots: {folder}/slots.yaml\n"
        f"  train_files: [{folder}/part-0.txt, {folder}/part-1.txt, {folder}/part-2.txt]\n"
        f"  test_files: [{folder}/part-3.txt]\n  files_per_pass: 1\n  batch_size: 100\n"
        "  key_space: shared\n"
        "model: {type: dnn, hidden: [8], use_cvm: true}\n"
        "optimizer: {type: adam, learning_rate: 0.01, averaging: 0.0}\n"
    )
    return folder


@pytest.fixture(scope="session")
def run_dir(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(data, tmp_path_factory.mktemp("report-runs") / "one")
