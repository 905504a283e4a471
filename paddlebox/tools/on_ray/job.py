"""Job: decides what all ranks do next, from the reports of their actors.

gather   wait until every actor has reported and no process is left
run      until a rank dies or hangs, or all are done
end      after a failure: kill all processes; then gather again, or give up
stop     after a signal, or to gather other nodes: each rank ends its pass
exit     the job ends
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Exit codes (docs/running.md) of errors that a restart would only repeat.
FINAL = {2: "configuration", 3: "data", 5: "training", 6: "lock", 7: "guard"}
_LOCKED = 6
STOPPED = {130, 143}
#: Seconds without progress, by stage.
LIMITS_S: dict[str, float] = {
    "start": 300.0, "load": 3600.0, "step": 25.0, "commit": 1800.0, "evaluate": 3600.0,
    "end": 1800.0, "rescue": 1800.0,
}  # fmt: skip
LONGEST_PAUSE_S = 60.0
_HELD = ("T", "t")  # states of a process that a signal or a debugger has stopped
_SLOW_S, _SLOW_LOOKS = 30.0, 50  # a window of time, and the fewest looks in it
_SLOW_BUSY, _SLOW_OTHERS = 0.8, 0.5


@dataclass(frozen=True)
class Rank:
    """The process of a rank, as its actor reports it."""

    number: int
    pid: int
    host: str
    stage: str
    text: str
    count: int  # increases with every step and stage; 0 before the first report
    passes: int  # number of passes that all ranks have committed
    idle_s: float  # seconds since the count increased
    state: str  # state of the process as in /proc: R, S, D, T; "" if it has ended
    waits: str  # "RANK what": the rank that it waits for, if it knows
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
    """The report of an actor."""

    attempt: int = 0
    rank: Rank | None = None  # None: it has started no process

    @property
    def up(self) -> bool:
        return self.rank is not None and self.rank.code is None


@dataclass(frozen=True)
class Order:
    """An order to all actors."""

    do: str = "wait"  # wait, run, end, stop or exit
    attempt: int = 0
    code: int = 0


@dataclass
class Job:
    """The state of the job. It waits for ranks without a limit: a silent rank's actor is lost."""

    size: int  # number of ranks
    tries: int  # failures without a new commit between them, before the job gives up
    limits_s: Mapping[str, float]  # stage -> the longest time without progress
    say: Callable[[str], None]  # called with each line of the log
    clock: Callable[[], float] = time.monotonic
    signal: int = 0  # the last signal that the job received; 0: none
    attempt: int = 0
    used: int = 0
    phase: str = "gather"
    code: int = 0
    regroups: bool = False  # whether ranks end their pass in order to gather other nodes
    # Whether no exit code is final, because the ranks may start again on other nodes. It ends when
    # a rank leaves stage "start": then rows may have moved.
    trial: bool = False
    _reports: dict[int, Report] = field(default_factory=dict)
    _not_before: float = 0.0
    _committed: int = -1  # number of committed passes at the last failure
    _seen: int = -1  # the same in this attempt; -1: it has made no step yet
    _lost: bool = False  # whether lost ranks may still live and hold their locks
    _looks: dict[int, deque[tuple[float, bool]]] = field(default_factory=dict)

    def hear(self, number: int, report: Report) -> None:
        self._reports[number], rank = report, report.rank
        if rank is None:
            return
        self.trial = self.trial and rank.stage == "start"
        if self.phase == "run" and rank.stage == "step" and rank.code is None:
            samples = self._looks.setdefault(number, deque())
            samples.append((self.clock(), rank.state != "S"))
            while samples[0][0] < self.clock() - _SLOW_S:
                samples.popleft()

    def lose(self, number: int, why: str) -> None:
        if self._reports.pop(number, None) is not None:
            if self.phase == "run" or (self.phase == "stop" and self._may_regroup()):
                self._fail([f"rank {number}: {why}"])
            elif self.phase != "exit":
                self.say(f"rank {number}: {why}")
            self._lost = True

    def order(self) -> Order:
        """Decide what every rank does now."""
        getattr(self, f"_{self.phase}")()
        return Order({"gather": "wait"}.get(self.phase, self.phase), self.attempt, self.code)

    def expect(self, size: int) -> None:
        """Gather other actors, in place of those that have reported."""
        self.size = size
        self._reports.clear()

    def ended_pass(self) -> bool:
        """Whether all ranks have committed another pass of this attempt since this last returned
        True, and the next pass has begun."""
        if self.phase != "run" or not (self._looks or self._seen >= 0):
            return False
        ranks, before = self._ranks(), self._seen
        newest = max([before, *(rank.passes for rank in ranks)])
        if 0 <= before < newest and not any(rank.stage in ("load", "step") for rank in ranks):
            return False  # there may be no other pass
        self._seen = newest
        return 0 <= before < newest

    def regroup(self, why: str) -> None:
        """Let the ranks end their pass, and gather other nodes then. Call it after `ended_pass`."""
        self.say(why)
        self.regroups = True
        self.used, self._lost = 0, False  # a pass was committed
        self._committed = max(self._committed, self._seen)
        self.phase = "stop"

    # ---- phases

    def _gather(self) -> None:
        if self.signal:
            self._leave(128 + self.signal)
            return
        complete = len(self._reports) == self.size and self._all_down()
        if complete and self.clock() >= self._not_before:
            self.attempt += 1
            self._looks.clear()
            self.regroups, self._seen = False, -1
            self.say(f"attempt {self.attempt} begins")
            self.phase = "run"

    def _run(self) -> None:
        if self.signal or self._was_stopped():
            self.say("received a signal: every rank ends its pass, and is not restarted")
            self.phase = "stop"
            return
        if any(report.attempt != self.attempt for report in self._reports.values()):
            return  # the attempt has not begun on all nodes
        ranks = self._ranks()
        if all(rank.code == 0 for rank in ranks):
            self._leave(0)
            return
        dead = sorted((rank for rank in ranks if rank.code), key=lambda rank: rank.code or 0)
        wrong = [f"{rank}: {rank.end}" for rank in dead] or self._stalled()  # killed ranks first
        if wrong:
            self._fail(wrong)
        else:
            self._tell_slow()

    def _end(self) -> None:
        if not self._all_down():
            return
        final = 0 if self.trial else self._final()
        if self.signal:
            self._leave(128 + self.signal)
        elif final:
            self.say(
                f"exit code {final} ({FINAL[final]}): a restart would only repeat it; the reason "
                "is above, or in the log of the rank's actor, in the folder `logs` of Ray's "
                "session on its node"
            )
            self._leave(final)
        elif self.used > self.tries:
            codes = [rank.code for rank in self._ranks() if rank.code is not None and rank.code > 0]
            self.say(f"giving up after {self.used} failures without a new commit")
            self._leave(next((code for code in codes if code not in STOPPED), 1))
        else:
            pause = min(LONGEST_PAUSE_S, 2.0 ** (self.used - 1))
            self._not_before = self.clock() + pause
            self.say(f"restart {self.used} of {self.tries} from the last commit, in {pause:g} s")
            self.phase = "gather"

    def _stop(self) -> None:
        codes = {rank.code for rank in self._ranks() if rank.code is not None}
        done = bool(codes) and codes == {0}
        if self._may_regroup() and (wrong := self._broken()):
            self._fail(wrong)
        elif not self._all_down():
            return
        elif self._may_regroup() and not done:
            self.phase = "gather"
        else:
            stopped = 128 + self.signal if self.signal else max(codes & STOPPED, default=143)
            self._leave(self._final() or (0 if done else stopped))

    def _exit(self) -> None:
        """Nothing follows."""

    # ---- conditions

    def _ranks(self) -> list[Rank]:
        """The ranks of this attempt. An actor may still report the attempt before."""
        reports = [report for report in self._reports.values() if report.attempt == self.attempt]
        ranks = [report.rank for report in reports if report.rank is not None]
        return sorted(ranks, key=lambda rank: rank.number)

    def _all_down(self) -> bool:
        return not any(report.up for report in self._reports.values())

    def _final(self) -> int:
        final = {*FINAL} - ({_LOCKED} if self._lost else set())
        return next((rank.code for rank in self._ranks() if rank.code in final), 0) or 0

    def _was_stopped(self) -> bool:
        """Whether a rank has received a signal from outside. If a rank was killed or has failed,
        its exit code shows the difference. But code 1 may also come from a rank that lost its
        connection to a rank that ended."""
        codes = {rank.code for rank in self._ranks() if rank.code is not None}
        return bool(codes & STOPPED) and codes <= {0, 1, *STOPPED}

    def _may_regroup(self) -> bool:
        """Whether other nodes are gathered once the ranks have ended their pass."""
        return self.regroups and not self.signal

    def _broken(self) -> list[str]:
        """Ranks that were asked to end their pass, and have failed or hang."""
        good = (None, 0, 1, *STOPPED)  # 1: as in `_was_stopped`
        dead = [f"{rank}: {rank.end}" for rank in self._ranks() if rank.code not in good]
        return dead or self._stalled()

    def _stalled(self) -> list[str]:
        alive = [rank for rank in self._ranks() if rank.code is None]
        # Outside of steps, a rank may wait for another rank while the other makes progress.
        judged = [
            rank for rank in alive if not rank.waits or rank.stage == "step" or rank.state in _HELD
        ] or alive
        if not any(rank.idle_s > self._limit_s(rank) for rank in judged):
            return []
        return [f"{rank}: no progress in {rank.doing}" for rank in suspects(alive)]

    def _limit_s(self, rank: Rank) -> float:
        stage = "step" if rank.state in _HELD else rank.stage  # a stopped process never progresses
        return self.limits_s.get(stage, self.limits_s["end"])

    def _tell_slow(self) -> None:
        """Report a slow rank. Ranks run their steps together, so that a slow rank is busy while the
        others wait for it."""
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
                f"{rank} is slow: in the last {_SLOW_S:g} s it was busy or stopped "
                f"{busy[slowest]:.0%} of the time, the others at most {max(others):.0%}"
            )
            self._looks.clear()

    # ---- transitions

    def _fail(self, wrong: Sequence[str]) -> None:
        for line in wrong:
            self.say(line)
        named = " ".join(wrong)
        for rank in self._ranks():
            if str(rank) not in named:
                self.say(f"  meanwhile {rank}: {rank.end}")
        committed = max((rank.passes for rank in self._ranks()), default=-1)
        advanced = committed > self._committed >= 0
        self.used = 1 if advanced else self.used + 1
        self._lost = self._lost and not advanced
        self._committed = max(committed, self._committed)
        self.regroups = False
        self.phase = "end"

    def _leave(self, code: int) -> None:
        self.code, self.phase = code, "exit"


def suspects(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks that probably block the others, if no rank makes progress: the stopped ranks; if
    there are none, the ranks that others wait for and that wait for no rank themselves; if there
    are none either, the ranks with the least progress."""
    if stopped := [rank for rank in ranks if rank.state in (*_HELD, "D")]:
        return stopped
    waited_for = {rank.waits.partition(" ")[0] for rank in ranks}
    if free := [rank for rank in ranks if str(rank.number) in waited_for and not rank.waits]:
        return free
    least = min((rank.count for rank in ranks), default=0)
    return [rank for rank in ranks if rank.count == least]
