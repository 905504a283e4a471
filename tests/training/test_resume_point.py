"""What may change between two starts of a run, and which lines of metrics.jsonl stay."""

from __future__ import annotations

import copy
import json
import logging
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, Slots
from paddlebox.config.describe import describe
from paddlebox.config.stored import FREE, PASSES, SLOT_RATES, TUNED
from paddlebox.errors import ConfigError, StoreError, StoreLockedError
from paddlebox.store.locks import KeptLock
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training import resume
from paddlebox.training.config_changes import as_lines, description
from paddlebox.training.plan import PlannedPass, choose_skipped, leave_out
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.upcoming import Listed
from tests.support.configs import config_fields, slots_fields
from tests.support.inside import newest

FILES = ["a", "b", "c", "d"]
DATA = {"format": "multislot", "train_files": FILES, "batch_size": 512, "key_space": "shared"}
SLOTS = slots_fields(click="label", user="sparse", item="sparse")


def config(**changes: Any) -> Config:
    fields = copy.deepcopy(config_fields(data=DATA))
    for path, value in changes.items():
        *sections, name = path.split("__")
        at = fields
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return Config.model_validate(fields)


def slots(*listed: dict[str, Any]) -> Slots:
    return Slots.model_validate({"slots": list(listed) or SLOTS})


def passes(*files: str) -> list[PlannedPass]:
    """Of one file each."""
    return [PlannedPass(number, 1, [file]) for number, file in enumerate(files or FILES, 1)]


HASHES = resume.hashes_of(passes())


