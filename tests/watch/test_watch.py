"""Alerts: when they fire, once; where they show; and that none of it stops a run."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config.checkpoint import AlertsConfig
from paddlebox.errors import ConfigError
from paddlebox.training.hooks import Alerts
from paddlebox.training.plan import PlannedPass
from paddlebox.watch import watch as rules
from paddlebox.watch.watch import Page, Watch
from tests.conftest import PATIENCE_S
from tests.support.configs import make_config
from tests.support.processes import free_port


def line(number: int = 1, **changes: Any) -> dict[str, Any]:
    metrics = {name: changes.pop(name) for name in ("auc", "copc") if name in changes}
    return {
        "pass": number, "samples": 100, "lines": 100, "bad_lines": 0, "loss": 0.1,
        "metrics": {"auc": 0.7, "copc": 1.0, **metrics}, **changes,
    }  # fmt: skip


def fired(config: AlertsConfig, of: dict[str, Any], *before: dict[str, Any]) -> list[str]:
    return [name for name, _ in rules.of_pass(config, of, before)]


def config(**fields: Any) -> AlertsConfig:
    return AlertsConfig.model_validate(fields)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write status.json all the time."""
    monkeypatch.setattr("paddlebox.watch.watch._EVERY_S", 0.005)


def eventually(true: Callable[..., bool], *arguments: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true(*arguments):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def status(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "status.json").read_text()))


def test_auc_is_held_against_the_mean_of_the_passes_before() -> None:
    rule = config(max_auc_drop=0.05)
    before = [line(auc=0.70), line(auc=0.74)]
    assert fired(rule, line(auc=0.671), *before) == []
    assert fired(rule, line(auc=0.669), *before) == ["auc_drop"]
    assert fired(rule, line(auc=0.1)) == []  # of the first pass there is no mean
    assert fired(rule, line(auc=None), *before, line(auc=None)) == []  # one class only
    assert fired(rule, line(auc=-0.5), *before) == []  # as older runs have it
    assert fired(rule, line(auc=0.669), *before, line(auc=None)) == ["auc_drop"]
    assert fired(config(), line(auc=0.1), *before) == []


def test_what_was_predicted_before_training_counts_where_it_is_there() -> None:
    rule = config(max_auc_drop=0.05)
    before = [line(before={"auc": 0.7, "copc": 1.0})]
    assert fired(rule, line(auc=0.7, before={"auc": 0.6, "copc": 1.0}), *before) == ["auc_drop"]


def test_copc_has_two_bounds() -> None:
    rule = config(copc=[0.8, 1.2])
    assert [fired(rule, line(copc=c)) for c in (0.79, 0.8, 1.2, 1.21)] == [
        ["copc"],
        [],
        [],
        ["copc"],
    ]
    assert fired(rule, line(copc=math.nan)) == []


def test_an_empty_pass_and_missing_hours_always_fire() -> None:
    assert fired(config(), line(samples=0)) == ["empty_pass"]
    assert fired(config(), line(missing_hours=["2024-01-01T05:00+00:00"])) == ["missing_hours"]


def test_events_that_are_old_or_in_the_future_fire() -> None:
    old: dict[str, Any] = {
        "event_time": 1000.0,
        "ended_at": 1100.5,
        "stream": {"behind": 7, "ahead": 0},
    }
    assert fired(config(), line(**old)) == []
    assert fired(config(max_event_age_s=101), line(**old)) == []
    assert fired(config(max_event_age_s=100), line(**old)) == ["event_age"]
    assert fired(config(max_event_age_s=100), line(ended_at=9999.0)) == []  # no time is known
    assert fired(config(), line(stream={"behind": 0, "ahead": 3})) == ["event_ahead"]


