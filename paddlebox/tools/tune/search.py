"""Successive halving over the trials of a config. Optuna stores the trials and decides which
go on.

DIR/tune.db                  the study of Optuna, in SQLite
DIR/trial-<n>/rung-<r>/      the run dir of a trial that began in rung r, from 1
DIR/trial-<n>/rung-<r>.json  its config in rung r
DIR/trial-<n>/log            what its training has printed

In each rung, a trial trains the files of this rung and is evaluated on the judging files. It goes
on to the next rung if Optuna's pruner finds its logloss among the best 1 / factor of those so far.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlebox.config import Config, load_config, load_slots
from paddlebox.config.load import config_of, parse_yaml, read_yaml
from paddlebox.config.stored import FREE, within
from paddlebox.data.listing import expand
from paddlebox.errors import ConfigError, StoreError, StoreLockedError, TrainingError
from paddlebox.launch import cpu
from paddlebox.store.files import make_folder, write_durably
from paddlebox.store.locks import StoreLock

if TYPE_CHECKING:
    import optuna


#: Overrides of every trial, which writes nothing outside of its folder. An empty value is the
#: default.
FIXED = (
    *("save=", "publish=", "checkpoint.copy_to="),
    "alerts.metrics_port=",
    "trainer.evaluate_passes=after",
)
_CHOSEN = ("data.train_files", "data.test_files", "data.path_template")


@dataclass(frozen=True)
class Rungs:
    """The files of a search."""

    trained: tuple[tuple[str, ...], ...]  # by rung: the first files, more in each rung
    judged: tuple[str, ...]  # the last files, which no trial trains


def parse_tries(given: Sequence[str]) -> dict[str, list[str]]:
    """The values of each --try KEY=VALUE,VALUE. A value is YAML, and is returned as JSON. Raises:
    ConfigError if a --try has no key or no values, is given twice, or names a key that the search
    sets itself."""
    tries: dict[str, list[str]] = {}
    for text in given:
        key, equals, values = (part.strip() for part in text.partition("="))
        parsed = parse_yaml(f"[{values}]", f"--try {key}") if equals else []
        if not key or not parsed:
            raise ConfigError(
                f"--try {text!r}: expected KEY=VALUE,VALUE with at least one value, found "
                f"{'none' if key and equals else 'no key or no ='}: write for example "
                "optimizer.learning_rate=0.001,0.01"
            )
        if key in tries:
            raise ConfigError(f"--try {key}: expected each key once, found it twice: join the two")
        for own in (*_CHOSEN, *(fixed.partition("=")[0] for fixed in FIXED)):
            if key == own or key.startswith(f"{own}.") or own.startswith(f"{key}."):
                raise ConfigError(f"--try {key}: the search sets {own} itself: try another key")
        tries[key] = [json.dumps(value) for value in parsed]
    return tries


def find_rungs(
    files: Sequence[str], a_pass: int, trials: int, factor: int, judge: int = 0, count: int = 0
) -> Rungs:
    """Divide files, in the order of time, into those that are trained and those that judge.

    Args:
        a_pass: `data.files_per_pass`. A rung but the last ends with a pass.
        trials: the number of trials.
        factor: a rung has this times the passes of the one before.
        judge: the number of judging files; 0: a fifth, at least one.
        count: the number of rungs; 0: as many as leave two trials in the last, if the files
            are enough.

    Raises: ConfigError if there are too few files.
    """
    a_pass = a_pass or 1
    needed = (factor ** max(0, count - 1) - 1) * a_pass + 1
    least = needed + (judge or max(1, (needed - 1) // 4))
    if len(files) < least:
        raise ConfigError(
            f"data.train_files: expected at least {least} files ({needed} to train in "
            f"{max(1, count)} rungs, the others to judge), found {len(files)}: cut the files "
            "without changing the order of their rows, as `split -n l/20` does, or ask for fewer "
            "--rungs or --judge"
        )
    left = len(files) - (judge or max(1, len(files) // 5))
    passes = -(-left // a_pass)
    if not count:
        count = 1
        while factor**count <= min(passes, trials // 2):
            count += 1
    sizes = [passes // factor ** (count - 1 - rung) * a_pass for rung in range(count)]
    return Rungs(tuple(tuple(files[: min(s, left)]) for s in sizes), tuple(files[left:]))


def draw(tries: Mapping[str, Sequence[str]], most: int, seed: int) -> list[dict[str, str]]:
    """At most `most` combinations of values (0: all), in an order drawn by the seed."""
    every = [dict(zip(tries, values, strict=True)) for values in itertools.product(*tries.values())]
    return random.Random(seed).sample(every, min(most or len(every), len(every)))


def make_trials(
    path: Path, overrides: Sequence[str], combinations: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """The values of each trial: none, and the combinations that differ from the config itself.
    Raises: ConfigError that names a combination which is not a valid config."""
    trials: dict[str, Mapping[str, str]] = {}
    for values in ({}, *combinations):
        config, _ = config_of_trial(path, overrides, values, ["data.test_files=[judging]"])
        trials.setdefault(config.fingerprint(), values)
    return list(trials.values())


def config_of_trial(
    path: Path, overrides: Sequence[str], values: Mapping[str, str], more: Sequence[str]
) -> tuple[Config, dict[str, Any]]:
    """The config of a trial, and the values that it names. values: those of the trial, as JSON.
    overrides: of all trials. more: overrides to apply last."""
    named = read_yaml(path)
    given = [*overrides, *as_overrides(values), *FIXED, *more]
    source = f"{path}, trial of {' '.join(as_overrides(values)) or 'the config'}"
    return config_of(named, given, source), named


def as_overrides(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


log = logging.getLogger("paddlebox")

#: The training command; the process id of the search and the arguments of `paddlebox train` follow.
#: The kernel kills it when the search ends, even if the search is killed: otherwise a restarted
#: search would meet the trials of the search before.
TRAIN = (
    *(sys.executable, "-c"),
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG\n"
    "if sys.argv[1] != str(os.getppid()): sys.exit('the search has ended')\n"
    "from paddlebox.launch.cli import train_main\n"
    "sys.exit(train_main(sys.argv[2:]))\n",
)


@dataclass(frozen=True)
class Options:
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
class Result:
    """What a trial reached."""

    number: int  # 0: the config itself
    overrides: Sequence[str]
    files: int = 0  # that it has trained
    logloss: float = math.inf  # on the judging files
    auc: float = math.nan
    failed: str = ""  # what happened, if its training failed


def tune(
    options: Options, environment: Mapping[str, str], train: Sequence[str] = TRAIN
) -> list[Result]:
    """Run a search, or go on with the search in the folder. environment: of the training commands.

    Returns: a result of each trial, best first: those with more files first, then by logloss.

    Raises:
        ConfigError: Optuna is not installed, an argument or a combination of values is wrong, there
            are too few files, or the folder holds another search.
        StoreError: the study is damaged, or cannot be written.
        StoreLockedError: another search works in the folder.
        TrainingError: no trial has trained all files, because trials failed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"paddlebox tune: expected Optuna, found none ({error}): pip install 'paddlebox[tune]'"
        ) from None
    tries = parse_tries(options.tries)
    config = load_config(options.config, options.overrides)
    if not config.data.train_files:
        found = "data.path_template" if config.data.path_template else "data.stream"
        raise ConfigError(
            f"{options.config}: expected data.train_files, found {found}: list files with some of "
            "the instances in data.train_files"
        )
    combinations = draw(tries, options.trials, options.seed)
    rungs = find_rungs(
        *(expand(config.data.train_files), config.data.files_per_pass, len(combinations) + 1),
        *(options.factor, options.judge, options.rungs),
    )
    trials = make_trials(options.config, options.overrides, combinations)
    with _study(options, _setup(options, config, tries, rungs), trials) as study:
        failed: dict[int, str] = {}

        def run(stored: optuna.Trial) -> None:
            results = stored.user_attrs.get("results", [])  # those of earlier starts
            reported = study.get_trials(deepcopy=False)[stored.number].intermediate_values.keys()
            for rung, files in enumerate(rungs.trained):
                if rung == len(results):
                    arguments = _arguments(options, rungs, stored.number, trials, rung)
                    try:
                        logloss, auc = _trained([*train, *arguments], environment)
                    except TrainingError as error:
                        failed[stored.number] = str(error)
                        return  # it is unfinished at the next start
                    text = "trial %d: training files %d, logloss %.5f, AUC %.5f"
                    log.info(text, stored.number, len(files), logloss, auc)
                    results = [*results, (logloss, auc)]
                    stored.set_user_attr("results", results)
                step = options.factor**rung
                if step not in reported:
                    stored.report(results[rung][0], step)
                    if files is not rungs.trained[-1] and stored.should_prune():
                        study.tell(stored, state=optuna.trial.TrialState.PRUNED)
                        return
            study.tell(stored, results[-1][0])

        waiting = len(study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)))
        log.info(
            "trials to train %d of %d; training files %s, judging files %d",
            *(waiting, len(trials), ", then ".join(str(len(files)) for files in rungs.trained)),
            len(rungs.judged),
        )
        # In SQLite, two threads that ask at the same time could get the same trial.
        asked = [study.ask() for _ in range(waiting)]
        for stored in asked:
            for key in trials[stored.number]:
                stored.suggest_categorical(key, tries[key])
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for ended in as_completed([pool.submit(run, stored) for stored in asked]):
                    ended.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return _results(options, rungs, trials, study, failed)


