"""Job: what the supervisors of all nodes do next, decided in one place from what each reports.

gather   until every node is there and none of its processes lives
run      until a rank dies, hangs, or all are done
end      after a failure: until nothing lives on any node; then gather again, or give up
stop     a signal came: each rank ends its pass
exit     every supervisor ends with one code
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Exit codes (docs/running.md) that another try would only repeat.
FINAL = {2: "configuration", 3: "data", 5: "training", 6: "lock", 7: "guard"}
STOPPED = {130, 143}
#: Seconds without progress, by stage. Gloo gives up on a peer after 30 s in a step.
LIMITS_S: dict[str, float] = {
    "start": 300.0, "load": 3600.0, "step": 25.0, "commit": 1800.0, "evaluate": 3600.0,
    "end": 1800.0, "rescue": 1800.0,
}  # fmt: skip
LONGEST_PAUSE_S = 60.0
_HELD = ("T", "t")  # states of a process that a signal, or a debugger, has stopped
_SLOW_S, _SLOW_LOOKS = 30.0, 50  # a window, and the fewest looks in it
_SLOW_BUSY, _SLOW_OTHERS = 0.8, 0.5


@dataclass(frozen=True)
class Rank:
    """As its node saw it last."""

    number: int
    pid: int
    host: str
    stage: str
    text: str
    count: int  # grows with every step and stage
    passes: int  # committed by all
    idle_s: float  # since the count grew
    state: str  # of the process, as in /proc: R, S, D, T; "" when it has ended
    waits: str  # "RANK what": whom it waits for, as far as it knows
    code: int | None = None  # exit code, negative for a signal; None while it lives

    def __str__(self) -> str:
        return f"rank {self.number} (process {self.pid} on {self.host})"

    @property
    def doing(self) -> str:
        stopped = {"T": ", stopped by a signal", "D": ", waiting for a disk"}.get(self.state, "")
        waits = f", waiting for rank {self.waits}" if self.waits else ""
        return f"{self.stage} {self.text}".rstrip() + f" for {self.idle_s:.0f} s{stopped}{waits}"

    @property
    def end(self) -> str:
        if self.code is None:
            return self.doing
        how = f"killed by signal {-self.code}" if self.code < 0 else f"ended with {self.code}"
        return f"{how} in {self.stage} {self.text}".rstrip()


@dataclass(frozen=True)
class Report:
    """Of one node."""

    attempt: int = 0
    up: bool = False  # any process of the attempt lives
    launcher: int | None = None  # its exit code
    ranks: Sequence[Rank] = ()
    signal: int = 0  # that came to the supervisor


@dataclass(frozen=True)
class Order:
    """To every node."""

    do: str = "wait"  # wait, run, end, stop, exit
    attempt: int = 0
    code: int = 0
    used: int = 0  # tries; for the node that decides next, if this one is gone


@dataclass
class Job:
    """Args: nodes: how many there are. tries: failures without a new commit between them before
    it gives up. wait_s: for nodes that are not there. say: gets each line of the log."""

    nodes: int
    tries: int
    limits_s: Mapping[str, float]
    wait_s: float
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    attempt: int = 0
    used: int = 0
    phase: str = "gather"
    code: int = 0
    _reports: dict[str, Report] = field(default_factory=dict)
    _since: float = -1.0
    _not_before: float = 0.0
    _committed: int = -1  # passes, when the last failure came
    _looks: dict[int, deque[tuple[float, bool]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def hear(self, node: str, report: Report) -> None:
        self._reports[node] = report
        self.attempt = max(self.attempt, report.attempt)
        for rank in report.ranks:
            if self.phase == "run" and rank.stage == "step" and rank.code is None:
                looks = self._looks.setdefault(rank.number, deque())
                looks.append((self.clock(), rank.state != "S"))
                while looks[0][0] < self.clock() - _SLOW_S:
                    looks.popleft()

    def lose(self, node: str, why: str) -> None:
        """A node is not there any more."""
        if self._reports.pop(node, None) is not None:
            if self.phase == "run":
                self._fail([f"node {node}: {why}"])
            elif self.phase != "exit":
                self.say(f"node {node}: {why}")

    def order(self) -> Order:
        """What every node does now."""
        getattr(self, f"_{self.phase}")()
        return Order(
            {"gather": "wait"}.get(self.phase, self.phase), self.attempt, self.code, self.used
        )

    # ---- phases

    def _gather(self) -> None:
        now = self.clock()
        if self._signal():
            self._leave(128 + self._signal())
        elif len(self._reports) == self.nodes and self._all_down() and now >= self._not_before:
            self.attempt += 1
            self._looks.clear()
            self.say(f"attempt {self.attempt} begins")
            self._enter("run")
        elif now - self._since > self.wait_s:
            there = ", ".join(sorted(self._reports)) or "none"
            self.say(f"{self.nodes} nodes expected, for {self.wait_s:g} s; there are: {there}")
            self._leave(1)

    def _run(self) -> None:
        if self._signal() or self._was_stopped():
            self.say("a signal: every rank ends its pass, and is not started again")
            self._enter("stop")
            return
        reports = list(self._reports.values())
        if any(report.attempt != self.attempt for report in reports):
            return  # not begun everywhere
        if all(
            report.launcher is not None and not report.up and _good(report) for report in reports
        ):
            self._leave(0)
            return
        dead = sorted((rank for rank in self._ranks() if rank.code), key=lambda r: r.code or 0)
        wrong = [f"{rank}: {rank.end}" for rank in dead]  # those that were killed first
        for node, report in self._reports.items():
            if report.launcher is not None and not _good(report) and not wrong:
                wrong.append(f"node {node}: the launcher ended with {report.launcher}")
            unbegun = not report.ranks and report.launcher is None
            if unbegun and self.clock() - self._since > self.limits_s["start"]:
                wrong.append(f"node {node}: no rank has begun in {self.limits_s['start']:g} s")
        wrong = wrong or self._stalled()
        if wrong:
            self._fail(wrong)
        else:
            self._tell_slow()

    def _end(self) -> None:
        if not self._all_down():
            return
        final = self._final()
        if self._signal():
            self._leave(128 + self._signal())
        elif final:
            self.say(
                f"exit code {final} ({FINAL[final]}): another try would only repeat it; "
                "why is above, or in workerlog.<rank> of the launcher's --log_dir (default: log)"
            )
            self._leave(final)
        elif self.used > self.tries:
            codes = [rank.code for rank in self._ranks() if rank.code is not None and rank.code > 0]
            self.say(f"{self.used} failures without a new commit: gives up")
            self._leave(next((code for code in codes if code not in STOPPED), 1))
        else:
            pause = min(LONGEST_PAUSE_S, 2.0 ** (self.used - 1))
            self._not_before = self.clock() + pause
            self.say(f"try {self.used} of {self.tries}, in {pause:g} s, from what is committed")
            self._enter("gather")

    def _stop(self) -> None:
        if self._all_down():
            codes = {rank.code for rank in self._ranks() if rank.code is not None}
            stopped = max(codes & STOPPED, default=143)
            done = bool(codes) and codes == {0}
            signal = self._signal()
            self._leave(self._final() or (0 if done else 128 + signal if signal else stopped))

    def _exit(self) -> None:
        """For good."""

    # ---- what they ask

    def _ranks(self) -> list[Rank]:
        """Of this attempt: a node may still tell how those of the one before have ended."""
        reports = [report for report in self._reports.values() if report.attempt == self.attempt]
        found = [rank for report in reports for rank in report.ranks]
        return sorted(found, key=lambda rank: rank.number)

    def _signal(self) -> int:
        return max((report.signal for report in self._reports.values()), default=0)

    def _all_down(self) -> bool:
        return not any(report.up for report in self._reports.values())

    def _final(self) -> int:
        unbegun = [report.launcher for report in self._reports.values() if not report.ranks]
        codes = [*(rank.code for rank in self._ranks()), *unbegun]
        return next((code for code in codes if code in FINAL), 0) or 0

    def _was_stopped(self) -> bool:
        """Whether a signal has come to a rank, and not from the launcher, which ends the others
        when one was killed or has failed. 1 may be that of a rank which misses the one that
        ended."""
        codes = {rank.code for rank in self._ranks() if rank.code is not None}
        return bool(codes & STOPPED) and codes <= {0, 1, *STOPPED}

    def _stalled(self) -> list[str]:
        alive = [rank for rank in self._ranks() if rank.code is None]
        # Outside of a step a rank may wait for another as long as that one comes forward.
        judged = [
            rank for rank in alive if not rank.waits or rank.stage == "step" or rank.state in _HELD
        ] or alive
        if not any(rank.idle_s > self._limit_s(rank) for rank in judged):
            return []
        return [f"{rank}: no progress in {rank.doing}" for rank in suspects(alive)]

    def _limit_s(self, rank: Rank) -> float:
        stage = "step" if rank.state in _HELD else rank.stage  # no stage makes progress then
        return self.limits_s.get(stage, self.limits_s["end"])

    def _tell_slow(self) -> None:
        """Steps are common: who makes the others wait is busy while they are not."""
        if len(self._looks) < 2 or any(len(seen) < _SLOW_LOOKS for seen in self._looks.values()):
            return
        busy = {
            number: sum(at for _, at in seen) / len(seen) for number, seen in self._looks.items()
        }
        slowest = max(busy, key=lambda number: busy[number])
        others = [share for number, share in busy.items() if number != slowest]
        if busy[slowest] >= _SLOW_BUSY and max(others) <= _SLOW_OTHERS:
            rank = next(rank for rank in self._ranks() if rank.number == slowest)
            self.say(
                f"{rank} is slow: it was busy or stopped at {busy[slowest]:.0%} of the looks of "
                f"{_SLOW_S:g} s, the others at {max(others):.0%} or less"
            )
            self._looks.clear()

    # ---- turns

    def _fail(self, wrong: Sequence[str]) -> None:
        for line in wrong:
            self.say(line)
        named = " ".join(wrong)
        for rank in self._ranks():
            if str(rank) not in named:
                self.say(f"  meanwhile {rank}: {rank.end}")
        committed = max((rank.passes for rank in self._ranks()), default=-1)
        self.used = 1 if committed > self._committed >= 0 else self.used + 1
        self._committed = max(committed, self._committed)
        self._enter("end")

    def _enter(self, phase: str) -> None:
        self.phase, self._since = phase, self.clock()

    def _leave(self, code: int) -> None:
        self.code = code
        self._enter("exit")


def suspects(ranks: Sequence[Rank]) -> list[Rank]:
    """Who of ranks that stand still together holds the others up: those that are stopped; else
    those that others wait for, and that wait for nobody; else those that have come least far."""
    if stopped := [rank for rank in ranks if rank.state in (*_HELD, "D")]:
        return stopped
    waited_for = {rank.waits.partition(" ")[0] for rank in ranks}
    if free := [rank for rank in ranks if str(rank.number) in waited_for and not rank.waits]:
        return free
    least = min((rank.count for rank in ranks), default=0)
    return [rank for rank in ranks if rank.count == least]


def _good(report: Report) -> bool:
    """Of a node whose launcher has ended: what ranks say counts more than what it says."""
    if report.ranks:
        return all(rank.code == 0 for rank in report.ranks)
    return report.launcher == 0
