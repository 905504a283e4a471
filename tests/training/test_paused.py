"""Another command commits while a run is between its first look at the store and its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, Slots
from paddlebox.errors import PaddleBoxError, StoreError, StoreLockedError
from paddlebox.store.group import ONE_RANK
from paddlebox.store.locks import KeptLock
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training import resume, run
from paddlebox.training.config_changes import description
from paddlebox.training.resume import ResumeRequest
from tests.support.configs import config_fields, slots_fields
from tests.support.marks import slow

# Everything that `train` calls from its first look at the store on, in this order.
STEPS = [
    "assembly.take_over", "own_dir", "settled", "assembly.resume",
    "plan.warn_of_repeats", "_summary_if_done", "_check_products", "plan.plan_tests",
    "make_run_dir", "make_folder", "check_unchanged", "write_slots", "write_environment",
    "_train", "write_json",
]  # fmt: skip
SLOTS = Slots.model_validate({"slots": slots_fields(click="label", item="sparse")})


def commit(store: Path, config: Config, number: int) -> int:
    """Commits a version as a run does; returns its number."""
    with VersionStore.open_writer(store) as manifest:
        head = manifest.newest() or VersionRecord(0, 0, [], {}, 0)
        files = [config.data.train_files[0]]
        line = {"pass": number, "epoch": 1, "date": "", "files": files}
        plan = resume.follow("", "", files)
        manifest.append(
            head.following(
                "pass",
                cursor=resume.cursor(plan, {**line, "samples": 1, "batches": 1}),
                config={**description(config, SLOTS), "products": "paddle"},
                pass_number=number,
            )
        )
        return head.version + 1


def commit_beside(store: Path, config: Config) -> bool:
    """Whether another process could commit now."""
    child = os.fork()
    if child == 0:
        try:
            commit(store, config, 1)
            os._exit(0)
        except StoreLockedError:
            os._exit(6)
        except BaseException:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 6)
    return code == 0


@pytest.mark.parametrize("trained", [False, slow(True)])
def test_a_run_that_was_paused_trains_on_no_other_state_than_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: bool
) -> None:
    (tmp_path / "a").write_text("1 1\n" * 8)
    data = {"format": "multislot", "train_files": [str(tmp_path / "a")], "batch_size": 4}
    data |= {"key_space": "shared", "test_files": [str(tmp_path / "a")]}
    config = Config.model_validate(config_fields(data=data, trainer={"evaluate_passes": "after"}))
    monkeypatch.setattr(run, "read_slots", lambda *_: SLOTS)
    scratch = tmp_path / "scratch"
    request = ResumeRequest(scratch, config, SLOTS)
    config = run._resume(request, ONE_RANK, KeptLock(scratch)).config  # complete
    of_run = {"trained": 0, "at": 0, "beside": 0}
    folder, step = tmp_path, ""

    def train(*_: Any) -> dict[str, Any]:
        of_run["trained"] = commit(folder / "store", config, 1)
        return {}

    def stopped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for _ in range(2):  # before and after the call
                if name == step and not of_run["beside"]:
                    of_run["at"] += 1
                    of_run["beside"] += commit_beside(folder / "store", config)
                if _ == 0:
                    found = call(*args, **kwargs)
            return found

        return wrapped

    monkeypatch.setattr(run, "_train", train)
    for name in STEPS:
        owner: Any = run
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        monkeypatch.setattr(owner, last, stopped(name, getattr(owner, last)))
    for step in STEPS:
        folder = tmp_path / step
        if trained:
            commit(folder / "store", config, 1)
            (folder / "config.json").write_text("{}")
        of_run.update(trained=0, at=0, beside=0)
        try:
            run.train(config, folder)
        except StoreError as error:
            refused = "another command changed the store" in str(error)
            assert (refused, of_run["beside"]) == (True, 1)
            assert not (folder / "config.json").exists()
        else:
            assert of_run["at"]
            assert not of_run["beside"] or of_run["trained"] != 1
        if trained or STEPS.index(step) >= STEPS.index("check_unchanged"):
            assert not of_run["beside"]


def test_a_kept_lock_is_lent_once_and_follows_a_folder_that_is_replaced(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with KeptLock(store) as lock:
        VersionStore.open_writer(store).close()  # nothing to keep before the folder exists
        lock.take()
        with VersionStore.open_writer(store), pytest.raises(StoreLockedError):
            KeptLock(store).take()
        assert not commit_beside_is_free(store)
        store.rename(tmp_path / "before")
        store.mkdir()
        assert commit_beside_is_free(store)
        lock.take()
        assert not commit_beside_is_free(store)
    assert commit_beside_is_free(store)


def commit_beside_is_free(store: Path) -> bool:
    child = os.fork()
    if child == 0:
        try:
            KeptLock(store).take()
            os._exit(0)
        except PaddleBoxError:
            os._exit(6)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
