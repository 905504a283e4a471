"""What a job decides, from the reports of its ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paddlebox.tools.on_ray.cli import passed_on
from paddlebox.tools.on_ray.job import LIMITS_S, Job, Order, Rank, Report, suspects


def rank(number: int, **changed: Any) -> Rank:
    usual = Rank(number, 100 + number, "host", "step", "7", 20, 0, 0.1, "S", "")
    return dataclasses.replace(usual, **changed)


def report(one: Rank, attempt: int = 1) -> Report:
    return Report(attempt, one)


def ended(*codes: int, attempt: int = 1, **changed: Any) -> list[Report]:
    ranks = [rank(number, code=code, **changed) for number, code in enumerate(codes)]
    return [report(one, attempt) for one in ranks]


class Told:
    """A job of two ranks, its clock and its log."""

    def __init__(self, tries: int = 2) -> None:
        self.now, self.said = 0.0, list[str]()
        self.job = Job(2, tries, LIMITS_S, self.said.append, clock=lambda: self.now)

    def tell(self, first: Report, second: Report) -> Order:
        self.job.hear(0, first)
        self.job.hear(1, second)
        return self.job.order()

    def begun(self, attempt: int = 1) -> Told:
        self.now += 100.0
        idle = Report(attempt - 1)
        assert self.tell(idle, idle) == Order("run", attempt)
        return self

    def fails(self, attempt: int, passes: int) -> Order:
        """An attempt whose rank 1 is killed when so many passes are committed."""
        self.begun(attempt)
        alive, dead = rank(0, passes=passes), rank(1, code=-9, passes=passes)
        assert self.tell(report(alive, attempt), report(dead, attempt)).do == "end"
        return self.tell(*ended(143, -9, attempt=attempt, passes=passes))


def test_no_rank_starts_before_all_are_there_and_nothing_of_the_last_attempt_lives() -> None:
    told = Told()
    told.job.hear(0, Report())
    assert told.job.order().do == "wait"
    assert told.tell(Report(), report(rank(1), 0)).do == "wait"
    assert told.tell(Report(), Report()) == Order("run", 1)


def test_a_killed_rank_is_named_and_all_ranks_end_and_start_again_after_a_pause() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=-9))).do == "end"
    assert "rank 1 (process 101 on host): killed by signal 9 in step 7" in told.said
    assert any("meanwhile rank 0" in line for line in told.said)
    assert told.tell(report(rank(0)), report(rank(1, code=-9))).do == "end"  # rank 0 still lives
    down = ended(143, -9)
    assert told.tell(*down).do == "wait"
    assert told.tell(*down).do == "wait"  # the pause
    told.now += 1.5
    assert told.tell(*down) == Order("run", 2)


@pytest.mark.parametrize("code", [2, 3, 5, 6, 7])
def test_what_another_try_would_repeat_is_passed_on_at_once(code: int) -> None:
    told = Told().begun()
    # The peer that lost its partner ends with 1, and is seen first.
    assert told.tell(report(rank(0, code=1)), report(rank(1))).do == "end"
    assert told.tell(*ended(1, code)) == Order("exit", 1, code)
    assert told.said[-1].startswith(f"exit code {code} (")


def test_a_lock_that_a_lost_rank_may_hold_is_waited_for_until_a_commit() -> None:
    told = Told(tries=3).begun()
    assert told.tell(report(rank(0)), report(rank(1))).do == "run"
    told.job.lose(1, "no answer")
    assert told.tell(*ended(143, 143)).do == "wait"
    for attempt, passes, found in ((2, 0, "wait"), (3, 2, "exit")):
        told.begun(attempt)
        locked = ended(6, 6, attempt=attempt, stage="start", passes=passes)
        assert told.tell(*locked).do == "end"
        assert told.tell(*locked).do == found
    assert told.job.code == 6


def regrouping() -> tuple[Told, list[Report]]:
    """A job that lets its ranks end their pass, and their reports once they have ended."""
    told = Told().begun()
    told.tell(report(rank(0)), report(rank(1)))
    told.job.regroup("more nodes have room")
    assert told.tell(report(rank(0)), report(rank(1))).do == "stop"
    return told, ended(143, 143)


def test_ranks_that_end_their_pass_for_other_nodes_start_again_there() -> None:
    told, down = regrouping()
    assert told.tell(down[0], report(rank(1))).do == "stop"
    assert told.tell(*down) == Order("wait", 1)
    assert told.job.regroups
    told.job.expect(2)
    assert told.tell(Report(), Report()) == Order("run", 2)
    assert not told.job.regroups


def test_a_job_whose_last_pass_ends_before_other_nodes_are_gathered_is_done() -> None:
    told, _ = regrouping()
    assert told.tell(*ended(0, 0)) == Order("exit", 1, 0)


def test_a_signal_while_ranks_end_their_pass_for_other_nodes_ends_the_job() -> None:
    told, down = regrouping()
    told.job.signal = 15
    assert told.tell(*down) == Order("exit", 1, 143)


@pytest.mark.parametrize("code", [-9, 4])
def test_a_failure_while_ranks_end_their_pass_for_other_nodes_is_a_failure(code: int) -> None:
    told, down = regrouping()
    assert told.tell(report(rank(0)), report(rank(1, code=code))).do == "end"
    assert told.tell(*down) == Order("wait", 1)
    assert not told.job.regroups


def test_a_rank_that_hangs_or_is_lost_while_it_should_end_its_pass_is_not_waited_for() -> None:
    told, _ = regrouping()
    assert told.tell(report(rank(0, idle_s=26.0)), report(rank(1))).do == "end"
    told, _ = regrouping()
    told.job.lose(1, "no answer")
    told.job.hear(0, report(rank(0)))
    assert told.job.order().do == "end"


def test_a_rank_that_lost_its_connection_to_one_that_has_ended_its_pass_is_no_failure() -> None:
    told, _ = regrouping()
    assert told.tell(*ended(143, 1)) == Order("wait", 1)


def test_a_loss_after_a_signal_lets_the_others_end_their_pass_also_while_a_job_grows() -> None:
    told, down = regrouping()
    told.job.signal = 15
    told.tell(report(rank(0)), report(rank(1)))
    told.job.lose(1, "no answer")
    told.job.hear(0, report(rank(0)))
    assert told.job.order().do == "stop"
    told.job.hear(0, down[0])
    assert told.job.order() == Order("exit", 1, 143)


def test_growths_that_fail_use_no_tries_if_passes_are_committed_between_them() -> None:
    told, attempt = Told(tries=2), 0
    for cycle in range(6):
        attempt += 1
        told.begun(attempt)
        for stage, passes in (("step", cycle), ("load", cycle + 1)):
            both = [report(rank(n, passes=passes, stage=stage), attempt) for n in (0, 1)]
            told.tell(both[0], both[1])
            has_ended = told.job.ended_pass()
        assert has_ended
        told.job.regroup("more nodes have room")
        told.tell(*ended(143, 143, attempt=attempt))
        told.job.expect(2)
        attempt += 1
        told.begun(attempt)
        dead = ended(1, -9, attempt=attempt, stage="start")
        assert told.tell(*dead).do == "end"
        assert told.tell(*dead).do == "wait"


@pytest.mark.parametrize(("stage", "outcome"), [("start", "wait"), ("load", "exit")])
def test_no_exit_code_is_final_on_nodes_that_are_on_trial_until_a_rank_has_started(
    stage: str, outcome: str
) -> None:
    told = Told().begun()
    told.job.trial = True
    told.tell(report(rank(0, stage=stage)), report(rank(1, stage="start")))
    assert told.job.trial == (stage == "start")
    dead = ended(2, 2, stage="start")
    assert told.tell(*dead).do == "end"
    assert told.tell(*dead).do == outcome


def test_a_pass_has_ended_when_all_ranks_have_committed_one_more_since_the_first_step() -> None:
    told, down = regrouping()
    told.tell(*down)
    told.job.expect(2)
    told.begun(2)

    def has_ended(stage: str, *passes: int) -> bool:
        ranks = [rank(n, passes=p, stage=stage) for n, p in enumerate(passes)]
        told.tell(report(ranks[0], 2), report(ranks[1], 2))
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
        first, second = [report(rank(n, passes=passes, stage=at)) for n in (0, 1)]
        told.tell(first, second)
        found.append(told.job.ended_pass())
    assert found == [False] * 4 + [True, False]


def test_it_gives_up_after_the_tries_unless_a_pass_was_committed_between() -> None:
    told = Told(tries=2)
    assert [told.fails(n, passes=0).do for n in (1, 2)] == ["wait", "wait"]
    assert told.fails(3, passes=1).do == "wait"  # one further: tries are given back
    assert told.job.used == 1
    assert told.fails(4, passes=1).do == "wait"
    assert told.fails(5, passes=1) == Order("exit", 5, 1)
    assert told.said[-1] == "giving up after 3 failures without a new commit"


def test_a_signal_to_the_job_stops_all_ranks_and_its_number_is_the_exit_code() -> None:
    told = Told().begun()
    told.job.signal = 2
    assert told.tell(report(rank(0)), report(rank(1))).do == "stop"
    assert told.tell(*ended(143, 143)).code == 130


def test_other_ranks_may_take_the_place_of_those_that_have_failed() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=-9))).do == "end"
    assert told.tell(*ended(143, -9)).do == "wait"
    told.job.expect(3)
    told.now += 1.5
    for number in range(3):
        told.job.hear(number, Report())
        assert told.job.order().do == ("run" if number == 2 else "wait")


def test_a_signal_to_one_rank_is_a_wish_to_stop_and_no_failure() -> None:
    told = Told().begun()
    assert told.tell(report(rank(0)), report(rank(1, code=143))).do == "stop"
    assert told.tell(*ended(143, 143)) == Order("exit", 1, 143)


def test_a_kill_seen_together_with_a_signal_is_not_a_stop() -> None:
    killed, asked = rank(1, code=-9), rank(0, code=143)
    assert Told().begun().tell(report(asked), report(killed)).do == "end"
    # Who misses a rank that a signal has ended says 1.
    assert Told().begun().tell(report(asked), report(rank(1, code=1))).do == "stop"


def test_how_ranks_of_the_previous_attempt_ended_does_not_matter() -> None:
    told = Told().begun()
    told.job.attempt = 2
    assert told.tell(*ended(143, 2)).do == "run"
    assert told.tell(report(rank(0), 2), report(rank(1), 2)) == Order("run", 2)


def test_a_job_is_done_when_every_rank_is() -> None:
    told = Told().begun()
    done = ended(0, 0)
    assert told.tell(done[0], report(rank(1))).do == "run"
    assert told.tell(*done) == Order("exit", 1, 0)


def test_a_rank_whose_actor_is_lost_is_a_failure_and_is_waited_for() -> None:
    told = Told().begun()
    told.tell(report(rank(0)), report(rank(1)))
    told.job.lose(1, "no answer")
    assert "rank 1: no answer" in told.said
    told.job.hear(0, report(rank(0)))
    assert told.job.order().do == "end"
    told.job.hear(0, ended(143)[0])
    assert told.job.order().do == "wait"
    told.now += 1e6
    assert told.job.order() == Order("wait", 1)


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
    expected = "rank 1 (process 101 on host): no progress in load 7 for 26 s, stopped by a signal"
    assert told.said[1].startswith(expected)


def test_of_ranks_that_stand_still_the_one_that_holds_the_others_up_is_named() -> None:
    assert suspects([rank(0), rank(1, state="T"), rank(2)])[0].number == 1
    waiting = [rank(0, waits="2 stage"), rank(1, waits="2 stage"), rank(2)]
    assert [one.number for one in suspects(waiting)] == [2]
    assert [one.number for one in suspects([rank(0), rank(1, count=19), rank(2)])] == [1]
    assert len(suspects([rank(0), rank(1)])) == 2  # it cannot be known


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
