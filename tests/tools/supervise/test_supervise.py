"""What supervisors decide, from what they are told; who passes what on."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox import heartbeat
from paddlebox.errors import ConfigError
from paddlebox.launch.cli import train_main
from paddlebox.launch.launcher import bound_to_master, launch_options
from paddlebox.tools.supervise.arguments import passed_on
from paddlebox.tools.supervise.cli import main
from paddlebox.tools.supervise.folder import watch_folder
from paddlebox.tools.supervise.job import LIMITS_S, Job, Order, Rank, Report, suspects
from paddlebox.tools.supervise.wire import Met
from tests.conftest import PATIENCE_S, ROOT
from tests.support.processes import free_port


def rank(number: int, **changed: Any) -> Rank:
    usual = Rank(number, 100 + number, "host", "step", "7", 20, 0, 0.1, "S", "")
    return dataclasses.replace(usual, **changed)


def report(*ranks: Rank, attempt: int = 1, **changed: Any) -> Report:
    return dataclasses.replace(Report(attempt, True, None, ranks), **changed)


class Told:
    """A job of two nodes, its clock and its log."""

    def __init__(self, tries: int = 2) -> None:
        self.now, self.said = 0.0, list[str]()
        self.job = Job(2, tries, LIMITS_S, 600.0, self.said.append, clock=lambda: self.now)

    def tell(self, first: Report, second: Report) -> Order:
        self.job.hear("a", first)
        self.job.hear("b", second)
        return self.job.order()

    def begun(self, attempt: int = 1) -> Told:
        self.now += 100.0
        idle = Report(attempt - 1)
        assert self.tell(idle, idle) == Order("run", attempt, used=self.job.used)
        return self

    def fails(self, attempt: int, passes: int) -> Order:
        """An attempt whose rank 1 is killed when so many passes are committed."""
        self.begun(attempt)
        dead = report(rank(1, code=-9, passes=passes), attempt=attempt)
        assert self.tell(report(rank(0, passes=passes), attempt=attempt), dead).do == "end"
        down = {"attempt": attempt, "up": False}
        return self.tell(
            report(rank(0, code=143, passes=passes), **down),
            report(rank(1, code=-9, passes=passes), **down),
        )


def test_no_node_starts_before_all_are_there_and_nothing_of_the_last_attempt_lives() -> None:
    told = Told()
    told.job.hear("a", Report())
    assert told.job.order().do == "wait"
    assert told.tell(Report(), Report(up=True)).do == "wait"
    assert told.tell(Report(), Report()) == Order("run", 1)


def test_a_killed_rank_is_named_and_all_nodes_end_and_start_again_after_a_pause() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=-9))).do == "end"
    assert "rank 1 (process 101 on host): killed by signal 9 in step 7" in told.said
    assert any("meanwhile rank 0" in line for line in told.said)
    down = Report(1)
    assert told.tell(report(rank(0)), down).do == "end"  # the other node's still live
    assert told.tell(down, down).do == "wait"
    assert told.tell(down, down).do == "wait"  # the pause
    told.now += 1.5
    assert told.tell(down, down) == Order("run", 2, used=1)


@pytest.mark.parametrize("code", [2, 3, 5, 6, 7])
def test_what_another_try_would_repeat_is_passed_on_at_once(code: int) -> None:
    told = Told().begun()
    # The peer that lost its partner ends with 1, and is seen first.
    assert told.tell(report(rank(0, code=1)), report(rank(1))).do == "end"
    down = [report(rank(0, code=1), up=False), report(rank(1, code=code), up=False)]
    assert told.tell(*down) == Order("exit", 1, code, used=1)


def test_a_lock_that_a_rank_of_a_lost_node_may_hold_is_waited_for_until_a_commit() -> None:
    told = Told(tries=3).begun()
    assert told.tell(report(rank(0)), report(rank(1))).do == "run"
    told.job.lose("b", "no answer")
    locked = {"code": 6, "stage": "start"}
    down = report(rank(0), up=False), report(up=False)
    assert told.tell(*down).do == "wait"
    for attempt, passes, found in ((2, 0, "wait"), (3, 2, "exit")):
        told.begun(attempt)
        ended = [report(rank(n, passes=passes, **locked), attempt=attempt) for n in (0, 1)]
        assert told.tell(*ended).do == "end"
        assert told.tell(*[dataclasses.replace(one, up=False) for one in ended]).do == found
    assert told.job.code == 6


def regrouping() -> tuple[Told, list[Report]]:
    """A job that lets its ranks end their pass, and their reports once they have ended."""
    told = Told().begun()
    told.tell(report(rank(0)), report(rank(1)))
    told.job.regroup("more nodes have room")
    assert told.tell(report(rank(0)), report(rank(1))).do == "stop"
    return told, [report(rank(number, code=143), up=False) for number in (0, 1)]


def test_ranks_that_end_their_pass_for_other_nodes_start_again_there() -> None:
    told, ended = regrouping()
    assert told.tell(ended[0], report(rank(1))).do == "stop"
    assert told.tell(*ended) == Order("wait", 1)
    assert told.job.regroups
    told.job.expect(2)
    assert told.tell(Report(), Report()) == Order("run", 2)
    assert not told.job.regroups


def test_a_job_whose_last_pass_ends_before_other_nodes_are_gathered_is_done() -> None:
    told, _ = regrouping()
    ended = [report(rank(number, code=0), up=False) for number in (0, 1)]
    assert told.tell(*ended) == Order("exit", 1, 0)


def test_a_signal_while_ranks_end_their_pass_for_other_nodes_ends_the_job() -> None:
    told, ended = regrouping()
    signalled = [dataclasses.replace(one, signal=15) for one in ended]
    assert told.tell(*signalled) == Order("exit", 1, 143)


@pytest.mark.parametrize("code", [-9, 4])
def test_a_failure_while_ranks_end_their_pass_for_other_nodes_is_a_failure(code: int) -> None:
    told, ended = regrouping()
    assert told.tell(report(rank(0)), report(rank(1, code=code))).do == "end"
    assert told.tell(*ended) == Order("wait", 1, used=1)
    assert not told.job.regroups


def test_a_rank_that_hangs_or_is_lost_while_it_should_end_its_pass_is_not_waited_for() -> None:
    told, _ = regrouping()
    assert told.tell(report(rank(0, idle_s=26.0)), report(rank(1))).do == "end"
    told, _ = regrouping()
    told.job.lose("b", "no answer")
    told.job.hear("a", report(rank(0)))
    assert told.job.order().do == "end"


def test_a_rank_that_lost_its_connection_to_one_that_has_ended_its_pass_is_no_failure() -> None:
    told, _ = regrouping()
    ended = [report(rank(number, code=code), up=False) for number, code in ((0, 143), (1, 1))]
    assert told.tell(*ended) == Order("wait", 1)


def test_a_loss_after_a_signal_lets_the_others_end_their_pass_also_while_a_job_grows() -> None:
    told, _ = regrouping()
    told.tell(report(rank(0), signal=15), report(rank(1), signal=15))
    told.job.lose("b", "no answer")
    told.job.hear("a", report(rank(0), signal=15))
    assert told.job.order().do == "stop"
    told.job.hear("a", report(rank(0, code=143), up=False, signal=15))
    assert told.job.order() == Order("exit", 1, 143)


def test_growths_that_fail_use_no_tries_if_passes_are_committed_between_them() -> None:
    told, attempt = Told(tries=2), 0
    for cycle in range(6):
        attempt += 1
        told.begun(attempt)
        for stage, passes in (("step", cycle), ("load", cycle + 1)):
            both = [report(rank(n, passes=passes, stage=stage), attempt=attempt) for n in (0, 1)]
            told.tell(*both)
            ended = told.job.ended_pass()
        assert ended
        told.job.regroup("more nodes have room")
        told.tell(*[report(rank(n, code=143), attempt=attempt, up=False) for n in (0, 1)])
        told.job.expect(2)
        attempt += 1
        told.begun(attempt)
        dead = report(rank(1, code=-9, passes=0, stage="start"), attempt=attempt, up=False)
        assert told.tell(report(attempt=attempt, up=False), dead).do == "end"
        assert told.tell(report(attempt=attempt, up=False), dead).do == "wait"


@pytest.mark.parametrize(("stage", "outcome"), [("start", "wait"), ("load", "exit")])
def test_no_exit_code_is_final_on_nodes_that_are_on_trial_until_a_rank_has_started(
    stage: str, outcome: str
) -> None:
    told = Told().begun()
    told.job.trial = True
    seen = [report(rank(0, stage=stage)), report(rank(1, stage="start"))]
    told.tell(*seen)
    assert told.job.trial == (stage == "start")
    dead = [report(rank(n, code=2, stage="start")) for n in (0, 1)]
    assert told.tell(*dead).do == "end"
    assert told.tell(*[dataclasses.replace(one, up=False) for one in dead]).do == outcome


def test_a_pass_has_ended_when_all_ranks_have_committed_one_more_since_the_first_step() -> None:
    told, ended = regrouping()
    told.tell(*ended)
    told.job.expect(2)
    told.begun(2)

    def has_ended(stage: str, *passes: int) -> bool:
        ranks = [rank(n, passes=p, stage=stage) for n, p in enumerate(passes)]
        told.tell(*[report(one, attempt=2) for one in ranks])
        return told.job.ended_pass()

    assert not has_ended("start", 0, 0)
    assert not has_ended("load", 7, 0)  # what earlier attempts have committed
    assert not has_ended("step", 7, 7)
    assert has_ended("step", 7, 8)
    assert not has_ended("step", 8, 8)
    assert has_ended("load", 8, 9)


@pytest.mark.parametrize("stage", ["commit", "end"])
def test_a_pass_has_not_ended_before_the_next_one_begins_because_it_may_be_the_last(
    stage: str,
) -> None:
    told = Told().begun()
    found = []
    for at, passes in ((stage, 3), ("step", 3), (stage, 4), (stage, 4), ("load", 4), ("step", 4)):
        told.tell(*[report(rank(n, passes=passes, stage=at)) for n in (0, 1)])
        found.append(told.job.ended_pass())
    assert found == [False] * 4 + [True, False]


def test_it_gives_up_after_the_tries_unless_a_pass_was_committed_between() -> None:
    told = Told(tries=2)
    assert [told.fails(n, passes=0).do for n in (1, 2)] == ["wait", "wait"]
    assert told.fails(3, passes=1).do == "wait"  # one further: tries are given back
    assert told.job.used == 1
    assert told.fails(4, passes=1).do == "wait"
    assert told.fails(5, passes=1) == Order("exit", 5, 1, used=3)


def test_a_signal_to_one_supervisor_stops_all_and_its_number_is_the_exit_code() -> None:
    told = Told().begun()
    live = report(rank(0)), report(rank(1))
    assert told.tell(dataclasses.replace(live[0], signal=15), live[1]).do == "stop"
    ended = [report(rank(n, code=143), up=False) for n in (0, 1)]
    assert told.tell(dataclasses.replace(ended[0], signal=15), ended[1]).code == 143


def test_other_nodes_may_take_the_place_of_those_that_have_failed() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=-9))).do == "end"
    assert told.tell(report(rank(0), up=False), report(rank(1, code=-9), up=False)).do == "wait"
    told.job.expect(3)
    told.now += 1.5
    for number, node in enumerate("cde", 1):
        told.job.hear(node, Report())
        assert told.job.order().do == ("run" if number == 3 else "wait")


def test_the_time_to_connect_begins_when_other_nodes_are_expected() -> None:
    told = Told()
    told.now += 601.0  # until the nodes were found
    told.job.expect(3)
    assert told.job.order().do == "wait"
    told.now += 600.0
    assert told.job.order().do == "wait"
    told.now += 1.0
    assert told.job.order() == Order("exit", code=1)


def test_the_log_names_members_and_the_place_of_logs_as_it_was_told() -> None:
    told = Told()
    told.job.member, told.job.logs = "rank", "the log of its actor"
    told.now += 601.0
    told.job.order()
    assert told.said == ["not all of 2 ranks have connected in 600 s; found: none"]
    told = Told()
    told.job.member, told.job.logs = "rank", "the log of its actor"
    told.begun()
    told.tell(report(launcher=2, up=False), report(launcher=0, up=False))
    told.job.order()
    assert told.said[-2:] == [
        "rank a: its command ended with 2",
        "exit code 2 (configuration): a restart would only repeat it; the reason is above, or in "
        "the log of its actor",
    ]


def test_a_signal_to_one_rank_is_a_wish_to_stop_and_no_failure() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=143))).do == "stop"
    ended = [report(rank(n, code=143), up=False) for n in (0, 1)]
    assert told.tell(*ended) == Order("exit", 1, 143)


def test_how_ranks_of_the_previous_attempt_ended_does_not_matter() -> None:
    told = Told().begun()
    told.job.attempt = 2  # decided by a restarted node
    before = [report(rank(n, code=code), up=False) for n, code in ((0, 143), (1, 2))]
    assert told.tell(*before).do == "run"
    begun = [report(rank(n), attempt=2) for n in (0, 1)]
    assert told.tell(*begun) == Order("run", 2)


def test_a_job_is_done_when_every_rank_is_for_any_exit_code_of_the_launcher() -> None:
    told = Told().begun()
    done = [report(rank(n, code=0), up=False, launcher=241 * n) for n in (0, 1)]
    assert told.tell(done[0], report(rank(1))).do == "run"
    assert told.tell(*done) == Order("exit", 1, 0)


def test_a_node_that_is_gone_is_a_failure_and_is_waited_for() -> None:
    told = Told().begun()
    told.tell(report(rank(0)), report(rank(1)))
    told.job.lose("b", "the connection was closed")
    assert "node b: the connection was closed" in told.said
    told.job.hear("a", report(rank(0)))
    assert told.job.order().do == "end"
    told.job.hear("a", Report(1))
    assert told.job.order().do == "wait"
    told.now += 601.0
    assert told.job.order() == Order("exit", 1, 1, used=1)
    assert "found: a" in told.said[-1]


def test_each_stage_has_its_own_limit() -> None:
    for stage, limit in LIMITS_S.items():
        told = Told().begun()
        late = rank(1, stage=stage, idle_s=limit - 1, count=3)
        assert told.tell(report(rank(0)), report(late)).do == "run"
        late = dataclasses.replace(late, idle_s=limit + 1)
        assert told.tell(report(rank(0)), report(late)).do == "end"
        assert f"rank 1 (process 101 on host): no progress in {stage} 7" in told.said[-2]


def test_a_rank_that_is_stopped_by_a_signal_is_hung_in_any_stage() -> None:
    told = Told().begun()
    late = rank(1, stage="load", state="T", idle_s=LIMITS_S["step"] + 1)
    assert told.tell(report(rank(0, stage="load")), report(late)).do == "end"
    assert (
        "rank 1 (process 101 on host): no progress in load 7 for 26 s, stopped by a"
        in (told.said[1])
    )


def test_of_ranks_that_stand_still_the_one_that_holds_the_others_up_is_named() -> None:
    assert suspects([rank(0), rank(1, state="T"), rank(2)])[0].number == 1
    waiting = [rank(0, waits="2 stage"), rank(1, waits="2 stage"), rank(2)]
    assert [one.number for one in suspects(waiting)] == [2]
    assert [one.number for one in suspects([rank(0), rank(1, count=19), rank(2)])] == [1]
    assert len(suspects([rank(0), rank(1)])) == 2  # it cannot be known


def test_a_rank_that_is_busy_while_the_others_wait_is_called_slow_and_goes_on() -> None:
    told = Told().begun()
    for _ in range(60):
        told.now += 0.2
        assert told.tell(report(rank(0)), report(rank(1, state="R"))).do == "run"
    slow = [line for line in told.said if "is slow" in line]
    assert len(slow) == 1
    assert slow[0].startswith("rank 1 (process 101 on host) is slow: ")


def test_ranks_get_what_is_on_the_list_and_what_was_asked_for() -> None:
    found = {"PATH": "p", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "s", "TOKEN": "t", "NCCL_X": "1"}
    assert set(passed_on(found)) == {"PATH", "LC_ALL", "NCCL_X"}
    assert "AWS_SECRET_ACCESS_KEY" in passed_on(found, ["AWS_*"])


def test_the_launcher_listens_narrowly_and_a_program_stays_as_it_is() -> None:
    launch = ["python", "-m", "paddle.distributed.launch", "tools/train.py"]
    assert bound_to_master(launch)[2] == "paddlebox.launch.bind_address"
    program = ["python", "paddle.distributed.launch"]
    assert bound_to_master(program) == program


def test_nodes_are_those_of_the_launcher() -> None:
    launch = ["python", "-m", "paddle.distributed.launch", "--master", "h:1", "--nnodes=2"]
    found = launch_options([*launch, "tools/train.py", "--rank", "9"], {})
    assert (found.nnodes, found.master, found.rank) == ("2", "h:1", "-1")
    with pytest.raises(ConfigError, match="--rank 0, 1"):
        launch_options([*launch[:-1], "--nnodes", "3", "tools/train.py"], {})
    for wrong in (["--nnodes"], ["--nnodes", "2:4"], ["--rank", "first"]):
        with pytest.raises(ConfigError, match=wrong[0]):
            launch_options(["python", "-m", "paddle.distributed.launch", *wrong], {})
    with pytest.raises(ConfigError, match="without --master"):
        launch_options(["python", "-m", "paddle.distributed.launch", "--nnodes", "2"], {})


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--limit", "steps=3"], "STAGE=S"), (["--limit", "load=x"], "expected seconds")],
)
def test_a_wrong_option_is_a_configuration_error(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--", "true"]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def address() -> tuple[str, int]:
    return "127.0.0.1", free_port()


def turns(links: list[Met], reports: list[Report], done: Callable[[], bool]) -> list[Order]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        orders = [link.exchange(one) for link, one in zip(links, reports, strict=True)]
        if done():
            return orders
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_two_nodes_meet_one_decides_and_the_other_takes_over(address: tuple[str, int]) -> None:
    jobs, said = list[Job](), list[str]()

    def make(last: Order) -> Job:
        jobs.append(Job(2, 3, LIMITS_S, 60.0, said.append, attempt=last.attempt, used=last.used))
        return jobs[-1]

    links = [Met(make, name, address, 60.0, said.append) for name in "ab"]
    turns(links, [Report(), Report()], lambda: bool(jobs) and jobs[0].phase == "run")
    orders = turns(links, [report(rank(0)), report(rank(1))], lambda: links[1]._order.do == "run")
    assert [order.do for order in orders] == ["run", "run"]
    links[0].close()  # its node is gone
    turns(links[1:], [report(rank(1))], lambda: links[1]._link is None)
    assert links[1].exchange(report(rank(1))).do == "end"
    turns(links[1:], [Report(1)], lambda: len(jobs) == 2)
    assert jobs[1].attempt == 1
    links[1].close()


def test_input_that_is_not_a_report_closes_the_connection(address: tuple[str, int]) -> None:
    link = Met(lambda _: Job(2, 3, LIMITS_S, 60.0, print), "a", address, 60.0, print)
    link.exchange(Report())
    wrong = json.dumps(
        {"node": "x", "report": {"ranks": [{**dataclasses.asdict(rank(0)), "pid": "a"}]}}
    )
    strange = [b"GET / HTTP/1.1\n\n", b'{"node": 1}\n', b"[]\n", b'{"node":"x","report":7}\n']
    deep = b"[" * 100_000 + b"\n"
    for sent in (*strange, deep, wrong.encode() + b"\n"):
        with socket.create_connection(address) as stranger:
            stranger.sendall(sent)
            stranger.settimeout(0.01)
            for _ in range(200):
                assert link.exchange(Report()).do == "wait"
                try:
                    assert stranger.recv(1) == b""
                    break
                except TimeoutError:
                    continue
            else:
                pytest.fail(f"{sent!r} was not hung up on")
    link.close()


def test_a_tool_logs_what_it_does_and_how_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(heartbeat.FOLDER, str(tmp_path))
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    monkeypatch.setattr(heartbeat, "_die_with_parent", lambda _: None)
    lines = []

    @heartbeat.told
    def tool() -> int:
        for _ in heartbeat.steps([1, 2]):
            lines.append((tmp_path / "beat.3").read_text()[: heartbeat.LINE].split())
        heartbeat.waits(1, "stage")
        raise SystemExit(2)

    with pytest.raises(SystemExit):
        tool()
    monkeypatch.setattr(heartbeat, "_file", -1)
    assert [(line[1], line[6]) for line in lines] == [("step", "1"), ("step", "2")]
    assert int(lines[0][0]) < int(lines[1][0])
    assert (tmp_path / "beat.3").read_text()[heartbeat.LINE :].strip() == "1 stage"
    assert (tmp_path / "exit.3").read_text() == "2"


HANGS_ONCE = """
import pathlib, sys, threading, time
from paddlebox import heartbeat