def test_an_alert_is_logged_once_when_it_fires_and_once_when_it_ends(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paddlebox")
    with Watch(config(copc=[0.9, 1.5]), run_dir) as watch:
        for number, copc in enumerate((1.0, 0.5, 0.4, 1.0), 1):
            watch.passed(line(number, copc=copc))
    first, second = caplog.messages
    assert first.startswith("alert copc, firing: pass 2: COPC 0.5")
    assert second.startswith("alert copc, resolved: ")


def test_no_error_of_a_look_ends_the_watch(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> None:
        raise ValueError("broken")

    with Watch(config(), run_dir) as watch:
        with monkeypatch.context() as patched:
            patched.setattr("paddlebox.watch.watch.shutil.disk_usage", broken)
            watch.doing("trains")
            eventually(lambda: "broken" in caplog.text)
        watch.doing("waits", "hour x")
        eventually(lambda: status(run_dir)["text"] == "hour x")


def test_status_json_is_always_whole_and_shows_whether_the_run_is_alive(run_dir: Path) -> None:
    with Watch(config(), run_dir) as watch:
        watch.doing("waits", "hour x")
        watch.passed(line(7))
        eventually(lambda: status(run_dir)["last"] == {
            "pass": 7, "samples": 100, "loss": 0.1, "bad_lines": 0, "lines": 100,
        })  # fmt: skip
        assert (status(run_dir)["state"], status(run_dir)["text"]) == ("waits", "hour x")
        assert status(run_dir)["live"]
    assert status(run_dir)["state"] == "ended"


def test_status_json_follows_the_state_at_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlebox.watch.watch._EVERY_S", 600.0)
    with Watch(config(), run_dir) as watch:
        watch.doing("waits", "hour x")
        eventually(lambda: status(run_dir)["text"] == "hour x")


def test_a_run_no_longer_waits_when_the_files_of_a_pass_are_there(run_dir: Path) -> None:
    """Before they are read."""
    with Alerts(make_config(), 0, run_dir, []) as hook:
        hook.waits("hour x")
        eventually(lambda: status(run_dir)["state"] == "waits")
        assert hook.before_pass(PlannedPass(7, 1, ["a"])) == {}
        eventually(lambda: status(run_dir)["state"] == "trains")
        assert status(run_dir)["text"] == "pass 7"


def test_a_mean_is_over_24_passes(run_dir: Path) -> None:
    rule, before = config(max_auc_drop=0.1), [line(auc=1e6), *[line(auc=0.7)] * 24]
    with Watch(rule, run_dir, before) as watch:
        watch.passed(line(26, auc=0.625))
        assert watch.status()["alerts"] == {}
        watch.passed(line(27, auc=0.5))
        assert [*watch.status()["alerts"]] == ["auc_drop"]


def test_a_failed_run_raises_an_alert_and_a_stopped_one_does_not(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="no"), Watch(config(), run_dir):
        raise ValueError("no")
    found = status(run_dir)
    assert (found["state"], found["live"]) == ("failed", False)
    assert found["alerts"] == {"failed": "ValueError: no"}
    assert not caplog.records  # the error itself is what says so
    with pytest.raises(KeyboardInterrupt), Watch(config(), run_dir):
        raise KeyboardInterrupt
    assert (status(run_dir)["state"], status(run_dir)["alerts"]) == ("stopped", {})


def served(
    number: int, at: float, refused: str = "", to: str = "f", event_time: float = 0.0
) -> dict[str, Any]:
    return {
        "to": to,
        "name": f"d/delta-{number}",
        "pass_number": number,
        "at": at,
        "refused": refused,
        "event_time": event_time,
    }


def test_staleness_is_measured_from_the_log_of_the_pass(run_dir: Path) -> None:
    with Watch(config(), run_dir, sinks=1) as watch:
        watch.passed(line(1, written_at=100.0))
        watch.passed(line(2, written_at=200.0))
        assert watch.served(served(1, 103.0, event_time=50.0)) == 3.0
        watch.served(served(2, 209.0, "AUC"))
        eventually(lambda: "publish" in status(run_dir)["alerts"])
        assert watch.served(served(2, 210.0)) == 10.0
        eventually(lambda: status(run_dir)["alerts"] == {})
        shown = status(run_dir)["served"]["f"]
        assert (shown["name"], shown["pass"], shown["staleness_s"]) == ("d/delta-2", 2, 10.0)
        assert shown["p50_s"] == 6.5
        assert shown["p99_s"] == pytest.approx(9.93)


def test_without_a_log_staleness_is_that_of_the_newest_event(run_dir: Path) -> None:
    with Watch(config(), run_dir, sinks=1) as watch:
        watch.passed(line(1))
        assert watch.served(served(1, 103.0, event_time=50.0)) == 53.0
        assert watch.served(served(2, 103.0)) is None


def test_the_alert_fires_while_any_sink_lacks_a_save(run_dir: Path) -> None:
    with Watch(config(), run_dir, sinks=2) as watch:
        watch.served(served(1, 1.0, "down", to="redis://h#p"))
        watch.served(served(1, 1.0, to="f"))
        assert watch.status()["alerts"] == {"publish": "redis://h#p: d/delta-1: down"}
        watch.served(served(2, 2.0, to="redis://h#p"))
        assert watch.status()["alerts"] == {}


def test_each_save_that_the_gate_refuses_is_logged_once(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Watch(config(), run_dir, sinks=1) as watch:
        watch.served(served(1, 1.0, "AUC 0.5"))
        watch.served(served(2, 2.0, "AUC 0.4"))
    assert [text.partition(" (docs")[0] for text in caplog.messages] == [
        "alert publish, firing: d/delta-1: AUC 0.5",
        "alert publish, still firing: d/delta-2: AUC 0.4",
    ]


def test_the_staleness_of_each_sink_is_a_summary_for_prometheus(run_dir: Path) -> None:
    with Watch(config(), run_dir, sinks=2) as watch:
        for number in range(1, 102):
            watch.served(served(number, 1000.0 + number, to="/a", event_time=1000.0))
        watch.served(served(3, 1007.0, to="redis://h#p", event_time=1000.0))
        text = watch.text()
    assert 'paddlebox_train_served_pass{to="/a"} 101\n' in text
    assert 'paddlebox_train_staleness_seconds{to="/a",quantile="0.5"} 51\n' in text
    assert 'paddlebox_train_staleness_seconds{to="/a",quantile="0.99"} 100\n' in text
    assert 'paddlebox_train_staleness_seconds{to="redis://h#p",quantile="0.5"} 7\n' in text


def test_figures_for_prometheus_on_the_loopback_interface(run_dir: Path) -> None:
    port = free_port()
    rule = config(metrics_port=port, copc=[0.9, 1.5])
    with Watch(rule, run_dir) as watch:
        watch.passed(line(3, copc=0.5))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(ConfigError, match=f"metrics_port {port}: cannot listen"):
            Watch(rule, run_dir).__enter__()
    values = dict(text.rsplit(" ", 1) for text in text.splitlines() if not text.startswith("#"))
    assert values["paddlebox_train_pass"] == "3"
    assert values["paddlebox_train_copc"] == "0.5"
    assert values['paddlebox_train_alert{alert="copc"}'] == "1"
    assert values['paddlebox_train_alert{alert="auc_drop"}'] == "0"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


def test_slow_clients_take_few_threads_and_not_for_long(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paddlebox.watch.watch._Handler.most_s", 0.5)
    port = free_port()

    def is_served() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read())
        except OSError:
            return False

    with Watch(config(metrics_port=port), run_dir), ExitStack() as stack:
        before = threading.active_count()
        for _ in range(50):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /met")
        eventually(lambda: threading.active_count() - before >= Page.most_connections)
        time.sleep(0.1)  # for the other clients
        assert threading.active_count() - before <= 2 * Page.most_connections
        eventually(is_served)
    assert "Traceback" not in capfd.readouterr().err


def test_every_alert_has_its_section_in_the_runbook() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
    for name in rules.ALERTS:
        assert f"\n### `{name}`\n" in page
