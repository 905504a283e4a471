"""Trains a run from a program or a notebook, and opens one that is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox.api.process import stoppable, working
from paddlebox.config import Config, Slots
from paddlebox.config.arguments import AnyConfig, AnyPath, as_config, as_path
from paddlebox.errors import StoreError
from paddlebox.launch.process import joined
from paddlebox.store import run_config


def train(
    config: AnyConfig,
    run_dir: AnyPath,
    *,
    source: str = "",
    back_to: str = "",
    fresh: bool = False,
    skip: Sequence[str] = (),
) -> Run:
    """Train the passes of a config that the run dir has not committed yet, as `paddlebox train`
    does.

    Args:
        config: a Config, a dict, or the path of a YAML file. Paths in it are relative to the
            current folder.
        run_dir: the folder of the run. A run that is there is continued after its last commit.
        source: RUN or RUN@VERSION: another run whose rows and dense parameters a new run starts
            with (docs/warm_start.md).
        back_to: a version to go back to first: its number, YYYYMMDD, YYYYMMDD/PASS or the name of a
            checkpoint. The versions after it are dropped.
        fresh: move an existing run dir to RUN_DIR.old-N and start from nothing.
        skip: names or globs of files to leave out of all passes that are not trained yet.

    Raises: a PaddleBoxError, or KeyboardInterrupt; the store is then at its last commit, and the
    same call continues there.
    """
    made, root = as_config(config), as_path(run_dir, "run_dir")
    started = made if fresh else run_config.continuing(made, root)
    with working(started.trainer):
        from paddlebox.training import interrupt
        from paddlebox.training.run import train as train_passes

        with joined(made) as world, stoppable(root), interrupt.stopped_with_others(world):
            train_passes(
                made,
                root,
                source=source,
                back_to=back_to,
                fresh=fresh,
                skip=skip,
                world=world,
            )
    return Run(root)


def open_run(run_dir: AnyPath) -> Run:
    """Open the run in a folder. Raises: StoreError if there is none."""
    root = as_path(run_dir, "run_dir")
    if not ((root / run_config.CONFIG_FILE).is_file() or (root / "store").is_dir()):
        found = "a folder without a run" if root.is_dir() else f"no such folder in {Path.cwd()}"
        raise StoreError(
            f"{root}: expected the folder of a training run, found {found}: correct it"
        )
    return Run(root)


@dataclass(frozen=True)
class Run:
    """A run in its folder. Its methods read the newest commit at the time of the call, and leave
    the store as it is. path: the folder."""

    path: Path

    @property
    def config(self) -> Config:
        """The config of the newest commit, with every value."""
        return run_config.of_newest(self.path)[0]

    @property
    def slots(self) -> Slots:
        return run_config.of_newest(self.path)[1]

    @property
    def version(self) -> int:
        """The version of the newest commit; 0: there is none."""
        record = run_config.record_of(self.path)
        return record.version if record is not None else 0

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json. Raises: StoreError if the run has not ended."""
        try:
            found: dict[str, Any] = json.loads((self.path / "summary.json").read_bytes())
        except FileNotFoundError:
            raise StoreError(
                f"{self.path}: expected summary.json, which is written when a run ends, found "
                "none: let the training end first"
            ) from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path / 'summary.json'}: cannot be read: {error}") from error
        return found

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the newest commit on data.test_files. Writes and returns the content of
        RUN_DIR/evaluate-<version>.json."""
        config, slots = run_config.of_newest(self.path)
        with working(config.trainer):
            from paddlebox.training.evaluation import evaluate

            with joined(config) as world:
                return evaluate(config, self.path, world, slots=slots)
