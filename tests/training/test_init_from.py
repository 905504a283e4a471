"""--init-from: a new run from another one's rows and dense parameters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training.plan import PlannedPass, repeats_source
from paddlebox.training.warm_start.source import find_source, resolve_version, trained_by
from paddlebox.training.warm_start.start import carry_dense
from tests.support.marks import long
from tests.training.runs import SLOTS, Runs, write_data, write_slots


@pytest.mark.parametrize(
    ("program", "optimizer"),
    [
        ("pir", "adam"),
        long("dygraph", "adagrad"),
        long("pir", "sgd"),
    ],
)
def test_a_run_in_two_steps_is_the_run_in_one(
    runs: Runs, tmp_path: Path, program: str, optimizer: str
) -> None:
    """Rows, dense parameters and the dense optimizer's state; also over a day's end, and with
    admission."""
    same = [f"trainer.program={program}", f"optimizer.type={optimizer}"]
    same += ["table.admission.min_count=2", "table.admission.filter_bytes=64KiB"]
    same += ["table.life.delete_threshold=0.15", "table.life.show_click_decay_rate=0.9"]
    days = [*same, "data.files_per_day=1"]
    one, first, second = runs.train(
        runs.job("one", runs.files, *days, "data.date=20240101"),
        runs.job("first", runs.files[:2], *days, "data.date=20240101"),
        runs.job(
            "second",
            runs.files[2:],
            *days,
            "data.date=20240103",
            source=str(tmp_path / "first"),
        ),
    )
    assert second["sparse_digest"] == one["sparse_digest"] != first["sparse_digest"]
    assert second["dense_digest"] == one["dense_digest"] != first["dense_digest"]
    report = runs.report("second")
    assert report["dense"]["dropped"] == []
    assert {tensor["name"] for tensor in report["dense"]["fresh"]} <= {"learning_rate_0"}
    assert report["admission_counts"] == "carried"
    assert not any("repeats_pass" in line for line in runs.lines("second"))
    runs.train(runs.job("again", runs.files[1:3], source=str(tmp_path / "first")))
    assert [line.get("repeats_pass") for line in runs.lines("again")] == [0, None]


@pytest.mark.parametrize(
    ("planned", "seen"),
    [
        (PlannedPass(1, 1, ["data/../data/a", "new"]), True),
        (PlannedPass(1, 1, ["b"]), False),  # version 2 has not trained it
        (PlannedPass(1, 1, ["old"]), True),  # the source's own source has
        (PlannedPass(1, 1, ["elsewhere/a"], "20240102"), True),
        (PlannedPass(1, 1, ["c"], "20240103"), False),
        (PlannedPass(1, 1, ["c"], "20240102", "2024-01-02T05"), True),
        (PlannedPass(1, 1, ["c"], "20240101", "2024-01-01T05"), False),  # it has another hour
        (PlannedPass(1, 1, ["c"], "20240101"), True),
        (PlannedPass(1, 1, ["c"], "20240101", stream={"behind": 0}), False),
        (PlannedPass(1, 1, ["data/a"], "20240101", stream={"behind": 0}), True),
    ],
)
def test_a_pass_with_a_file_or_day_of_the_source_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: PlannedPass, seen: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    old = {"files": [str(tmp_path / "old")], "date": "20240101", "hour": "2024-01-01T04"}
    (tmp_path / "init.json").write_text(json.dumps({"trained": [old]}))
    lines = [{"pass": n + 1, "files": [f], "date": f"2024010{n + 2}"} for n, f in enumerate("xb")]
    lines[0]["files"] = ["data/a"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{")
    assert repeats_source(planned, trained_by(tmp_path, 1)) is seen


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_slots_widths_and_rules_may_change(runs: Runs, tmp_path: Path, program: str) -> None:
    names = ("city", "item", "user")
    slots = write_slots(tmp_path / "new_slots.yaml", names)
    files = [write_data(tmp_path / f"new{n}.txt", names, n) for n in (2, 3)]
    changed = [f"data.slots={slots}", "table.embedx_dim=6", "table.embed.rule=adam"]
    changed += [
        "model.hidden=[16, 8]",
        "optimizer.type=adagrad",
        "seed=5",
        f"trainer.program={program}",
    ]
    _, answer = runs.train(
        runs.job("old", runs.files[:2]),
        runs.job("new", files, *changed, source=f"{tmp_path / 'old'}@2"),
    )
    assert answer["version"] >= 3  # the first version is what was carried
    report = runs.report("new")
    assert report["version"] == 2
    assert report["slots"] == {
        "kept": ["user", "item"],
        "added": ["city"],
        "dropped": ["query"],
        "changed_meaning": [],
    }
    assert set(report["rows"]["dropped_by_slot"]) == {"query"}
    assert report["rows"]["carried"] > 600
    assert report["parts"] == {
        "show, click, embed_w": "carried",
        "embed state": "reset (adagrad -> adam)",
        "embedx_w": "reinitialised (4 -> 6 floats)",
    }
    dense = {tensor["name"]: tensor for tensor in report["dense"]["carried"]}
    fresh = {tensor["name"]: tensor for tensor in report["dense"]["fresh"]}
    assert dense["linear_2.w_0"]["shape"] == [8, 1]
    assert fresh["linear_0.w_0"]["why"].startswith("was float32")
    assert all("moment" not in name for name in dense)  # of adam, and this is adagrad


@pytest.mark.long
def test_slots_that_move_under_per_slot_keys_are_found_again(runs: Runs, tmp_path: Path) -> None:
    """The same data with the slots in another order: no feasign of it is new."""
    names = ("query", "user", "item")
    slots = write_slots(tmp_path / "turned.yaml", names)
    keyed = "data.key_space=per_slot"
    turned = write_data(tmp_path / "turned.txt", names, 0)
    runs.train(
        runs.job("old", runs.files[:1], keyed),
        runs.job("new", [turned], keyed, f"data.slots={slots}", source=str(tmp_path / "old")),
    )
    line = json.loads((tmp_path / "new" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["hits"]["new"] == 0
    assert line["hits"]["ssd"] == runs.report("new")["rows"]["carried"]


@pytest.mark.long
def test_rows_of_shared_ids_move_with_the_slot_that_has_them(runs: Runs, tmp_path: Path) -> None:
    """In another order of slots, and where another slot shares them: no feasign is new."""
    keyed = "data.key_space=per_slot"

    def slots_file(name: str, names: tuple[str, ...], shares: str) -> str:
        path = write_slots(tmp_path / name, names)
        line = "name: item, type: sparse"
        path.write_text(path.read_text().replace(line, f"{line}{shares}"))
        return f"data.slots={path}"

    old = slots_file("old.yaml", SLOTS, ", shares: query")
    turned = ("query", "item", "user")
    new = slots_file("new.yaml", turned, ", shares: query")
    apart = slots_file("apart.yaml", turned, "")
    data = [write_data(tmp_path / "turned.txt", turned, 0)]
    source = str(tmp_path / "old")
    runs.train(
        runs.job("old", runs.files[:1], keyed, old),
        runs.job("new", data, keyed, new, source=source),
        runs.job("apart", data, keyed, apart, source=source),
        runs.job("own", runs.files[:1], keyed),
        runs.job("joined", data, keyed, new, source=str(tmp_path / "own")),
    )

    def hits(name: str) -> Any:
        return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["hits"]

    assert hits("new")["new"] == 0
    assert hits("new")["ssd"] == runs.report("new")["rows"]["carried"]
    assert runs.report("new")["slots"]["changed_meaning"] == []
    items = len({line.split()[-3] for line in Path(data[0]).read_text().splitlines()})
    # A slot with ids of its own again begins without rows; its old ones stay with query's.
    assert runs.report("apart")["slots"]["changed_meaning"] == ["item"]
    assert hits("apart")["new"] == items
    # One that now shares leaves its rows behind: two for one feasign would be one too many.
    assert runs.report("joined")["slots"]["changed_meaning"] == ["item"]
    assert runs.report("joined")["rows"]["dropped_by_slot"] == {"item": items}
    assert hits("joined")["new"] == items


def write_slots_of_tables(path: Path, tables: dict[str, str]) -> Path:
    write_slots(path, SLOTS)
    text = path.read_text()
    for name, table in tables.items():
        text = text.replace(
            f"name: {name}, type: sparse", f"name: {name}, type: sparse, table: {table}"
        )
    path.write_text(text)
    return path


@pytest.mark.slow
def test_tables_are_carried_by_name(runs: Runs, tmp_path: Path) -> None:
    """To the same bits where nothing differs; a new table begins empty, one that is gone stays
    behind, and one whose width differs keeps what it can."""
    slots = write_slots_of_tables(tmp_path / "t.yaml", {"user": "wide", "item": "deep"})
    same = ["model.type=dnn", f"data.slots={slots}", "extra_tables.wide.embedx_dim=6"]
    same += ["mem.budget_bytes=8MiB"]
    same += ["extra_tables.deep.embedx_dim=2", "extra_tables.wide.embedx_threshold=2.0"]
    one, first, second = runs.train(
        runs.job("one", runs.files, *same),
        runs.job("first", runs.files[:2], *same),
        runs.job("second", runs.files[2:], *same, source=str(tmp_path / "first")),
    )
    assert second["sparse_digest"] == one["sparse_digest"] != first["sparse_digest"]
    assert second["dense_digest"] == one["dense_digest"]
    tables = runs.report("second")["tables"]
    assert set(tables["carried"]) == {"deep", "wide"}
    assert (tables["new"], tables["dropped"], tables["slots_moved"]) == ([], {}, [])

    # query gets a table of its own, wide becomes wider, deep is gone: its slot is default's now.
    other = write_slots_of_tables(tmp_path / "o.yaml", {"user": "wide", "query": "fresh"})
    changed = ["model.type=dnn", f"data.slots={other}", "extra_tables.wide.embedx_dim=9"]
    changed += ["extra_tables.fresh.embedx_dim=2", "extra_tables.wide.embedx_threshold=2.0"]
    changed += ["mem.budget_bytes=8MiB"]
    (answer,) = runs.train(
        runs.job("new", runs.files[2:], *changed, source=str(tmp_path / "first"))
    )
    assert answer["version"] >= 3
    report = runs.report("new")
    tables = report["tables"]
    assert tables["new"] == ["fresh"]
    assert set(tables["dropped"]) == {"deep"}
    assert tables["dropped"]["deep"] > 100
    assert tables["slots_moved"] == ["item", "query"]
    wide = tables["carried"]["wide"]
    assert wide["parts"]["embedx_w"] == "reinitialised (6 -> 9 floats)"
    assert wide["rows"] == report["rows"]["carried"] > 100  # query was all that default had
    assert report["rows"]["dropped_by_slot"].keys() == {"query"}


@pytest.mark.long
def test_what_is_killed_between_the_tables_first_versions_begins_again(
    runs: Runs, tmp_path: Path
) -> None:
    slots = write_slots_of_tables(tmp_path / "t.yaml", {"user": "wide"})
    same = ["model.type=dnn", f"data.slots={slots}", "extra_tables.wide.embedx_dim=6"]
    same += ["mem.budget_bytes=8MiB"]
    old, second = str(tmp_path / "old"), runs.files[2:]
    _, expected = runs.train(
        runs.job("old", runs.files[:2], *same), runs.job("whole", second, *same, source=old)
    )
    runs.train(runs.job("new", second, *same, source=old, death="between the tables"), code=9)
    (again,) = runs.train(runs.job("new", second, *same, source=old))
    assert again == expected


@pytest.mark.slow
def test_a_kill_leaves_nothing_half_done_and_the_next_start_begins_again(
    runs: Runs, tmp_path: Path
) -> None:
    old = str(tmp_path / "old")
    second = runs.files[2:]
    (whole, expected) = runs.train(
        runs.job("old", runs.files[:2]), runs.job("whole", second, source=old)
    )
    assert whole["version"] == 2
    for death in ("before the commit", "after the commit"):
        name = death.replace(" ", "-")
        runs.train(runs.job(name, second, source=old, death=death), code=9)
        (again,) = runs.train(runs.job(name, second, source=old))
        assert again["sparse_digest"] == expected["sparse_digest"]
        assert again["dense_digest"] == expected["dense_digest"]


@pytest.mark.slow
def test_a_source_that_cannot_be_used_is_an_error_and_nothing_is_committed(
    runs: Runs, tmp_path: Path
) -> None:
    old = str(tmp_path / "old")
    files = runs.files[:1]
    damaged = tmp_path / "damaged"
    runs.train(runs.job("old", files))
    shutil.copytree(old, damaged)
    segment = next((damaged / "store" / "ssd").iterdir())
    segment.write_bytes(segment.read_bytes()[:100] + b"?" + segment.read_bytes()[101:])
    config = (tmp_path / "old" / "config.json").read_text()
    cases = [
        (runs.job("new", files, source=str(tmp_path / "none")), "StoreError", "holds no store"),
        (runs.job("old", files, source=old), "ConfigError", "it is the --run-dir itself"),
        (runs.job("new", files, source=f"{old}@7"), "StoreError", "no version '7'"),
        (runs.job("new", files, source=f"{old}@x"), "StoreError", "no version 'x'"),
        (
            runs.job("new", files, "data.key_space=per_slot", source=old),
            "ConfigError",
            "its data.key_space is shared, the config's per_slot",
        ),
        (
            runs.job("new", files, "data.negative_rate=0.5", source=old),
            "ConfigError",
            "its data.negative_rate is 1.0, the config's 0.5",
        ),
        (runs.job("new", files, source=str(damaged)), "CorruptionError", segment.name),
    ]
    answers = runs.train(*(job for job, _, _ in cases))
    for answer, (_, error, text) in zip(answers, cases, strict=True):
        assert answer["error"] == error
        assert text in answer["text"]
    assert (tmp_path / "old" / "config.json").read_text() == config
    # None of it has filled the new run's store; a run that has trained is not filled again.
    good, again, other = runs.train(
        runs.job("new", files, source=old),
        runs.job("new", files, source=old),
        runs.job("new", files, source=str(damaged)),
    )
    assert good["version"] == 2
    assert again["version"] == 2
    assert other["error"] == "StoreError"
    assert f"which was filled from {old}@1; --init-from fills an empty run dir" in other["text"]


def state(**arrays: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Tensors of these shapes, of one value each that tells them apart."""
    names = {name: name.replace("__", ".") for name in arrays}
    return {
        names[name]: np.full(shape, index + 1, np.float32)
        for index, (name, shape) in enumerate(arrays.items())
    }


