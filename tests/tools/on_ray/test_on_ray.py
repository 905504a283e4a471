"""What `paddlebox train-on-ray` decides, without a Ray cluster."""

from __future__ import annotations

import dataclasses
import functools
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddlebox import mpi
from paddlebox.errors import ConfigError, RankError
from paddlebox.tools.on_ray.cli import _Drive, train_on_ray_main
from paddlebox.tools.on_ray.job import LIMITS_S, Job, Order, Rank, Report
from paddlebox.tools.on_ray.placement import Demand, Node, Places, Reservation, choose, placed
from paddlebox.tools.on_ray.rank import (
    ABANDONED_LOOKS,
    Gauges,
    RankActor,
    Silence,
    run_dir_of,
    values_of,
    variables_of,
)
from paddlebox.tools.on_ray.team import Team
from tests.conftest import PATIENCE_S


def nodes(**free: float) -> list[Node]:
    return [Node(id_, f"10.0.0.{at}", 8.0, left) for at, (id_, left) in enumerate(free.items(), 1)]


def demand(least: int, most: int = 0, **changed: float) -> Demand:
    usual = Demand(least, most or least, ranks=4, cpus=2, wait_s=5.0, settle_s=60.0)
    return dataclasses.replace(usual, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "before", "expected"),
    [
        ({"a": 8, "b": 8, "c": 8}, [], ["a", "b"]),
        ({"a": 8, "b": 7, "c": 8}, [], ["a", "c"]),  # b has no room
        ({"a": 8}, ["a", "b"], ["a"]),  # too few
        ({"b": 8, "c": 8}, ["a", "b"], ["c", "b"]),  # b keeps the stores of its ranks
        ({"a": 8, "b": 8, "c": 8}, ["c", "b"], ["c", "b"]),
        ({"a": 8, "b": 8}, ["b"], ["b", "a"]),  # the job grows
        ({"b": 8, "d": 8, "e": 8}, ["a", "b", "c"], ["d", "b"]),  # it shrinks
        ({"a": 8, "x": 8}, ["a"], ["a"]),
    ],
)
def test_nodes_with_room_are_chosen_and_keep_their_ranks(
    free: dict[str, float], before: list[str], expected: list[str]
) -> None:
    chosen = choose(nodes(**free), demand(1, 2), 2, before, refused={"x"})
    assert placed(chosen, before) == expected


class FakeRay:
    """As much of Ray as a Reservation needs: three nodes of 8 CPUs each."""

    def __init__(self, available: dict[str, float], granted: bool = True) -> None:
        self.available, self.granted = available, granted
        self.util = SimpleNamespace(
            placement_group=self._group, remove_placement_group=lambda group: group.remove()
        )
        resources = {name: {"CPU": free} for name, free in available.items()}
        state = SimpleNamespace(available_resources_per_node=lambda: resources)
        self._private = SimpleNamespace(state=state)
        self.bundles: list[Any] = []  # of the newest placement group
        self.reserved: list[list[str]] = []  # nodes of each placement group
        self.kept: dict[bytes, bytes] = {}
        kv = SimpleNamespace(_internal_kv_get=self.kept.get, _internal_kv_put=self._keep)
        self.experimental = SimpleNamespace(internal_kv=kv)

    def _keep(self, key: bytes, value: bytes, overwrite: bool) -> None:
        assert overwrite
        self.kept[key] = value

    def add(self, name: str) -> None:
        self.available[name] = 8.0
        self._private.state.available_resources_per_node()[name] = {"CPU": 8.0}

    def lose(self, name: str) -> None:
        del self.available[name]

    def held(self, asked: Demand, say: Callable[[str], None] = print) -> Reservation:
        return Reservation(self, asked, Places(self, "job"), lambda: False, say)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "Alive": True,
                "NodeManagerAddress": f"10.0.0.{at}",
                "Resources": {"CPU": 8.0},
            }
            for at, name in enumerate(self.available, 1)
        ]

    def _group(self, bundles: list[Any], strategy: str, bundle_label_selector: Any) -> Any:
        self.bundles = list(zip(bundles, bundle_label_selector, strict=True))
        assert strategy == "STRICT_SPREAD"
        nodes = [selector["ray.io/node-id"] for selector in bundle_label_selector]
        self.reserved.append(nodes)
        return SimpleNamespace(
            wait=self._wait, remove=lambda: self.reserved.remove(nodes), nodes=nodes
        )

    def _wait(self, seconds: float) -> bool:
        if not self.granted:
            self.sleep(seconds)
        return self.granted

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_each_node_is_one_bundle_of_the_placement_group() -> None:
    ray = FakeRay({"a": 8.0, "b": 3.0, "c": 8.0})
    said = list[str]()
    held = ray.held(demand(2, ranks=2, cpus=3), said.append)
    assert held.hold(0.0)
    assert held.nodes == ["a", "c"]
    assert ray.bundles == [({"CPU": 6}, {"ray.io/node-id": name}) for name in ("a", "c")]