def line(number: int) -> dict[str, Any]:
    metrics = {"auc": float("nan") if number == 2 else 0.5 + number / 16}
    return {
        "pass": number, "epoch": 1, "date": "", "files": [FILES[number - 1]], "samples": 10,
        "batches": 1, "loss": 0.1, "metrics": metrics,
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Version 1 of pass 1, version 2 of pass 2, whose line was not written any more."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(1)) + "\n")
    with VersionStore.open_writer(tmp_path / "store") as manifest:
        for number in (1, 2):
            manifest.append(
                VersionRecord(
                    version=number,
                    parent=number - 1,
                    segments=[],
                    layout={},
                    pass_number=number,
                    cursor=resume.cursor(HASHES[number - 1], line(number)),
                    config=description(config(), slots()),
                )
            )
    return tmp_path


def resume_point(
    run_dir: Path, *skip: str, back_to: str = "", to: Slots | None = None, **changes: Any
) -> Any:
    request = ResumeRequest(run_dir, config(**changes), to or slots(), back_to, skip)
    return Listed(passes()).resume(request)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"mem__budget_bytes": 1 << 21, "hbm__budget_bytes": 1 << 21},
        {"data__threads": 2, "trainer__dense_threads": 1},
        {"checkpoint__every": 3, "trainer__grace_s": 1.0},
        {"data__slots": "elsewhere.yaml", "data__test_files": ["t"]},
    ],
)
def test_what_changes_no_result_is_not_spoken_of(
    run_dir: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert resume_point(run_dir, **changes).passes == 2
    assert not caplog.records


def test_lines_of_passes_that_are_lost_are_reported(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run_dir / "metrics.jsonl").write_text(json.dumps(line(2)) + "\n")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert resume_point(run_dir).passes == 2
    assert "lacks the lines of 1 of 2 passes, first of pass 1" in caplog.text
    caplog.clear()
    (run_dir / "metrics.jsonl").unlink()
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert resume_point(run_dir).passes == 2
    assert "lacks the lines of 1 of 2 passes, first of pass 1" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer__learning_rate": 0.5}, "optimizer.learning_rate: was 0.001, now 0.5"),
        ({"table__embed": {"learning_rate": 0.5}}, "table.embed.learning_rate: was 0.05, now 0.5"),
        ({"data__batch_size": 7}, "data.batch_size: was 512, now 7"),
        ({"table__life": {"delete_threshold": 0.5}}, "table.life.delete_threshold: was 0.8, now"),
    ],
)
def test_tuned_settings_may_change_and_are_reported(
    run_dir: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert resume_point(run_dir, **changes).passes == 2
    assert [said in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 2}, "seed: was 1, now 2"),
        ({"table__embedx_dim": 4}, "table.embedx_dim: was 8, now 4"),
        ({"data__key_space": "per_slot"}, 'data.key_space: was "shared", now "per_slot"'),
        ({"optimizer__type": "sgd"}, 'optimizer.type: was "adam", now "sgd"'),
        ({"model__hidden": [3]}, "model.hidden: was [400, 400, 400], now [3]"),
        ({"trainer__program": "dygraph"}, 'trainer.program: was "pir", now "dygraph"'),
        (
            {"data__parser": "p.so", "security__allow_commands": True},
            'data.parser: was "", now "p.so"',
        ),
    ],
)
def test_what_gives_the_store_its_meaning_is_refused(
    run_dir: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        resume_point(run_dir, **changes)
    text = str(raised.value)
    assert f"\n  {said}\n" in text
    assert "--fresh" in text
    carried = "data__key_space" not in changes  # rows mean nothing in the other key space
    assert (f"--run-dir NEW --init-from {run_dir} (docs/warm_start.md)" in text) == carried


def test_every_differing_value_is_in_one_error(run_dir: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        resume_point(run_dir, seed=2, table__embedx_dim=4, model__type="deepfm")
    assert [key in str(raised.value) for key in ("seed:", "embedx_dim:", "model.type:")] == [
        True
    ] * 3


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([SLOTS[0], SLOTS[2], SLOTS[1]], "slots.yaml order"),
        (SLOTS[:2], "slots.yaml item"),
        ([*SLOTS[:2], {"name": "item", "type": "sparse", "column": "x"}], "slots.yaml item"),
    ],
)
def test_other_slots_are_refused_by_name(
    run_dir: Path, listed: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        resume_point(run_dir, to=slots(*listed))


def test_shares_counts_where_keys_are_per_slot(run_dir: Path) -> None:
    shared = slots(*SLOTS[:2], {**SLOTS[2], "shares": "user"})
    assert resume_point(run_dir, to=shared).passes == 2  # key_space shared: the word means nothing
    with VersionStore.open_writer(run_dir / "store") as manifest:
        record = newest(manifest)
        stored = description(config(data__key_space="per_slot"), slots())
        manifest.append(record.following("pass", cursor=record.cursor, config=stored))
    assert resume_point(run_dir, data__key_space="per_slot").passes == 2
    with pytest.raises(ConfigError, match=r"slots\.yaml item"):
        resume_point(run_dir, to=shared, data__key_space="per_slot")


def test_slots_of_other_data_take_a_line_for_those_gone_and_one_for_those_new(
    run_dir: Path,
) -> None:
    listed = [{**SLOTS[0], "name": "clicked"}, *({"name": n, "type": "sparse"} for n in "xy")]
    with pytest.raises(ConfigError) as raised:
        resume_point(run_dir, to=slots(*listed))
    lines = str(raised.value).splitlines()
    there = ", ".join(slot["name"] for slot in SLOTS)
    assert f"  slots.yaml {there}: no longer there" in lines
    assert "  slots.yaml clicked, x, y: new" in lines
    assert len([line for line in lines if "slots.yaml" in line]) == 2  # their order needs none


@pytest.mark.parametrize(
    ("files", "changed"),
    [
        ("abcd", ""),
        ("abcde", ""),  # a day more
        ("abx", ""),  # not trained yet
        ("ab", ""),
        ("acbd", "pass 2 was trained on b, the config has c there"),
        ("xbcd", "pass 1 was trained on a, the config has x there"),
        ("a", "Pass 2 was trained on b, and the config has no such pass"),
    ],
)
def test_files_may_be_added_after_those_that_were_trained(
    run_dir: Path, files: str, changed: str
) -> None:
    (run_dir / "metrics.jsonl").write_text(json.dumps(line(1)) + "\n")  # the record has pass 2
    request = ResumeRequest(run_dir, config(data__train_files=list(files)), slots())
    if not changed:
        assert Listed(passes(*files)).resume(request).passes == 2
        return
    with pytest.raises(ConfigError, match=r"(?s)data.train_files: was .* the 2 passes") as raised:
        Listed(passes(*files)).resume(request)
    assert changed in str(raised.value)
    assert "--init-from" not in str(raised.value)


def test_a_run_that_another_process_trains_is_not_moved_aside(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "store").mkdir(parents=True)
    child = os.fork()
    if child == 0:
        with KeptLock(run_dir / "store"):
            (tmp_path / "held").touch()
            while not (tmp_path / "over").exists():
                time.sleep(0.01)
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(StoreLockedError, match=str(child)):
        resume.move_aside(run_dir)
    assert run_dir.exists()
    (tmp_path / "over").touch()
    os.waitpid(child, 0)
    resume.move_aside(run_dir)
    resume.move_aside(run_dir)  # it is gone
    assert [path.name for path in tmp_path.glob("run*")] == ["run.old-1"]


def test_a_changed_slot_is_listed_with_the_fields_that_changed() -> None:
    fields = {"name": "item", "type": "sparse", "hash": False, "max_length": None}
    wrong = [("slots.yaml item", fields, {**fields, "max_length": 1})]
    assert as_lines(wrong) == ["slots.yaml item, max_length: was null, now 1"]


def test_the_first_changed_file_is_named_within_its_pass_and_a_changed_date_too(
    run_dir: Path,
) -> None:
    (run_dir / "metrics.jsonl").write_text(json.dumps(line(1)) + "\n")
    for first, changed in (
        (PlannedPass(1, 1, ["a", "x"]), "adds x to pass 1: set data.files_per_pass to 1,"),
        (PlannedPass(1, 1, ["a"], "20240101"), "pass 1, a, had the date none, and has 20240101"),
    ):
        with pytest.raises(ConfigError, match=changed):
            Listed([first, *passes()[1:]]).resume(ResumeRequest(run_dir, config(), slots()))


@pytest.mark.parametrize(
    ("now", "warning"),
    [
        ("1234567", "had 5 bytes when it was trained, and has 7 now"),
        ("12645", "has 5 bytes as when it was trained, but other content"),
        ("12345", ""),  # at another time
    ],
)
def test_a_file_that_was_changed_after_its_pass_is_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    now: str,
    warning: str,
) -> None:
    file = tmp_path / "part"
    file.write_text("12345")
    fields = {**line(1), "files": [str(file)]}
    record = VersionRecord(
        version=1, parent=0, segments=[], layout={}, pass_number=1,
        cursor=resume.cursor(HASHES[0], fields), config=description(config(), slots()),
    )  # fmt: skip
    with VersionStore.open_writer(tmp_path / "store") as manifest:
        manifest.append(record)
    file.write_text(now)
    os.utime(file, (1, 1))
    with caplog.at_level(logging.WARNING, "paddlebox"):
        resume_point(tmp_path)
    if warning:
        assert f"{file} {warning}: it is not read again" in caplog.text
    else:
        assert str(file) not in caplog.text