def test_dense_tensors_are_matched_by_name_and_shape() -> None:
    old = state(a__w_0=(2,), a__w_0_moment1_0=(2,), b__w_0=(3,), b__w_0_moment1_0=(3,), c__w_0=(1,))
    new = state(b__w_0=(4,), b__w_0_moment1_0=(4,), a__w_0=(2,), a__w_0_moment1_0=(2,), d__w_0=(1,))
    found = carry_dense(old, new, same_optimizer=True)
    carried = [one["name"] for one in found.report["carried"]]
    assert carried == ["a.w_0", "a.w_0_moment1_0"]
    assert {one["name"]: one["why"] for one in found.report["fresh"]} == {
        "b.w_0": "was float32 [3]",
        "b.w_0_moment1_0": "b.w_0 is not carried",
        "d.w_0": "not in the source",
    }
    assert [one["name"] for one in found.report["dropped"]] == ["c.w_0"]
    assert found.state.keys() == new.keys()
    for name, array in found.state.items():
        expected = old[name] if name.startswith("a.") else new[name]
        assert (array == expected).all()


def test_the_state_of_another_optimizer_is_not_carried() -> None:
    old = state(a__w_0=(2,), a__w_0_moment1_0=(2,))
    new = state(a__w_0_moment1_0=(2,), a__w_0=(2,))
    found = carry_dense(old, new, same_optimizer=False)
    assert (found.state["a.w_0"] == old["a.w_0"]).all()
    assert (found.state["a.w_0_moment1_0"] == new["a.w_0_moment1_0"]).all()


def test_the_learning_rate_is_the_new_configs() -> None:
    old, new = state(learning_rate_0=()), {"learning_rate_0": np.array(0.5, np.float32)}
    assert carry_dense(old, new, same_optimizer=True).state["learning_rate_0"] == 0.5


def test_a_run_whose_name_has_an_at_sign_can_be_named(tmp_path: Path) -> None:
    run = tmp_path / "run@3"
    (run / "store").mkdir(parents=True)
    slots = write_slots(tmp_path / "slots.yaml", SLOTS)
    config = {"data": {"key_space": "shared", "slots": str(slots)}, "optimizer": {"type": "sgd"}}
    (run / "config.json").write_text(json.dumps(config))
    assert find_source(str(run), tmp_path).version is None
    with VersionStore.open_writer(run / "store") as manifest:
        manifest.append(VersionRecord(version=1, parent=0, segments=[], layout={}, pass_number=0))
    assert find_source(f"{run}@1", tmp_path).version == 1
    (run / "config.json").unlink()
    with pytest.raises(StoreError, match="does not describe the run"):
        find_source(str(run), tmp_path)
    with pytest.raises(ConfigError, match="run-dir itself"):
        find_source(str(run), run)
    assert resolve_version(run, "") is None