def test_too_few_resources_are_one_error_that_names_what_was_found() -> None:
    ray = FakeRay({"a": 8.0, "b": 3.0})
    held = ray.held(demand(2))
    expected = (
        r"^Ray has not enough resources within 5 s: expected 2 nodes with 8 free CPUs each, found "
        r"10\.0\.0\.1: 8 of 8 CPUs, 10\.0\.0\.2: 3 of 8 CPUs: add nodes"
    )
    with pytest.raises(RankError, match=expected):
        held.hold(0.0)


def test_the_log_says_once_what_is_waited_for() -> None:
    said = list[str]()
    held = FakeRay({"a": 3.0}).held(demand(1), said.append)
    with pytest.raises(RankError):
        held.hold(time.monotonic() + 1.0)
    assert said == [
        "waits for resources of Ray: expected 1 node with 8 free CPUs each, "
        "found 10.0.0.1: 3 of 8 CPUs"
    ]


def test_what_the_job_has_reserved_counts_as_free_when_it_needs_another_node() -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0})
    said = list[str]()
    held = ray.held(demand(2), said.append)
    assert held.hold(0.0)
    ray.lose("a")
    ray._private.state.available_resources_per_node()["b"]["CPU"] = 0.0  # by this job itself
    ray.add("c")
    assert held.hold(0.0)
    assert held.nodes == ["c", "b"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of a Reservation: `sleep` makes it later, and then calls `after`."""
    now = SimpleNamespace(at=0.0, after=lambda: None)

    def sleep(seconds: float) -> None:
        now.at += seconds
        now.after()

    fake = SimpleNamespace(monotonic=lambda: now.at, sleep=sleep)
    monkeypatch.setattr("paddlebox.tools.on_ray.placement.time", fake)
    now.sleep = sleep
    return now


def watch(held: Reservation, clock: SimpleNamespace, seconds: float) -> bool:
    """Let a job watch the cluster for so long. Returns whether it grows then."""
    until = clock.at + seconds
    while clock.at < until:
        held.watch()
        clock.sleep(1.0)
    return held.grow()


def test_a_job_goes_on_with_fewer_nodes_when_no_other_has_come_for_the_stated_time(
    clock: SimpleNamespace,
) -> None:
    said = list[str]()
    ray = FakeRay({"a": 8.0, "b": 8.0, "c": 8.0})
    held = ray.held(demand(2, 3), said.append)
    assert held.hold(600.0)
    assert (held.nodes, clock.at) == (["a", "b", "c"], 0.0)
    ray.lose("b")
    assert held.hold(600.0)
    assert held.nodes == ["a", "c"]
    assert clock.at == pytest.approx(60.0, abs=1.0)
    assert said == [
        "waits for resources of Ray: expected 2 to 3 nodes with 8 free CPUs each, found 10.0.0.1: "
        "8 of 8 CPUs, 10.0.0.2: 8 of 8 CPUs; it wants 3, and goes on with fewer after 60 s",
        "goes on with 2 nodes instead of 3",
    ]


def test_a_node_that_takes_the_place_of_a_lost_one_in_time_keeps_the_number(
    clock: SimpleNamespace,
) -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0})
    held = ray.held(demand(1, 2))
    assert held.hold(600.0)
    ray.lose("a")
    clock.after = lambda: ray.add("c") if clock.at > 30.0 and "c" not in ray.available else None
    assert held.hold(600.0)
    assert held.nodes == ["c", "b"]
    assert clock.at < 60.0


def test_a_job_that_has_its_fewest_nodes_does_not_give_up(clock: SimpleNamespace) -> None:
    held = FakeRay({"a": 8.0}).held(demand(1, 2, wait_s=30.0, settle_s=60.0))
    assert held.hold(30.0)
    assert held.nodes == ["a"]


def test_fewer_nodes_than_the_fewest_are_an_error(clock: SimpleNamespace) -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0, "c": 8.0})
    held = ray.held(demand(2, 3))
    assert held.hold(600.0)
    ray.lose("b")
    ray.lose("c")
    with pytest.raises(RankError, match=r"expected 2 to 3 nodes with 8 free CPUs each, found 10"):
        held.hold(600.0)


def test_a_job_grows_when_a_node_has_had_room_for_the_stated_time(clock: SimpleNamespace) -> None:
    ray = FakeRay({"a": 8.0})
    held = ray.held(demand(1, 3))
    clock.at = 100.0
    assert held.hold(1000.0)
    assert not watch(held, clock, 100.0)
    ray.add("b")
    assert not watch(held, clock, 50.0)
    ray.add("c")
    assert watch(held, clock, 15.0)
    assert held.hold(clock.at)
    assert held.nodes == ["a", "b", "c"]
    ray.add("d")
    assert not watch(held, clock, 100.0)


def test_a_job_that_was_killed_starts_again_on_its_nodes_and_grows_later(
    clock: SimpleNamespace,
) -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0, "c": 8.0})
    assert ray.held(demand(1, 3)).hold(600.0)
    ray.lose("a")
    held = ray.held(demand(1, 3))
    assert held.hold(600.0)
    assert held.nodes == ["b", "c"]
    ray.available = {"d": 8.0, **ray.available}  # the first one by its address
    ray.add("d")
    again = ray.held(demand(1, 3))
    assert again.hold(600.0)
    assert again.nodes == ["b", "c"]
    assert watch(again, clock, 100.0)
    ray.lose("b")
    lost = ray.held(demand(1, 2))  # it waits for as many nodes as it may have
    assert lost.hold(600.0)
    assert lost.nodes == ["d", "c"]


def test_a_job_that_was_killed_waits_until_ray_has_freed_its_nodes(clock: SimpleNamespace) -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0})
    assert ray.held(demand(2, 3, settle_s=5.0)).hold(600.0)
    ray.add("c")
    free = ray._private.state.available_resources_per_node()
    free["a"]["CPU"] = 0.0

    def change() -> None:
        free["a"]["CPU"] = 8.0 * (clock.at > 3.0)

    clock.after = change
    again = ray.held(demand(2, 3))
    assert again.hold(600.0)
    assert again.nodes == ["a", "b"]


def test_a_node_that_comes_and_goes_does_not_let_the_job_grow(clock: SimpleNamespace) -> None:
    ray = FakeRay({"a": 8.0})
    held = ray.held(demand(1, 3))
    assert held.hold(600.0)
    for number in range(10):
        ray.add(f"flaps {number}")  # a raylet that starts again has another id
        assert not watch(held, clock, 40.0)
        ray.lose(f"flaps {number}")
        assert not watch(held, clock, 40.0)


def test_a_node_that_is_gone_before_the_ranks_have_stopped_is_not_waited_for_longer_than_stated(
    clock: SimpleNamespace,
) -> None:
    ray = FakeRay({"a": 8.0, "b": 8.0})
    ray.lose("b")
    held = ray.held(demand(1, 3))
    assert held.hold(600.0)
    ray.add("b")
    ray.add("c")
    assert watch(held, clock, 100.0)
    ray.lose("c")
    before = clock.at
    assert held.hold(clock.at + 600.0)
    assert (held.nodes, clock.at) == (["a", "b"], before)


def grown(clock: SimpleNamespace, most: int, **free: float) -> tuple[FakeRay, Reservation]:
    """A job of the nodes a and b that has grown, and its cluster."""
    ray = FakeRay({"a": 8.0, "b": 8.0})
    held = ray.held(demand(1, most))
    clock.at = 100.0
    ray.lose("a")
    ray.add("a")
    held._wanted = 2
    assert held.hold(600.0)
    for name in free:
        ray.add(name)
    assert watch(held, clock, 100.0)
    assert held.hold(clock.at)
    return ray, held


def test_a_job_that_has_not_grown_does_not_go_back(clock: SimpleNamespace) -> None:
    held = FakeRay({"a": 8.0}).held(demand(1, 2))
    assert held.hold(600.0)
    assert not held.undo_growth({0})
    assert held.nodes == ["a"]


def test_a_growth_that_was_confirmed_is_not_undone(clock: SimpleNamespace) -> None:
    _, held = grown(clock, 3, c=8)
    assert held.grown
    held.confirm_growth()
    assert not held.grown
    assert not held.undo_growth({2})
    assert held.nodes == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("failed", "refused", "goes_on_with", "grows_to"),
    [
        (set(), ["10.0.0.3", "10.0.0.4"], "b a", ""),  # it is not known which
        ({0, 3}, ["10.0.0.4"], "b a", "b a c"),
        ({1}, [], "b a c d", ""),  # a node that the job had before
    ],
)
def test_a_growth_is_undone_without_the_nodes_that_have_failed(
    failed: set[int], refused: list[str], goes_on_with: str, grows_to: str, clock: SimpleNamespace
) -> None:
    ray, held = grown(clock, 4, c=8, d=8)
    before = clock.at
    assert held.undo_growth(failed) == refused
    assert held.hold(clock.at)
    assert (held.nodes, clock.at) == (goes_on_with.split(), before)
    assert watch(held, clock, 100.0) == bool(grows_to)
    assert held.nodes == (grows_to or goes_on_with).split()
    assert sorted(node for nodes in ray.reserved for node in nodes) == sorted(held.nodes)


def test_a_growth_is_not_undone_if_a_former_node_is_lost(clock: SimpleNamespace) -> None:
    ray, held = grown(clock, 3, c=8)
    ray.lose("a")
    assert not held.undo_growth({1, 2})
    assert held.hold(clock.at + 600.0)
    assert held.nodes == ["b", "c"]


def test_a_refused_node_is_only_taken_if_the_job_has_too_few_others(
    clock: SimpleNamespace,
) -> None:
    ray, held = grown(clock, 3, c=8)
    assert held.undo_growth({2})
    ray.lose("a")
    before = clock.at
    assert held.hold(clock.at + 600.0)
    assert held.nodes == ["b"]
    assert clock.at == pytest.approx(before + 60.0, abs=1.0)
    ray.lose("b")
    assert held.hold(clock.at + 600.0)
    assert held.nodes == ["c"]
    for name in "def":
        ray.add(name)
    assert watch(held, clock, 100.0)
    assert held.nodes == ["c", "d", "e"]  # no more than it may have
    ray.lose("d")
    assert held.hold(clock.at + 600.0)
    assert "c" in held.nodes


def test_a_job_keeps_its_nodes_while_it_asks_for_more(clock: SimpleNamespace) -> None:
    ray = FakeRay({"a": 8.0})
    ray.sleep = clock.sleep  # type: ignore[method-assign]
    held = ray.held(demand(1, 2))
    held._wanted = 1
    assert held.hold(600.0)
    ray.add("b")
    ray.granted = False  # another job has taken it in the meantime
    assert not watch(held, clock, 100.0)
    assert (held.nodes, held.grown, ray.reserved) == (["a"], False, [["a"]])
    ray.granted = True
    assert not watch(held, clock, 50.0)
    assert watch(held, clock, 15.0)
    assert ray.reserved == [["a"], ["b"]]
    assert [(held.bundle(at)[0].nodes, held.bundle(at)[1]) for at in (0, 1)] == [
        (["a"], 0),
        (["b"], 0),
    ]
    held.release()
    assert ray.reserved == []


def test_nodes_that_come_back_get_the_places_that_they_had_in_a_job_of_this_number(
    clock: SimpleNamespace,
) -> None:
    """Their disks may have the stores of these ranks, if the rows have not moved since."""
    ray = FakeRay({"a": 8.0, "b": 8.0, "c": 8.0})
    held = ray.held(demand(2, 3))
    assert held.hold(600.0)
    ray.lose("b")
    assert held.hold(600.0)
    assert held.nodes == ["a", "c"]
    ray.add("b")
    assert watch(held, clock, 100.0)
    assert held.hold(600.0)
    assert held.nodes == ["a", "b", "c"]


def test_a_job_that_was_killed_and_starts_again_finds_its_nodes_in_their_places(
    clock: SimpleNamespace,
) -> None:
    ray = FakeRay({"b": 8.0, "c": 8.0})
    held = ray.held(demand(1, 2))
    assert held.hold(600.0)
    ray.lose("b")
    ray.available = {"a": 8.0, **ray.available}
    ray.add("a")
    assert held.hold(600.0)
    assert held.nodes == ["a", "c"]
    ray.lose("a")
    ray.add("d")
    assert held.hold(600.0)
    assert held.nodes == ["d", "c"]
    ray.add("e")
    ray.available = {"e": 8.0, **ray.available}  # the first one by its address
    again = ray.held(demand(1, 2))
    assert again.hold(600.0)
    assert again.nodes == ["d", "c"]
    other = Reservation(ray, demand(1, 2), Places(ray, "other"), lambda: False, print)
    assert other.hold(600.0)
    assert other.nodes == ["e", "c"]


def test_ranks_get_the_variables_of_paddles_launcher() -> None:
    endpoints = [(f"10.0.0.{1 + rank // 2}:{rank}", f"10.0.0.1:9{rank}") for rank in range(4)]
    last = variables_of(endpoints, per_node=2)[3]
    assert last == {
        "PADDLE_TRAINER_ID": "3",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_LOCAL_RANK": "1",
        "PADDLE_LOCAL_SIZE": "2",
        "PADDLE_NNODES": "2",
        "PADDLE_MASTER": "10.0.0.1:90",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:3",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:0,10.0.0.1:1,10.0.0.2:2,10.0.0.2:3",
        mpi.HOST: "2",
    }


class FakeActor:
    """An actor whose calls get the same answer, at once."""

    def __init__(self, answer: Any) -> None:
        self.calls = list[tuple[str, Any]]()
        for name in ("endpoints", "join", "exchange", "close"):
            call = SimpleNamespace(remote=functools.partial(self._call, name, answer))
            setattr(self, name, call)

    def _call(self, name: str, answer: Any, *arguments: Any) -> tuple[str, int, Any]:
        self.calls.append((name, arguments))
        return name, len(self.calls), answer


class FakeActors:
    """As much of Ray as a Team needs."""

    exceptions = SimpleNamespace(RayError=ValueError)

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.killed = 0
        self.actors = list[FakeActor]()
        self.arguments = list[Any]()  # of the constructors
        strategy = SimpleNamespace(PlacementGroupSchedulingStrategy=lambda _, at: at)
        self.util = SimpleNamespace(scheduling_strategies=strategy)

    def remote(self, actor: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._make))

    def _make(self, *arguments: Any) -> FakeActor:
        self.arguments.append(arguments)
        self.actors.append(FakeActor(next(self._answers)))
        return self.actors[-1]

    def wait(self, calls: Any, **_: Any) -> tuple[list[Any], list[Any]]:
        there = [call for call in calls if call[2] != "silent"]
        return there, [call for call in calls if call not in there]

    def get(self, call: Any) -> Any:
        if isinstance(call, list):
            return [self.get(one) for one in call]
        if isinstance(call[2], Exception):
            raise call[2]
        return call[2]

    def kill(self, _: Any) -> None:
        self.killed += 1


def team(*answers: Any, arguments: tuple[Any, ...] = ()) -> tuple[Team, FakeActors]:
    ray = FakeActors(*answers)
    held = SimpleNamespace(
        bundle=lambda at: (None, at), nodes=["a"], address_of=lambda _: "10.0.0.3"
    )
    return Team(ray, held, len(answers), 1, *arguments), ray  # type: ignore[arg-type]


def test_the_environment_of_a_rank_is_no_argument_of_its_constructor() -> None:
    """Ray keeps those arguments in its GCS."""
    one, ray = team(("10.0.0.1:1", "10.0.0.1:2"), arguments=(["train.py"], "/folder", 1.0))
    assert one.assemble({"KEY": "secret"}, 1.0, lambda: True)
    assert ray.arguments == [(0, ["train.py"], "/folder", 1.0)]
    name, (environment,) = ray.actors[0].calls[-1]
    assert (name, environment["KEY"], environment["PADDLE_TRAINER_ID"]) == ("join", "secret", "0")


_CREATION = """The actor died because of an error raised in its creation task, \x1b[36mray::Rank
  File "rank.py", line 55, in __init__
    os.chdir(folder)
FileNotFoundError: [Errno 2] No such file or directory: '/folder'
"""


def test_an_actor_whose_constructor_fails_is_one_error_without_another_try() -> None:
    one, _ = team(ValueError(_CREATION))
    expected = (
        r" on 10\.0\.0\.3: its actor cannot be started: FileNotFoundError: .*No such .*'/folder'$"
    )
    with pytest.raises(ConfigError, match=f"^rank 0{expected}"):
        one.assemble({}, 1.0, lambda: True)
    for first in (("10.0.0.1:1", "10.0.0.1:2"), "silent"):  # the second does not wait for it
        two, _ = team(first, ValueError(_CREATION))
        with pytest.raises(ConfigError, match=f"^rank 1{expected}"):
            two.assemble({}, 1.0, lambda: True)
        assert two.failed == {1}


def test_an_actor_that_does_not_start_is_an_error_that_names_its_rank_and_node() -> None:
    one, _ = team(ValueError("Its node\nwas terminated."))
    told = r"^rank 0 on 10\.0\.0\.3: its actor could not be started: Its node was terminated\.$"
    with pytest.raises(RankError, match=told):
        one.assemble({}, 1.0, lambda: True)
    two, _ = team(("10.0.0.1:1", "10.0.0.1:2"), "silent")
    told = r"^rank 1 on 10\.0\.0\.3: its actor has not started within 0.05 s$"
    with pytest.raises(RankError, match=told):
        two.assemble({}, 0.05, lambda: True)
    assert two.failed == {1}


def test_an_actor_has_a_name_also_after_an_error_in_its_constructor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray asks for the name then, and ends the process without the error if it gets none."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    actor = RankActor.__new__(RankActor)
    with pytest.raises(FileNotFoundError):
        RankActor.__init__(actor, 3, ["train.py"], str(tmp_path / "gone"), 1.0)
    assert repr(actor) == "rank 3"


def test_an_actor_that_the_job_no_longer_asks_ends_and_one_that_is_asked_does_not() -> None:
    ended = threading.Event()
    silence = Silence(ended.set, look_s=0.002)
    silence.watch()
    until = time.monotonic() + 4 * ABANDONED_LOOKS * 0.002
    while time.monotonic() < until:
        silence.heard()
        assert not ended.is_set()
        time.sleep(0.001)
    assert ended.wait(PATIENCE_S)


def test_a_lost_actor_and_a_silent_one_are_told_from_one_that_reports() -> None:
    died = ValueError("The actor died.\n\tactor_id: 7\n\tpid: 5\nIts node\nwas terminated.")
    three, ray = team(Report(attempt=1), died, "silent")
    assert not three.spent
    reports, lost = three.exchange(Order())
    assert reports == {0: Report(attempt=1)}
    assert lost == {1: "The actor died. Its node was terminated."}
    assert three.spent
    looks = 1
    while not (found := three.exchange(Order())[1]):
        looks += 1
    assert (looks, found) == (75, {2: "no answer for 15 s"})
    three.dismiss()
    assert ray.killed == 3


def test_a_team_whose_ranks_were_started_is_not_used_again() -> None:
    one, _ = team(Report())
    one.exchange(Order())
    assert not one.spent
    one.exchange(Order("run", 1))
    assert one.spent


class FakeTeam:
    """Ranks that end a pass with every order, after 300 s are done, and tell what happens."""

    happened: list[str]
    cluster: FakeRay
    passes: int
    clock: SimpleNamespace
    kills: tuple[tuple[int, str], ...] = ()  # rank, stage: of the attempts with several nodes
    starts_late: int = 0  # how many actors of one node could not be started after "no-ray"

    def __init__(self, ray: FakeRay, held: Reservation, *_: Any) -> None:
        self.nodes, self.size, self.spent = held.nodes, len(held.nodes), False
        self.failed = set[int]()
        self._code: int | None = None
        self._attempt = 0
        self._stage, self._killed = "step", -1
        if {"fails", "no-program"} & {*self.nodes}:
            self._stage = "start"

    def assemble(self, *_: Any) -> bool:
        if "no-folder" in self.nodes:
            raise ConfigError("an actor cannot be started")
        if "no-ray" in self.nodes:
            self.clock.sleep(600.0)
            raise RankError("an actor could not be started")
        if "no-ray" in self.cluster.available and self.starts_late:
            type(self).starts_late -= 1
            raise RankError("an actor could not be started")
        return True

    def exchange(self, order: Order) -> tuple[dict[int, Report], dict[int, str]]:
        cls = type(self)
        gone = [rank for rank, node in enumerate(self.nodes) if node not in self.cluster.available]
        if gone and not self.spent:
            return {}, {}
        if order.do == "run" and order.attempt > self._attempt:
            self.happened.append(" ".join(self.nodes))
            self._attempt, self.spent = order.attempt, True
        if self._attempt and self._code is None:
            cls.passes += 1
            if order.do == "stop":
                self._code = 143
            elif len(self.nodes) > 1 and cls.kills:
                (self._killed, self._stage), *rest = cls.kills
                self._code, cls.kills, cls.passes = -9, (*rest,), cls.passes - 1
            elif "fails" in self.nodes:
                self._code, cls.passes = 2, cls.passes - 1
            elif order.do == "end":
                self._code = -9
            elif self.clock.at > 300.0:
                self._code = 0
        ranks = [
            Rank(rank, 1, "host", self._stage, "7", 20, self.passes, 0.1, "S", "", code)
            for rank, code in self._codes(order)
        ]
        reports = {rank.number: Report(self._attempt, rank) for rank in ranks} or {
            rank: Report(self._attempt) for rank in range(self.size)
        }
        if self._attempt and "no-program" in self.nodes:  # no heartbeat
            at = self.nodes.index("no-program")
            rank = Rank(at, 1, "host", "start", "", 0, -1, 0.1, "", "", 2)
            reports[at] = Report(self._attempt, rank)
        lost = dict.fromkeys(gone, "its node was terminated")
        self.nodes = [node if node in self.cluster.available else "" for node in self.nodes]
        return {r: one for r, one in reports.items() if r not in lost}, lost

    def _codes(self, order: Order) -> list[tuple[int, int | None]]:
        """Ranks with their exit codes: one is killed, and the others when the job says so."""
        alone = self._killed >= 0 and order.do == "run"
        return [
            (rank, None if alone and rank != self._killed else self._code)
            for rank in range(self.size if self._attempt else 0)
        ]

    def dismiss(self) -> None:
        pass


def drive(
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    nodes: str,
    span: tuple[int, int],
    **more: Any,
) -> tuple[Callable[[], int], FakeRay, list[str]]:
    """A job on these nodes, its cluster, and the nodes of each of its attempts."""
    ray, happened = FakeRay(dict.fromkeys(nodes.split(), 8.0)), list[str]()
    fake = SimpleNamespace(monotonic=lambda: clock.at, sleep=clock.sleep, strftime=time.strftime)
    monkeypatch.setattr("paddlebox.tools.on_ray.cli.time", fake)
    state = {"happened": happened, "cluster": ray, "passes": 5, "clock": clock, **more}
    monkeypatch.setattr("paddlebox.tools.on_ray.cli.Team", type("Team", (FakeTeam,), state))
    job = Job(0, 2, LIMITS_S, print, clock=lambda: clock.at)
    arguments = (["train.py", "--run-dir", "/run"], "/folder", 1.0)
    asked = demand(*span, ranks=1, cpus=8, wait_s=60.0)
    return _Drive(ray, job, asked, {}, arguments, lambda: 0).run, ray, happened


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("b", ["a", "a b"]),
        ("no-folder", ["a", "a"]),  # its actor cannot start
        ("no-ray", ["a", "a"]),
        ("fails", ["a", "a fails", "a"]),  # with an exit code that ends other jobs
    ],
)
def test_a_job_grows_between_passes_and_goes_back_if_it_cannot_run_on_the_new_nodes(
    added: str, expected: list[str], clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ray, happened = drive(clock, monkeypatch, "a", (1, 2))
    clock.after = lambda: ray.add(added) if clock.at > 100 and added not in ray.available else None
    assert run() == 0
    assert happened == expected


def test_a_job_that_goes_back_names_the_nodes_that_it_does_not_use_again(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr("paddlebox.tools.on_ray.cli._say", said.append)
    run, ray, _ = drive(clock, monkeypatch, "a", (1, 2))
    clock.after = lambda: ray.add("fails") if clock.at > 100 else None
    assert run() == 0
    told = (
        "the ranks failed: the job goes on with the nodes that it had before it grew, and does not "
        "use 10.0.0.2 again until Ray is restarted there"
    )
    assert told in said


def test_a_node_on_which_the_program_is_missing_is_told_from_other_new_nodes(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ray, happened = drive(clock, monkeypatch, "a", (1, 3))

    def change() -> None:
        if clock.at > 70.0 and "b" not in ray.available:
            ray.add("b")
            ray.add("no-program")

    clock.after = change
    assert run() == 0
    assert happened == ["a", "a b no-program", "a", "a b"]


def test_a_job_does_not_go_back_because_a_rank_on_a_former_node_was_killed(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ray, happened = drive(clock, monkeypatch, "a", (1, 2), kills=(*[(0, "start")] * 2,))
    clock.after = lambda: ray.add("b") if clock.at > 100 and "b" not in ray.available else None
    assert run() == 0
    assert happened == ["a", "a b", "a b", "a b"]


def test_a_job_does_not_go_back_once_the_rows_may_have_moved(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = (1, "load"), (1, "start")
    run, ray, happened = drive(clock, monkeypatch, "a", (1, 2), kills=kills)
    clock.after = lambda: ray.add("b") if clock.at > 100 and "b" not in ray.available else None
    assert run() == 0
    assert happened == ["a", "a b", "a b", "a b"]


def test_a_job_that_goes_back_has_the_whole_time_to_wait(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ray, happened = drive(clock, monkeypatch, "a", (1, 2), starts_late=1)
    clock.after = lambda: ray.add("no-ray") if clock.at > 100 else None
    assert run() == 0
    assert happened == ["a", "a"]


def test_a_job_that_may_not_grow_does_not(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, happened = drive(clock, monkeypatch, "a b c", (2, 2))
    assert run() == 0
    assert happened == ["a b"]


def test_a_job_loses_a_node_goes_on_without_it_and_takes_it_again(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ray, happened = drive(clock, monkeypatch, "a b", (1, 2))

    def change() -> None:
        if 50.0 < clock.at < 150.0:
            ray.available.pop("a", None)
        elif "a" not in ray.available:
            ray.add("a")

    clock.after = change
    assert run() == 0
    assert happened == ["a b", "b", "a b"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["tools/train.py", "--run-dir", "/runs/a", "-c", "b"], "/runs/a"),
        (["tools/train.py", "--run-dir=/runs/a"], "/runs/a"),
        (["tools/train.py", "--run-dir"], ""),
        (["tools/train.py"], ""),
    ],
)
def test_metrics_are_found_by_the_run_dir_of_the_command(command: list[str], expected: str) -> None:
    assert run_dir_of(command) == expected


def test_values_of_the_last_pass_and_of_the_rank_are_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, float] = {}

    class Gauge:
        def __init__(self, name: str, about: str, tags: tuple[str, ...]) -> None:
            self._name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags == {"run": str(tmp_path), "rank": "0"}
            told[self._name] = value

    monkeypatch.setitem(sys.modules, "ray.util.metrics", SimpleNamespace(Gauge=Gauge))
    gauges = Gauges(0, str(tmp_path))
    rank = Rank(0, 1, "host", "step", "7", 20, 3, 1.5, "S", "")
    gauges.report = Report(1, rank)
    gauges.set()
    assert told == {"paddlebox_rank_passes": 3, "paddlebox_rank_idle_seconds": 1.5}
    line = {"pass": 2, "loss": 0.5, "samples_per_s": 1e3, "metrics": {"auc": 0.75, "copc": None}}
    (tmp_path / "metrics.jsonl").write_text("{}\n" + json.dumps(line) + "\n{")
    gauges.set()
    names = ("pass", "loss", "samples_per_s", "auc")
    assert {told[f"paddlebox_train_{name}"] for name in names} == {2.0, 0.5, 1e3, 0.75}
    assert values_of(line).keys() == {*names}


def test_metrics_with_the_names_of_values_of_a_line_do_not_hide_them() -> None:
    metrics = {"loss": {"auc": 0.6}, "pass": {"auc": 0.6}, "auc": 0.75, "copc": float("nan")}
    line = {"pass": 2, "loss": 0.5, "metrics": metrics}
    assert values_of(line) == {"pass": 2.0, "loss": 0.5, "auc": 0.75}


@pytest.mark.parametrize("text", ["", "\n", "[]\n", "{\n", '{"metrics": 3}\n', "\0\n"])
def test_a_file_of_metrics_that_cannot_be_read_ends_no_rank(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[float]()
    gauge = SimpleNamespace(set=lambda value, **_: told.append(value))
    module = SimpleNamespace(Gauge=lambda *_: gauge)
    monkeypatch.setitem(sys.modules, "ray.util.metrics", module)
    gauges = Gauges(0, str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text(text)
    gauges.set()
    assert not told
    (tmp_path / "metrics.jsonl").write_text(text + '{"loss": 0.5}\n')
    gauges.set()
    assert told == [0.5]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(
            (["--nodes", found], f"expected N or MIN:MAX with 1 <= MIN <= MAX, found '{found}'")
            for found in ("0", "3:2", "0:2", "2:", ":2", "1:2:3", "x", "-1")
        ),
        (["--cpus-per-rank", "x"], "--cpus-per-rank: expected an integer of at least 1, found 'x'"),
    ],
)
def test_a_wrong_number_is_one_error(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        train_on_ray_main([*options, "--", "tools/train.py"])
    assert told in capsys.readouterr().err


def test_a_wrong_limit_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_on_ray_main(["--limit", "walk=3", "--", "tools/train.py"]) == 2
    assert "ConfigError: --limit walk=3: expected STAGE=S" in capsys.readouterr().err


def test_no_cluster_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("util.placement_group", "util.scheduling_strategies", "experimental.internal_kv")
    for name in ("ray", *(f"ray.{name}" for name in names)):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert train_on_ray_main(["--address", address, "--", "tools/train.py"]) == 2
    told = f"ConfigError: --address {address}: cannot connect to a Ray cluster: [Errno 111] "
    assert told in capsys.readouterr().err


def test_without_ray_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert train_on_ray_main(["--", "tools/train.py"]) == 2
    assert "pip install 'paddlebox[ray]'" in capsys.readouterr().err
