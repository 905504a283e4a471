"""What experiment trackers are sent, with stand-ins for their libraries."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.trainer import TrackerType
from paddlebox.errors import ConfigError, StoreError, TrainingError
from paddlebox.ranks import World
from paddlebox.training import assembly, trackers
from paddlebox.training.callbacks import Callback
from paddlebox.training.curve import Curve
from paddlebox.training.pass_line import Lines
from paddlebox.training.plan import PlannedPass
from paddlebox.training.run import train
from paddlebox.training.trackers import Tracked, Trackers, make_tracker, values_of
from tests.conftest import PATIENCE_S
from tests.support.configs import config_fields, make_config, write_slots

CONFIG = {"seed": 1, "data": {"format": "csv"}}
Calls = list[tuple[Any, ...]]


# ---- each tracker and a stand-in of its library


class Recorder:
    """Notes its creation and the calls of its methods; each must be one of `methods`."""

    def __init__(self, calls: Calls, name: str, methods: dict[str, Any]) -> None:
        self.calls, self.name, self.methods = calls, name, methods

    def __getattr__(self, name: str) -> Any:
        if name not in self.methods:
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((f"{self.name}.{name}", *arguments, *([named] if named else [])))
            return self.methods[name]

        return call


def put(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module that is installed as long as the test runs."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    ours = f"paddlebox.training.trackers.{name.partition('.')[0]}"
    monkeypatch.delitem(sys.modules, ours, raising=False)


def tracked(folder: Path, named: str, id_: str = "", step: int = 0) -> Any:
    """A tracker of a run that has begun."""
    tracker: Any = make_tracker(TrackerType(named))
    return tracker, tracker.start(Tracked("clicks", CONFIG, folder / "runs" / "x", id_, step))


class Proto:
    """A message of protobuf: it has the fields that it is made with."""

    START = 1

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def fields(self) -> dict[str, Any]:
        return {
            name: value.fields() if isinstance(value, Proto) else value
            for name, value in vars(self).items()
            if name != "wall_time"
        }


class Summary(Proto):
    class Value(Proto):
        pass


def test_tensorboard_gets_events_in_a_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []

    def writer(folder: str) -> Recorder:
        calls.append(("EventFileWriter", folder))
        return Recorder(calls, "writer", dict.fromkeys(("add_event", "flush", "close")))

    proto, text = "tensorboard.compat.proto", "tensorboard.plugins.text.metadata"
    for name in ("tensorboard", "tensorboard.compat", proto, "tensorboard.summary"):
        put(monkeypatch, name)
    put(monkeypatch, f"{proto}.event_pb2", Event=Proto, SessionLog=Proto)
    put(monkeypatch, f"{proto}.summary_pb2", Summary=Summary)
    put(monkeypatch, f"{proto}.tensor_pb2", TensorProto=Proto)
    put(monkeypatch, f"{proto}.types_pb2", DT_STRING=7)
    for name in ("tensorboard.plugins", "tensorboard.plugins.text", "tensorboard.summary.writer"):
        put(monkeypatch, name)
    put(monkeypatch, text, create_summary_metadata=lambda name, about: (name, about))
    put(monkeypatch, "tensorboard.summary.writer.event_file_writer", EventFileWriter=writer)
    tracker, id_ = tracked(tmp_path, "tensorboard", "tensorboard", step=3000)
    tracker.log({"test/auc": 0.5, "test/loss": 0.25}, 3100)
    tracker.end(False)
    assert id_ == "tensorboard"
    assert calls[0] == ("EventFileWriter", f"{tmp_path}/runs/x/tensorboard")
    events = [call[1].fields() for call in calls if call[0] == "writer.add_event"]
    # It drops what comes after the commit that the run goes on with.
    assert events[0] == {"session_log": {"status": 1}, "step": 3001}
    (config,) = events[1]["summary"]["value"]
    assert json.loads(config.tensor.string_val[0].decode().split("```")[1][4:]) == CONFIG
    assert [value.fields() for value in events[2]["summary"]["value"]] == [
        {"tag": "test/auc", "simple_value": 0.5},
        {"tag": "test/loss", "simple_value": 0.25},
    ]
    assert events[2]["step"] == 3100
    assert [name for name, *_ in calls[-2:]] == ["writer.flush", "writer.close"]


def test_mlflow_gets_a_run_with_parameters_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []
    created = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r7"))
    methods: dict[str, Any] = {
        "get_experiment_by_name": None,
        "create_experiment": "e1",
        "create_run": created,
        **dict.fromkeys(("log_batch", "set_terminated", "update_run")),
    }
    put(monkeypatch, "mlflow")
    put(monkeypatch, "mlflow.entities", Metric=lambda *of: of, Param=lambda *of: of)
    put(monkeypatch, "mlflow.tracking", MlflowClient=lambda: Recorder(calls, "client", methods))
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    tracker, id_ = tracked(tmp_path, "mlflow")
    tracker.log({"test/auc": 0.5}, 3100)
    tracker.end(False)
    assert id_ == "r7"
    params = [("seed", "1"), ("data.format", "csv")]
    when = calls[4][2]["metrics"][0][2]
    assert calls == [
        ("client.get_experiment_by_name", "clicks"),
        ("client.create_experiment", "clicks"),
        ("client.create_run", "e1", {"run_name": "x"}),
        ("client.log_batch", "r7", {"params": params}),
        ("client.log_batch", "r7", {"metrics": [("test/auc", 0.5, when, 3100)]}),
        ("client.set_terminated", "r7", "FINISHED"),
    ]
    calls.clear()
    tracker, id_ = tracked(tmp_path, "mlflow", "r7")
    tracker.end(True)
    assert id_ == "r7"
    assert calls == [
        ("client.update_run", "r7", {"status": "RUNNING"}),
        ("client.set_terminated", "r7", "FAILED"),
    ]


def test_wandb_gets_a_run_whose_axis_is_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []
    begun = Recorder(calls, "run", dict.fromkeys(("define_metric", "log", "finish")))
    vars(begun)["id"] = "w7"
    put(monkeypatch, "wandb", init=Recorder(calls, "wandb", {"init": begun}).init)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker, id_ = tracked(tmp_path, "wandb")
    tracker.log({"test/auc": 0.5}, 3100)
    tracker.end(True)
    assert id_ == "w7"
    usual: dict[str, Any] = {"project": "mine", "name": "x", "dir": f"{tmp_path}/runs/x"}
    usual |= {"resume": "allow", "config": CONFIG, "allow_val_change": True}
    assert calls == [
        ("wandb.init", {**usual, "id": None}),
        ("run.define_metric", "*", {"step_metric": "samples"}),
        ("run.log", {"test/auc": 0.5, "samples": 3100}),
        ("run.finish", {"exit_code": 1}),
    ]
    calls.clear()
    tracked(tmp_path, "wandb", "w7")
    assert calls[0] == ("wandb.init", {**usual, "id": "w7"})


def test_swanlab_gets_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    begun = Recorder(calls, "run", dict.fromkeys(("log", "finish")))
    vars(begun)["id"] = "s7"
    put(monkeypatch, "swanlab", init=Recorder(calls, "swanlab", {"init": begun}).init)
    monkeypatch.delenv("SWANLAB_PROJ_NAME", raising=False)
    tracker, id_ = tracked(tmp_path, "swanlab", "s7")
    tracker.log({"test/auc": 0.5}, 3100)
    tracker.end(False)
    tracker.end(True)
    assert id_ == "s7"
    usual = {"project": "clicks", "name": "x", "log_dir": f"{tmp_path}/runs/x/swanlab"}
    assert calls == [
        ("swanlab.init", {**usual, "id": "s7", "resume": "allow", "config": CONFIG}),
        ("run.log", {"test/auc": 0.5}, {"step": 3100}),
        ("run.finish",),
        ("run.finish", {"state": "crashed", "error": "the training failed"}),
    ]


def test_visualdl_gets_scalars_in_a_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []

    def writer(*, logdir: str, flush_secs: int) -> Recorder:
        calls.append(("LogWriter", logdir, flush_secs))
        return Recorder(calls, "writer", dict.fromkeys(("add_text", "add_scalar", "close")))

    put(monkeypatch, "visualdl", LogWriter=writer)
    tracker, id_ = tracked(tmp_path, "visualdl", step=3000)
    tracker.log({"test/auc": 0.5}, 3100)
    tracker.end(False)
    assert id_ == "visualdl"
    text = json.dumps(CONFIG, indent=1)
    assert calls == [
        ("LogWriter", f"{tmp_path}/runs/x/visualdl", 10),
        ("writer.add_text", {"tag": "config", "text_string": text, "step": 3000}),
        ("writer.add_scalar", {"tag": "test/auc", "value": 0.5, "step": 3100}),
        ("writer.close",),
    ]


# ---- the hook, with one tracker


class Fake:
    """A tracker. fails: the method that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.runs: list[Tracked] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.ended: list[bool] = []
        self.threads = set[threading.Thread]()
        self.lets_go = threading.Event()
        self.lets_go.set()

    def _called(self, method: str) -> None:
        self.threads.add(threading.current_thread())
        self.lets_go.wait(PATIENCE_S)
        if self.fails == method:
            raise OSError(f"no route to host, {method}")

    def start(self, run: Tracked) -> str:
        self._called("start")
        self.runs.append(run)
        return "id-1"

    def log(self, values: dict[str, float], step: int) -> None:
        self._called("log")
        self.logged.append((values, step))

    def end(self, failed: bool) -> None:
        self._called("end")
        self.ended.append(failed)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Stands for Weights & Biases, which is installed."""
    made = Fake()
    put(monkeypatch, "wandb")
    monkeypatch.setattr(trackers, "make_tracker", lambda _: made)
    return made


@pytest.fixture
def fields(tmp_path: Path) -> dict[str, Any]:
    """Two passes of 40 rows, which are also the test files."""
    write_slots(tmp_path, click="label", user={"hash": True})
    rows = "".join(f"{row % 3 % 2},u{row % 3}\n" for row in range(40))
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    for file in files:
        Path(file).write_text(f"click,user\n{rows}")
    data = {"slots": f"{tmp_path}/slots.yaml", "train_files": files, "test_files": files}
    return config_fields(
        data={**data, "files_per_pass": 1, "batch_size": 16},
        mem={"budget_bytes": "4MiB"},
        hbm={"budget_bytes": "16MiB"},
        model={"hidden": [2]},
        trainer={"trackers": ["wandb"], "evaluate_passes": "after"},
    )


class StopAfterOne(Callback):
    def on_pass(self, line: dict[str, Any]) -> bool:
        return bool(line["pass"] == 1)


def test_a_tracker_gets_each_pass_and_points_inside_it_and_goes_on_in_a_later_start(
    fields: dict[str, Any], tmp_path: Path, fake: Fake
) -> None:
    run_dir = tmp_path / "run"
    train(fields, run_dir, callbacks=[StopAfterOne()])
    assert fake.ended == [False]
    assert json.loads((run_dir / "trackers.json").read_text()) == {"wandb": "id-1"}
    train(fields, run_dir)
    first, second = fake.runs
    assert (first.id, first.step, second.id, second.step) == ("", 0, "id-1", 40)
    assert first.config["trainer"]["trackers"] == ["wandb"]
    of_passes = [(values, step) for values, step in fake.logged if "pass" in values]
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [step for _, step in of_passes] == [40, 80]
    for (values, _), line in zip(of_passes, lines, strict=True):
        assert values["train/auc"] == line["metrics"]["auc"]
        assert values["test/auc"] == line["test"]["auc"]
        assert values["train/loss"] == line["loss"]
        assert values["samples_per_s"] == line["samples_per_s"]
        assert values["live_rows"] == line["sizes"]["live_rows"]
    points = [step for values, step in fake.logged if "curve/loss" in values]
    assert points == [16, 32, 40, 56, 72, 80]
    assert threading.main_thread() not in fake.threads
    calls = len(fake.logged)
    train(fields, run_dir)  # nothing to train
    assert (len(fake.runs), len(fake.logged)) == (2, calls)


class Fails(Callback):
    def on_pass(self, line: dict[str, Any]) -> bool:
        raise ValueError("not this time")


def test_a_run_that_fails_is_ended_as_failed(
    fields: dict[str, Any], tmp_path: Path, fake: Fake
) -> None:
    with pytest.raises(TrainingError):
        train(fields, tmp_path / "run", callbacks=[Fails()])
    assert fake.ended == [True]
    fields["trainer"]["trackers"] = []  # which trackers there are may change
    assert train(fields, tmp_path / "run")["resumed_after_pass"] == 1
    assert len(fake.runs) == 1


def test_a_tracker_that_fails_while_training_is_a_warning_once(
    fields: dict[str, Any], tmp_path: Path, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fails = "log"
    assert train(fields, tmp_path / "run")["passes"] == 2
    warnings = [text for text in caplog.messages if "trainer.trackers" in text]
    assert warnings == [
        "trainer.trackers: wandb failed: OSError: no route to host, log; training goes on, and "
        "values may be missing there"
    ]
    assert fake.ended == [False]


def test_a_tracker_that_cannot_start_stops_a_new_run_but_not_one_that_goes_on(
    fields: dict[str, Any], tmp_path: Path, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fails = "start"
    with pytest.raises(ConfigError, match=r"wandb failed to start: OSError: no route to host"):
        train(fields, tmp_path / "run")
    fake.fails = ""
    train(fields, tmp_path / "run", callbacks=[StopAfterOne()])
    fake.fails = "start"
    assert train(fields, tmp_path / "run")["passes"] == 2
    assert "wandb failed: OSError: no route to host, start; training goes on" in caplog.text


def hook(folder: Path, lines: Lines, curve: Curve, ranks: int = 1) -> Trackers:
    config = make_config(trainer={"trackers": ["wandb"]})
    return Trackers(config, folder, lines, curve, ranks)


LINE: dict[str, Any] = {
    "pass": 1,
    "samples": 100,
    "loss": 0.5,
    "metrics": {"auc": None, "copc": float("nan"), "gauc": {"wuauc": 0.25}, "size": 100},
}


def test_only_finite_numbers_are_sent_and_named_by_their_place() -> None:
    assert values_of(LINE) == {
        "train/loss": 0.5, "train/gauc/wuauc": 0.25, "train/size": 100.0, "pass": 1.0,
    }  # fmt: skip


def test_a_point_counts_the_samples_of_all_ranks_and_an_earlier_line_is_sent_late(
    tmp_path: Path, fake: Fake
) -> None:
    lines, curve = Lines(1, [LINE]), Curve()
    with hook(tmp_path, lines, curve, ranks=3) as own:
        own.catch_up(LINE, 1, True)
        curve.on_point((10, 0.5, None))
    assert [step for _, step in fake.logged] == [100, 130]
    assert fake.logged[1][0] == {"curve/loss": 0.5}


def test_a_run_that_is_stopped_has_not_failed(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(KeyboardInterrupt), hook(tmp_path, Lines(), Curve()):
        raise KeyboardInterrupt
    assert fake.ended == [False]


def test_a_slow_tracker_holds_nothing_up_and_keeps_the_newest_values(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines, curve = Lines(1, [LINE]), Curve()
    own = hook(tmp_path, lines, curve)
    own.__enter__()
    fake.lets_go.clear()
    for number in range(1, 3001):
        own.after_pass({**LINE, "pass": number}, PlannedPass(number, 1, ["a"]))
    monkeypatch.setattr(trackers, "_END_S", 0.05)
    own.close(None)
    assert "wandb has not taken all values 0.05 s after the end" in caplog.text
    fake.lets_go.set()
    monkeypatch.setattr(trackers, "_END_S", PATIENCE_S)
    own.close(None)
    sent = [int(values["pass"]) for values, _ in fake.logged]
    assert sent[-1000:] == list(range(2001, 3001))
    assert len(sent) <= 1001


def test_a_tracker_is_checked_before_the_run_begins(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    fields["trainer"]["trackers"] = ["swanlab"]
    with pytest.raises(ConfigError, match=r"swanlab is not installed: pip install swanlab"):
        train(fields, tmp_path / "run")
    assembly.check_config(make_config(trainer={"trackers": ["swanlab"]}), World(1, 2))
    fields["trainer"]["trackers"] = ["wandbb"]
    with pytest.raises(ConfigError, match=r"trackers\[0\]: .*found 'wandbb'.*did you mean wandb\?"):
        train(fields, tmp_path / "run")
    fields["trainer"]["trackers"] = ["mlflow", "mlflow"]
    with pytest.raises(ConfigError, match=r"trackers: .*mlflow.* twice"):
        train(fields, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_ids_is_named(tmp_path: Path, fake: Fake) -> None:
    (tmp_path / "trackers.json").write_text("{")
    with pytest.raises(StoreError, match=r"trackers.json: expected the ids .* remove the file"):
        hook(tmp_path, Lines(), Curve()).__enter__()
