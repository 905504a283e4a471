"""What the summary of a run that is done says when the run is started again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from paddlebox.config import Config, load_slots
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.store.version_store import VersionStore
from paddlebox.training import resume
from paddlebox.training.config_changes import description
from paddlebox.training.plan import PlannedPass
from paddlebox.training.run import train
from tests.support.configs import make_config, write_slots
from tests.support.inside import newest


def done_run(folder: Path) -> Config:
    """A run dir of one pass, at version 1."""
    folder.mkdir(exist_ok=True)
    slots = load_slots(write_slots(folder, click="label", user="sparse"))
    (folder / "a").write_text("1 1 1 7\n")
    files = [str(folder / "a")]
    data = {"format": "multislot", "slots": f"{folder}/slots.yaml", "train_files": files}
    config = make_config(data=data)
    line = {"pass": 1, "epoch": 1, "date": "", "files": files, "samples": 1, "metrics": {}}
    plan = resume.hashes_of([PlannedPass(1, 1, files)])
    with VersionStore.open_writer(folder / "store") as manifest:
        manifest.append(
            VersionRecord(
                version=1,
                parent=0,
                segments=[],
                layout={},
                pass_number=1,
                cursor=resume.cursor(plan[0], line),
                config=description(config, slots),
            )
        )
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "summary.json").write_text(
        json.dumps({"passes": 1, "samples": 1, "version": 1, "seconds": 2.0})
    )
    return config


def test_its_version_is_the_head_of_the_store_also_after_a_merge_or_a_move(tmp_path: Path) -> None:
    config = done_run(tmp_path)
    assert train(config, tmp_path)["version"] == 1
    with VersionStore.open_writer(tmp_path / "store") as manifest:
        head = manifest.newest()
        assert head is not None
        manifest.append(dataclasses.replace(head, version=2, parent=1))
    assert train(config, tmp_path) == {"passes": 1, "samples": 1, "version": 2, "seconds": 2.0}
    assert json.loads((tmp_path / "summary.json").read_text())["version"] == 2


def test_its_version_is_that_of_the_merge_which_closing_the_store_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = done_run(tmp_path / "other")  # of its data; its store is not looked at
    close = TableSet.close

    def merging(table: TableSet) -> None:
        if not table.options.read_only and table.head is not None:
            table.first.compactor.compact(full=True)
        close(table)

    monkeypatch.setattr(TableSet, "close", merging)
    data = {**config.data.model_dump(mode="json"), "files_per_pass": 1}
    data["train_files"] *= 2  # two passes, whose segments overlap
    told = train(Config.model_validate({**config.model_dump(mode="json"), "data": data}), tmp_path)
    with VersionStore.open_reader(tmp_path / "store") as manifest:
        assert told["version"] == newest(manifest).version == 3