def _setup(
    options: Options, config: Config, tries: Mapping[str, Any], rungs: Rungs
) -> dict[str, Any]:
    """What a later start must have in common with the first one."""
    from paddlebox.training.config_changes import description

    arguments = {
        **{f"--try {key}": [*map(json.loads, values)] for key, values in tries.items()},
        **{f"--{name}": getattr(options, name) for name in ("trials", "factor", "seed")},
        "files of the rungs": [list(files) for files in rungs.trained],
        "judging files": list(rungs.judged),
    }
    described = description(config, load_slots(config.data.slots))
    return {"described": described, "arguments": arguments}


@contextlib.contextmanager
def _study(
    options: Options, setup: Mapping[str, Any], trials: Sequence[Mapping[str, str]]
) -> Iterator[optuna.Study]:
    """The study in the folder, made if there is none. Trials without a result wait in it."""
    import optuna
    from optuna.trial import TrialState
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make_folder(str(options.folder))
    path, lock = options.folder / "tune.db", _lock(options.folder)
    try:
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 600}}
        )
        pruner = optuna.pruners.SuccessiveHalvingPruner(1, options.factor)
        study = optuna.create_study(
            storage=storage, study_name="tune", pruner=pruner, load_if_exists=True
        )
        if changed := _changed(study.user_attrs.get("setup", setup), setup):
            raise ConfigError(
                f"{path}: this search was begun with other values and cannot go on with these:\n  "
                + "\n  ".join(changed)
                + "\nput these values back, or choose another --dir"
            )
        study.set_user_attr("setup", setup)
        study_id = storage.get_study_id_from_name("tune")
        stored = study.get_trials(deepcopy=False)
        for trial in stored:
            if trial.state == TrialState.RUNNING:  # when the search before ended, or it failed
                trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
                storage.set_trial_state_values(trial_id, TrialState.WAITING)
        for values in trials[len(stored) :]:
            study.enqueue_trial(dict(values))
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StoreError(
            f"{path}: expected the study of a search, but it cannot be read or written "
            f"({error.__cause__ or error}): make space if the disk is full, or choose another --dir"
        ) from error
    finally:
        lock.release()


