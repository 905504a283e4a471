"""Successive halving over the trials of a config.

DIR/tune.json                what is searched, and the results so far; written after each trial
DIR/trial-<n>/rung-<r>/      the run dir of a trial that began in rung r, from 1
DIR/trial-<n>/rung-<r>.json  its config in rung r
DIR/trial-<n>/log            what its training has printed

In each rung, the trials train the files of this rung and are evaluated on the judging files. The
best 1 / factor of them go on to the next rung. Which trials go on is a function of the results
alone, so a search that goes on after a kill trains only what is missing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlebox.config import Config, ModelType, load_config, load_slots
from paddlebox.config.stored import FREE, within
from paddlebox.errors import ConfigError, StoreError, StoreLockedError, TrainingError
from paddlebox.store.files import make_folder, write_durably
from paddlebox.store.lock import StoreLock
from paddlebox.tools.tune.plan import (
    Rungs,
    Trial,
    config_of_trial,
    draw,
    find_rungs,
    make_trials,
    parse_tries,
)
from paddlebox.tools.tune.processes import TRAIN, Command, finished, last_lines

log = logging.getLogger("paddlebox")

_STATE = "tune.json"


@dataclass(frozen=True)
class Options:
    """The arguments of a search."""

    config: Path
    folder: Path
    tries: Sequence[str]  # KEY=VALUE,VALUE
    overrides: Sequence[str] = ()
    trials: int = 0  # most combinations; 0: all
    factor: int = 3
    rungs: int = 0  # 0: see `find_rungs`
    judge: int = 0  # 0: see `find_rungs`
    seed: int = 1
    jobs: int = 1


@dataclass
class Outcome:
    """The result of a search."""

    trials: Sequence[Trial]
    rungs: Rungs
    results: dict[int, list[dict[str, float]]]  # by trial, one for each rung it has finished
    failed: dict[int, str] = field(default_factory=dict)  # by trial: what happened

    def order(self) -> list[Trial]:
        """The trials, best first: those of later rungs first, and then by logloss."""

        def key(trial: Trial) -> tuple[int, float, int]:
            of = self.results.get(trial.number, [])
            return -len(of), of[-1]["logloss"] if of else math.inf, trial.number

        return sorted(self.trials, key=key)


def tune(options: Options, environment: Mapping[str, str], train: Sequence[str] = TRAIN) -> Outcome:
    """Run a search, or go on with the search in the folder.

    Args:
        options: the arguments.
        environment: of the training commands.
        train: the training command, which gets `-c CONFIG --run-dir DIR`.

    Raises:
        ConfigError: an argument or a combination of values is wrong, there are too few files, or
            the folder holds another search.
        StoreLockedError: another search works in the folder.
        TrainingError: every trial of a rung failed.
    """
    tries = parse_tries(options.tries)
    config = load_config(options.config, options.overrides)
    rungs, combinations = _planned(options, config, tries)
    trials = make_trials(options.config, options.overrides, combinations, rungs.judged)
    setup = _setup(options, config, tries, rungs)
    make_folder(str(options.folder))
    lock = _lock(options.folder)
    try:
        search = _Search(options, environment, train, setup, Outcome(trials, rungs, {}))
        search.run()
        return search.outcome
    finally:
        lock.release()


def _planned(
    options: Options, config: Config, tries: Mapping[str, Sequence[Any]]
) -> tuple[Rungs, list[dict[str, Any]]]:
    from paddlebox.data.listing import expand

    if config.data.path_template:
        raise ConfigError(
            f"{options.config}: expected data.train_files, found data.path_template: list the "
            "files of some hours in data.train_files"
        )
    combinations = draw(tries, options.trials, options.seed)
    files, a_pass = expand(config.data.train_files), config.data.files_per_pass
    trials = len(combinations) + 1
    return (
        find_rungs(files, a_pass, trials, options.factor, options.judge, options.rungs),
        combinations,
    )


def _lock(folder: Path) -> StoreLock:
    try:
        return StoreLock(str(folder / "LOCK"))
    except StoreLockedError:
        raise StoreLockedError(
            f"{folder}: another search works in this folder, expected none: wait for it or end it, "
            "or choose another --dir"
        ) from None


def _setup(
    options: Options, config: Config, tries: Mapping[str, Any], rungs: Rungs
) -> dict[str, Any]:
    """What a later start must have in common with the first one."""
    from paddlebox.train.config_changes import description

    return {
        "described": description(config, load_slots(config.data.slots)),
        "arguments": {
            **{f"--try {key}": values for key, values in tries.items()},
            **{f"--{name}": getattr(options, name) for name in ("trials", "factor", "seed")},
            "files of the rungs": rungs.trained,
            "judging files": rungs.judged,
        },
    }


class _Search:
    def __init__(
        self,
        options: Options,
        environment: Mapping[str, str],
        train: Sequence[str],
        setup: dict[str, Any],
        outcome: Outcome,
    ) -> None:
        self._options, self._environment, self._train = options, environment, train
        # As JSON: tuples become lists.
        self._setup, self.outcome = json.loads(json.dumps(setup)), outcome
        self._read()
        self._write()  # before there are run dirs that another search could take for its own

    def run(self) -> None:
        going, rungs = list(self.outcome.trials), self.outcome.rungs.trained
        for rung, files in enumerate(rungs):
            log.info(
                "rung %d of %d: trials %d, training files %d, judging files %d",
                *(rung + 1, len(rungs), len(going), len(files), len(self.outcome.rungs.judged)),
            )
            self._run_rung(rung, going)
            done = [trial for trial in going if len(self._results(trial)) > rung]
            if not done:
                raise TrainingError(
                    f"{self._options.folder}: expected a result of rung {rung + 1}, but each of "
                    f"its trials failed: {len(going)}; the log has the reasons"
                )
            done.sort(key=lambda trial: (self._results(trial)[rung]["logloss"], trial.number))
            going = done[: max(1, len(going) // self._options.factor)]

    def _results(self, trial: Trial) -> list[dict[str, float]]:
        return self.outcome.results.setdefault(trial.number, [])

    def _run_rung(self, rung: int, going: Sequence[Trial]) -> None:
        """Train the trials of a rung that have no result yet."""
        missing = [trial for trial in going if len(self._results(trial)) <= rung]
        commands = [self._command(trial, rung) for trial in missing]
        with closing(finished(commands, self._options.jobs, self._environment)) as ended:
            for command, code in ended:
                self._ended(self.outcome.trials[command.trial], command, code)

    def _ended(self, trial: Trial, command: Command, code: int) -> None:
        result = _result_of(command.run_dir) if code == 0 else None
        if result is None:
            why = f"exit code {code}" if code else "no logloss on the judging files"
            self.outcome.failed[trial.number] = why
            log.error(
                "trial %d failed: %s; %s ends with\n%s\n    (%s)",
                *(trial.number, why, command.log, last_lines(command.log), trial),
            )
            return
        self._results(trial).append(result)
        self._write()
        log.info(
            "trial %d: logloss %.5f, AUC %.5f (%s)",
            *(trial.number, result["logloss"], result["auc"], trial),
        )

    def _command(self, trial: Trial, rung: int) -> Command:
        """The command for a trial in a rung. Writes its config."""
        options, rungs = self._options, self.outcome.rungs

        def made(files: Sequence[str], more: Sequence[str]) -> tuple[Config, dict[str, Any]]:
            named = {"train": files, "test": rungs.judged}
            given = [f"data.{kind}_files={json.dumps(found)}" for kind, found in named.items()]
            return config_of_trial(options.config, options.overrides, trial, [*given, *more])

        whole, _ = made(rungs.trained[-1], ())
        more = [*_values_of_all_rows(whole), *_threads(whole, options.jobs)]
        configs = [made(files, more) for files in rungs.trained[: rung + 1]]
        folder = options.folder / f"trial-{trial.number}"
        make_folder(str(folder))
        path = folder / f"rung-{rung + 1}.json"
        write_durably(str(path), json.dumps(configs[rung][1], indent=1).encode())
        run_dir = folder / f"rung-{_begun([config for config, _ in configs]) + 1}"
        words = [*self._train, "-c", str(path), "--run-dir", str(run_dir)]
        return Command(trial.number, words, run_dir, folder / "log")

    def _read(self) -> None:
        """Take over the results in the folder.

        Raises: ConfigError if they are of another search, StoreError if the file is damaged.
        """
        path = self._options.folder / _STATE
        if not path.exists():
            return
        try:
            state = json.loads(path.read_bytes())
            changed = _changed(state["setup"], self._setup)
            results = {int(number): found for number, found in state["results"].items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path}: expected the results of a search, found something else ({error}): choose "
                "another --dir"
            ) from error
        if changed:
            raise ConfigError(
                f"{path}: this search was begun with other values and cannot go on with these:\n  "
                + "\n  ".join(changed)
                + "\nput these values back, or choose another --dir"
            )
        self.outcome.results.update(results)

    def _write(self) -> None:
        results = {number: found for number, found in self.outcome.results.items() if found}
        state = {"setup": self._setup, "results": dict(sorted(results.items()))}
        path = self._options.folder / _STATE
        write_durably(str(path), json.dumps(state, indent=1).encode())


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each difference between two setups. Keys without an effect may differ."""
    from paddlebox.train.config_changes import as_lines, differences

    found = [
        one
        for one in differences(old["described"], new["described"])
        if not within(one[0], (*FREE, "data.train_files"))
    ]
    was, now = old["arguments"], new["arguments"]
    found += [
        (name, was.get(name), now.get(name))
        for name in dict.fromkeys([*was, *now])
        if was.get(name) != now.get(name)
    ]
    return as_lines(found)