def test_learning_rates_of_slots_may_change_and_the_column_of_the_time_may_not(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    *others, last = slots().slots
    slower = slots().having({"slots": (*others, last.having({"learning_rate_factor": 0.5}))})
    with caplog.at_level(logging.WARNING, "paddlebox"):
        assert resume_point(run_dir, to=slower).passes == 2
    assert f'slots.yaml learning rates: was {{}}, now {{"{last.name}": 0.5}}' in caplog.text
    with pytest.raises(ConfigError, match=r'slots\.yaml tags\.time: was "time", now "ts"'):
        resume_point(run_dir, to=slots().having({"tags.time": "ts"}))


def test_every_key_that_may_change_exists() -> None:
    keys = [*(key.path for key in describe()), SLOT_RATES]
    for name in (*FREE, *PASSES, *TUNED):
        assert any(key == name or key.startswith(f"{name}.") for key in keys), name


def test_a_store_of_another_program_is_not_resumed(tmp_path: Path) -> None:
    record = VersionRecord(version=1, parent=0, segments=[], layout={}, pass_number=3)
    with VersionStore.open_writer(tmp_path / "store") as manifest:
        manifest.append(record)
    with pytest.raises(StoreError, match=r"not committed by paddlebox train"):
        resume_point(tmp_path)


class TestLines:
    """metrics.jsonl has one line a committed pass."""

    def write(self, run_dir: Path, *lines: str) -> Path:
        path = run_dir / "metrics.jsonl"
        path.write_text("".join(lines))
        return path

    def text(self, number: int) -> str:
        return json.dumps(line(number)) + "\n"

    def test_lines_after_the_commit_and_torn_ones_go(self, run_dir: Path) -> None:
        torn = self.text(4)[:20]
        path = self.write(run_dir, self.text(1), self.text(2), self.text(3), torn)
        point = resume_point(run_dir)
        assert path.read_text() == self.text(1) + self.text(2)
        assert [found["pass"] for found in point.lines.recent] == [1, 2]
        assert not point.line_missing

    def test_the_last_line_comes_out_of_the_commit_where_it_was_not_written(
        self, run_dir: Path
    ) -> None:
        self.write(run_dir, self.text(1), self.text(2)[:-9])
        point = resume_point(run_dir)
        assert point.line_missing
        assert json.dumps(point.lines.last) == json.dumps(line(2))  # with its NaN

    def test_it_has_what_was_known_before_the_pass_was_trained(self, run_dir: Path) -> None:
        told = {"partial_recovery": [{"pass": 3, "step": 4, "samples": 40, "went_back": {}}]}
        with VersionStore.open_writer(run_dir / "store") as manifest:
            cursor = resume.cursor(HASHES[2], line(3), told)
            manifest.append(newest(manifest).following("pass", pass_number=3, cursor=cursor))
        self.write(run_dir, self.text(1), self.text(2))
        point = resume_point(run_dir)
        assert json.dumps(point.lines.last) == json.dumps(line(3) | told)

    def test_going_back_takes_the_lines_with_it(self, run_dir: Path) -> None:
        path = self.write(run_dir, self.text(1), self.text(2))
        assert resume_point(run_dir, back_to="1").passes == 1
        assert path.read_text() == self.text(1)
        with VersionStore.open_reader(run_dir / "store") as manifest:
            assert manifest.numbers() == [1]

    def test_a_long_file_is_not_held_in_memory(self, tmp_path: Path) -> None:
        passes, long_line = 4000, line(1) | {"spans": "x" * 1000}
        lines = (json.dumps(long_line | {"pass": n + 1}) + "\n" for n in range(passes))
        path = self.write(tmp_path, *lines)
        before = path.stat()
        tracemalloc.start()
        kept = resume._keep_lines(tmp_path, passes)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < before.st_size / 4
        assert (kept.passes, kept.last["pass"]) == (passes, passes)
        assert path.stat().st_mtime_ns == before.st_mtime_ns

    def test_a_run_that_committed_nothing_begins_again(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, self.text(1))
        assert resume_point(tmp_path).passes == 0
        assert path.read_text() == ""


class TestSkippedFiles:
    """--skip-files leaves files out of the passes that are still to be trained."""

    def files(self, point: Any) -> str:
        return "".join(file for planned in point.plan for file in planned.files)

    def test_a_later_start_knows_what_was_skipped(
        self, run_dir: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "paddlebox"):
            point = resume_point(run_dir, "c")
        assert "c: is left out after pass 2 (--skip-files)" in caplog.text
        assert (self.files(point), point.passes) == ("abd", 2)
        again = resume_point(run_dir)
        assert (self.files(again), again.skipped) == ("abd", {"c": 2})
        assert [planned.number for planned in again.plan] == [1, 2, 3]
        with VersionStore.open_reader(run_dir / "store") as manifest:
            head = manifest.newest()
            assert head is not None
            assert (head.version, head.kind) == (3, "skip")
            assert head.cursor["line"] == json.dumps(line(2))

    def test_a_start_after_one_without_a_commit_knows_it_too(self, tmp_path: Path) -> None:
        def point(run_dir: Path, **of: Any) -> Any:
            return Listed(passes()).resume(ResumeRequest(run_dir, config(), slots(), **of))

        assert self.files(point(tmp_path, skip=["c"])) == "abd"
        assert self.files(point(tmp_path)) == "abd"
        VersionStore.open_writer(
            tmp_path / "store"
        ).close()  # the store is made, and has no version
        assert self.files(point(tmp_path, skip=["a"])) == "bd"
        assert point(tmp_path).skipped == {"a": 0, "c": 0}

    def test_the_hashes_are_those_of_a_run_that_never_had_the_file(self, run_dir: Path) -> None:
        assert resume.hashes_of(resume_point(run_dir, "c").plan) == resume.hashes_of(passes(*"abd"))
        # So it may leave the config as well.
        without = config(data__train_files=["a", "b", "d"])
        request = ResumeRequest(run_dir, without, slots())
        assert Listed(passes(*"abd")).resume(request).passes == 2

    def test_saying_it_again_changes_nothing(self, run_dir: Path) -> None:
        first = resume_point(run_dir, "c")
        again = resume_point(run_dir, "c")
        assert again.record.version == first.record.version
        assert self.files(resume_point(run_dir, "d")) == "ab"

    def test_a_pattern_that_matches_nothing_left_is_refused(self, run_dir: Path) -> None:
        with pytest.raises(ConfigError, match=r"--skip-files x\*: matches none of the 2 files"):
            resume_point(run_dir, "c", "x*")
        with pytest.raises(ConfigError, match="it matches trained files: go back before them"):
            resume_point(run_dir, "b")
        with pytest.raises(ConfigError, match="matches none"):
            resume_point(run_dir, "")
        assert self.files(resume_point(run_dir)) == "abcd"  # and nothing was recorded

    def test_going_back_before_it_is_the_way_to_have_a_file_again(self, run_dir: Path) -> None:
        resume_point(run_dir, "c")
        assert self.files(resume_point(run_dir, back_to="2")) == "abcd"

    def test_rolled_back_and_skipped_at_once(self, run_dir: Path) -> None:
        point = resume_point(run_dir, "b", back_to="1")
        assert (self.files(point), point.passes, point.skipped) == ("acd", 1, {"b": 1})

    def test_passes_that_were_trained_keep_a_file_that_later_epochs_leave_out(self) -> None:
        plan = [PlannedPass(n, 1 + (n > 2), f) for n, f in enumerate(["ab", "cd"] * 2, 1)]
        assert ["".join(p.files) for p in leave_out(plan, {"a": 1, "b": 2})] == [
            "ab", "cd", "cd",
        ]  # fmt: skip
        assert ["".join(p.files) for p in leave_out(plan, {"d": 0})] == ["ab", "c", "ab", "c"]

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("13.txt", ["/d/05/13.txt", "hdfs://host/d/06/13.txt"]),
            ("05/*", ["/d/05/13.txt", "/d/05/14.txt"]),
            ("/d/05/14.txt", ["/d/05/14.txt"]),
            ("hdfs://host/d/*/13.txt", ["hdfs://host/d/06/13.txt"]),
            ("/d/*", None),
            ("3.txt", None),
        ],
    )
    def test_patterns_match_from_the_end_of_a_path(
        self, pattern: str, found: list[str] | None
    ) -> None:
        plan = passes("/d/05/13.txt", "/d/05/14.txt", "hdfs://host/d/06/13.txt")
        if found is None:
            with pytest.raises(ConfigError, match="matches none"):
                choose_skipped(plan, 0, {}, [pattern])
        else:
            assert list(choose_skipped(plan, 0, {}, [pattern])) == found