def _lock(folder: Path) -> StoreLock:
    try:
        return StoreLock(str(folder / "LOCK"))
    except StoreLockedError:
        raise StoreLockedError(
            f"{folder}: another search works in this folder, expected none: wait for it or end it, "
            "or choose another --dir"
        ) from None


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each difference between two setups. Keys without an effect may differ."""
    from paddlebox.training.config_changes import as_lines, differences

    was, now = old["arguments"], new["arguments"]
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    every = differences(old["described"], new["described"])
    values = (value for value in every if not within(value[0], (*FREE, "data.train_files")))
    return as_lines([*values, *((key, was.get(key), now.get(key)) for key in keys)])


def _arguments(
    options: Options, rungs: Rungs, number: int, trials: Sequence[Mapping[str, str]], rung: int
) -> list[str]:
    """The arguments of the training command for a trial in a rung. Writes its config."""
    from paddlebox.training.plan import plan_passes

    def made(files: Sequence[str], more: Sequence[str]) -> tuple[Config, dict[str, Any]]:
        named = {"train": files, "test": rungs.judged}
        given = [f"data.{kind}_files={json.dumps(paths)}" for kind, paths in named.items()]
        return config_of_trial(options.config, options.overrides, trials[number], [*given, *more])

    whole, _ = made(rungs.trained[-1], ())
    more = [*_values_of_all_rows(whole), *_threads(whole, options.jobs)]
    configs = [made(files, more) for files in rungs.trained[: rung + 1]]
    folder = options.folder / f"trial-{number}"
    make_folder(str(folder))
    path = folder / f"rung-{rung + 1}.json"
    write_durably(str(path), json.dumps(configs[-1][1], indent=1).encode())
    # The rung from which on each rung goes on with the passes of the one before.
    plans = [plan_passes(config) for config, _ in configs]
    while rung > 0 and plans[rung][: len(plans[rung - 1])] == plans[rung - 1]:
        rung -= 1
    return [str(os.getpid()), "-c", str(path), "--run-dir", str(folder / f"rung-{rung + 1}")]


def _values_of_all_rows(config: Config) -> list[str]:
    """Overrides for what a run on all training files would choose by their number of rows."""
    from paddlebox.training.plan import plan_passes
    from paddlebox.training.settle import chosen

    slots = load_slots(config.data.slots).without_normalizers()
    settled = chosen(config, slots, plan_passes(config))
    return [
        f"data.batch_size={settled.data.batch_size}",
        f"trainer.epochs={settled.trainer.epochs}",
        f"trainer.reset_rows={str(settled.trainer.reset_rows).lower()}",
    ]


def _threads(config: Config, jobs: int) -> list[str]:
    """An override that divides the cores among the jobs, unless the config names threads."""
    if config.trainer.dense_threads or jobs == 1:
        return []
    chosen = cpu.choose(cpu.CpuInfo.read(), {}, config.trainer.program, jobs)
    return [f"trainer.dense_threads={chosen['OMP_NUM_THREADS'].value}"]


def _trained(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Train a trial. Returns logloss and AUC on the judging files. Raises: TrainingError after the
    end of its log was logged."""
    run_dir = Path(command[-1])
    path = run_dir.parent / "log"
    with open(path, "ab") as printed:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env=environment
        ).returncode
    failed = f"exit code {code}"
    if code == 0:
        failed = "no logloss on the judging files"
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            test = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["test"]
            logloss, auc = float(test["logloss"]), test["auc"]
            if math.isfinite(logloss):
                return logloss, math.nan if auc is None else float(auc)
    lines = [f"    {line}" for line in path.read_text(errors="replace").splitlines()[-5:]]
    log.error("%s: %s; %s ends with\n%s", run_dir.parent.name, failed, path, "\n".join(lines))
    raise TrainingError(failed)


def _results(
    options: Options,
    rungs: Rungs,
    trials: Sequence[Mapping[str, str]],
    study: optuna.Study,
    failed: Mapping[int, str],
) -> list[Result]:
    all_results = []
    for number, stored in enumerate(study.get_trials(deepcopy=False)):
        result = Result(number, as_overrides(trials[number]), failed=failed.get(number, ""))
        if results := stored.user_attrs.get("results"):
            result.files = len(rungs.trained[len(results) - 1])
            result.logloss, result.auc = results[-1]
        all_results.append(result)
    if all(result.files < len(rungs.trained[-1]) for result in all_results):
        raise TrainingError(
            f"{options.folder}: expected a trial that has trained all files, but {len(failed)} "
            "trials failed: the log has the reasons"
        )
    return sorted(all_results, key=lambda result: (-result.files, result.logloss, result.number))