def _begun(configs: Sequence[Config]) -> int:
    """The rung from which on each rung goes on with the passes of the one before."""
    from paddlebox.train.plan import plan_passes

    plans = [plan_passes(config) for config in configs]
    rung = len(plans) - 1
    while rung > 0 and plans[rung][: len(plans[rung - 1])] == plans[rung - 1]:
        rung -= 1
    return rung


def _values_of_all_rows(config: Config) -> list[str]:
    """Overrides for what a run on all training files would choose by their number of rows."""
    if config.data.batch_size and config.model.type is not ModelType.LR:
        return []
    from paddlebox.train.plan import plan_passes
    from paddlebox.train.settle import chosen

    found = chosen(config, load_slots(config.data.slots), plan_passes(config))
    return [f"data.batch_size={found.data.batch_size}", f"trainer.epochs={found.trainer.epochs}"]


def _threads(config: Config, jobs: int) -> list[str]:
    """An override that divides the cores among the jobs, unless the config names threads."""
    from paddlebox.launch import cpu

    if config.trainer.dense_threads or jobs == 1:
        return []
    chosen = cpu.choose(cpu.CpuInfo.read(), {}, config.trainer.program, jobs)
    return [f"trainer.dense_threads={chosen['OMP_NUM_THREADS'].value}"]


def _result_of(run_dir: Path) -> dict[str, float] | None:
    """The judgement of a run's last pass; None if there is none."""
    try:
        test = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["test"]
        logloss, auc = float(test["logloss"]), test["auc"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    found = {"logloss": logloss, "auc": math.nan if auc is None else float(auc)}
    return found if math.isfinite(logloss) else None