@heartbeat.told
def main():
    marker = pathlib.Path(sys.argv[1])
    for step in heartbeat.steps(range(1, 5)):
        time.sleep(0.1)
        if step == 3 and not marker.exists():
            marker.touch()
            threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)]).start()
            threading.Event().wait()
    return 0

sys.exit(main())
"""


@pytest.mark.slow
def test_a_process_that_hangs_with_a_living_thread_is_found_and_started_again(
    tmp_path: Path,
) -> None:
    program = tmp_path / "hangs_once.py"
    program.write_text(HANGS_ONCE)
    done = subprocess.run(
        [
            *(sys.executable, "tools/supervise.py", "--stall-s", "2", "--"),
            *(sys.executable, program, tmp_path / "marker"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 0 \(process \d+ on .*\): no progress in step 3 for 2 s", done.stderr)
    assert "attempt 2 begins" in done.stderr


def test_the_folder_of_a_killed_supervisor_goes_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "paddlebox-watch-of-something-else"
    other.mkdir()
    killed = tmp_path / "paddlebox-watch-killed"
    (killed / "1").mkdir(parents=True)
    (killed / "1" / "beat.0").touch()
    (killed / "LOCK").touch()  # as a process leaves it that is no more
    with watch_folder() as first:
        assert not killed.exists()
        with watch_folder() as second:
            assert first != second
            assert sorted(tmp_path.iterdir()) == sorted([first, second, other])
    assert [*tmp_path.iterdir()] == [other]


@pytest.mark.slow
def test_a_killed_supervisor_lets_its_lock_go(tmp_path: Path) -> None:
    """Its ranks and their launcher hold nothing of it."""
    program = tmp_path / "waits.py"
    program.write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(60)"
    )
    supervised = [sys.executable, str(program), str(tmp_path / "begun")]
    folders = tmp_path / "temporary"
    folders.mkdir()
    with subprocess.Popen(
        [sys.executable, "tools/supervise.py", "--", *supervised],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folders)},
        stderr=subprocess.DEVNULL,
    ) as supervisor:
        try:
            while not (tmp_path / "begun").exists():
                assert supervisor.poll() is None
                time.sleep(0.05)
        finally:
            supervisor.kill()
    (lock,) = folders.glob("paddlebox-watch-*/LOCK")
    with open(lock, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_kill_seen_together_with_the_launchers_signals_is_not_a_stop() -> None:
    killed, asked = rank(1, code=-9), rank(0, code=143)
    assert Told().begun().tell(report(asked), report(killed)).do == "end"
    # Who misses a rank that a signal has ended says 1.
    assert Told().begun().tell(report(asked), report(rank(1, code=1))).do == "stop"


def test_who_waits_for_a_rank_that_comes_forward_does_not_stand_still() -> None:
    told = Told().begun()
    waiting = rank(0, stage="load", idle_s=4000.0, waits="1 moved")
    moving = rank(1, stage="load", idle_s=1.0)
    assert told.tell(report(waiting), report(moving)).do == "run"
    held = dataclasses.replace(waiting, state="T")
    assert Told().begun().tell(report(held), report(moving)).do == "end"
    # Where all wait, none comes forward.
    both = dataclasses.replace(rank(1, stage="load", idle_s=4000.0), waits="0 opened")
    assert told.tell(report(waiting), report(both)).do == "end"


def test_a_stage_that_reads_rows_beats_as_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_file", os.open(tmp_path / "beat", os.O_RDWR | os.O_CREAT))
    read = heartbeat.rows("rows of 2 ranks")
    counts = []
    for number in (131072, 262144):
        read(number)
        counts.append(int((tmp_path / "beat").read_text().split()[0]))
    assert counts[1] == counts[0] + 1
    assert "load" in (tmp_path / "beat").read_text()
    os.close(heartbeat._file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--fresh"], "--fresh"), (["--from", "20240105"], "--from"), ([], "no --run-dir")],
)
def test_what_each_start_would_do_again_is_refused_under_a_supervisor(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(heartbeat.FOLDER, str(tmp_path))
    monkeypatch.setattr(heartbeat, "_begin", lambda: None)
    run_dir = ["--run-dir", str(tmp_path / "run")] if arguments else []
    assert train_main(["-c", "configs/dnn_synthetic.yaml", *run_dir, *arguments]) == 2
    assert f"{said} under tools/supervise.py" in capsys.readouterr().err


_KEEPS = """
import os, signal, sys, time
from paddlebox import heartbeat
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.environ["PADDLE_TRAINER_ID"] = "1"
    heartbeat._begin()
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
heartbeat._begin()
time.sleep(1)
heartbeat.stage(sys.argv[1])
time.sleep(5)  # longer than what a failed attempt is left
open(sys.argv[2], "w").close()
os._exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["rescue", "step"])
def test_a_rank_that_keeps_its_rows_after_a_death_is_left_the_time(
    stage: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    program = [sys.executable, "-c", _KEEPS, stage, str(kept)]
    done = subprocess.run(
        [sys.executable, "tools/supervise.py", "--tries", "0", "--", *program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "killed by signal 9" in done.stderr
    assert kept.exists() == (stage == "rescue"), done.stderr
