"""The command line of tools/advise.py."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots, load_config
from paddlebox.config.arguments import AnyConfig, AnyPath, AnySlots, as_config, as_path
from paddlebox.errors import ConfigError
from paddlebox.launch import run_arguments
from paddlebox.launch.process import guarded, prepare

_ADVICE = {
    "dense": "the dense part takes most of the time: use smaller layers, larger batches, "
    "trainer.dense_dtype auto, more ranks or more trainer.dense_threads",
    "sparse": "pull and push take most of the time: use fewer ids per instance, a smaller "
    "table.embedx_dim, or more ranks",
    "feeder": "reading and parsing take most of the time: use more data.threads, "
    "feeder.cache_bytes, or a cheaper format than text; a single pass cannot load while another "
    "trains: set data.files_per_pass",
    "ssd": "staging and commits take most of the time: use a larger mem.budget_bytes, larger "
    "passes, or a faster disk",
    "cores": "the threads need more processors than there are: use fewer trainer.dense_threads, "
    "or more cores",
}


def advise_main(argv: Sequence[str] | None = None) -> int:
    """Run tools/advise.py. Returns the exit code (docs/running.md)."""
    parser = argparse.ArgumentParser(
        description="Predicts the samples/s of a config, their bottleneck, memory and disk, from "
        "a sample of its data and short measurements. Trains nothing."
    )
    parser.add_argument(
        "run_dir", type=Path, nargs="?", metavar="CONFIG|RUN_DIR",
        help="a config, or a run, whose stored config is used",
    )  # fmt: skip
    parser.add_argument(
        "--run-dir", dest="named_run_dir", type=Path, metavar="RUN_DIR", help="the same"
    )
    run_arguments.add_config(parser, "the same as CONFIG")
    parser.add_argument(
        "--rates", type=Path, metavar="FILE",
        help="use the measurements that --save-rates has written to FILE",
    )  # fmt: skip
    parser.add_argument(
        "--save-rates", type=Path, metavar="FILE", help="write the measurements to FILE"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()),
        help="a folder on the disk of the store; default: the folder for temporary files",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")
    arguments = run_arguments.parsed(parser, argv, needs_run=False)
    if arguments.config is None and arguments.run_dir is None:
        parser.error("expected CONFIG or RUN_DIR")

    def run() -> None:
        config, slots = _config_of(arguments)
        prepare(config.trainer)
        told = advise(
            config,
            arguments.folder,
            slots=slots,
            rates_file=arguments.rates,
            save_to=arguments.save_rates,
        )
        print(json.dumps(told, indent=1) if arguments.json else as_text(config.name, told))

    return guarded(run)


def _config_of(arguments: argparse.Namespace) -> tuple[Config, Slots | None]:
    given = arguments.run_dir
    if arguments.config is None and not given.is_dir():
        return load_config(given, arguments.overrides), None
    return run_arguments.config_of(arguments, ("data.train_files",))


def advise(
    config: AnyConfig,
    folder: AnyPath,
    *,
    slots: AnySlots | None = None,
    rates_file: AnyPath | None = None,
    save_to: AnyPath | None = None,
) -> dict[str, Any]:
    """Predict the performance of a config.

    Args:
        slots: the slots of the run; None: those in the file data.slots.
        rates_file: measurements to use; None: measure.
        save_to: where to write the measurements; None: nowhere.

    Returns: `prediction`, `workload`, `rates` and `sizes` (docs/advise.md).

    Raises: ConfigError, DataError, StoreError.
    """
    from dataclasses import asdict

    from paddlebox.tools.advise.calibrate import calibrate, sizes_of
    from paddlebox.tools.advise.predict import predict
    from paddlebox.tools.advise.rates import Rates
    from paddlebox.tools.advise.workload import describe, take_sample
    from paddlebox.tools.doctor.disk import measure_disk
    from paddlebox.train.opening import read_slots
    from paddlebox.train.plan import plan_passes
    from paddlebox.train.settle import chosen

    config, folder = as_config(config), as_path(folder, "folder")
    known = Rates.load(as_path(rates_file, "rates_file")) if rates_file is not None else None
    if known is not None and known.format != config.data.format.value:
        raise ConfigError(
            f"{rates_file}: was measured with data.format {known.format}, the config has "
            f"{config.data.format.value}: measure again, without --rates"
        )
    slots = read_slots(config, slots)
    config = chosen(config, slots, plan_passes(config))
    with tempfile.TemporaryDirectory(dir=folder, prefix="paddlebox-advise-") as scratch:
        sample = take_sample(config, slots, Path(scratch))
        work = describe(config, sample)
        if known is not None:
            rates, sizes = known, sizes_of(config, slots, Path(scratch))
        else:
            disk = measure_disk(Path(scratch), most_bytes=64 << 20, seconds=0.3)
            rates, sizes = calibrate(config, slots, sample, Path(scratch), disk.read_bytes_per_s)
    if save_to is not None:
        rates.save(as_path(save_to, "save_to"))
    return {
        "prediction": predict(config, work, rates, sizes).as_dict(),
        "workload": asdict(work),
        "rates": asdict(rates),
        "sizes": asdict(sizes),
    }


def as_text(name: str, told: Mapping[str, Any]) -> str:
    """The result of `advise` as text."""
    found, work = told["prediction"], told["workload"]
    lines = [
        f"{name}: {found['samples']:,} samples, passes {len(work['passes'])}, "
        f"{work['line_ids']:.1f} ids each, {found['rows']:,} rows at the end",
        f"about {found['samples_per_s']:,.0f} samples/s, {found['seconds']:,.1f} s; bound by: "
        f"{found['bottleneck']}",
        f"  {_ADVICE[found['bottleneck']]}",
        "of the time:",
    ]
    parts = sorted(found["parts"].items(), key=lambda part: -part[1])
    lines += [
        f"  {part:10}{seconds / max(1e-9, found['seconds']):7.1%}  {seconds:10.2f} s"
        for part, seconds in parts
        if seconds > 0
    ]
    tiers = {**found["memory_bytes"], "disk": found["disk_bytes"]}
    lines.append(
        "bytes: " + ", ".join(f"{tier} {size / 2**20:,.1f} MiB" for tier, size in tiers.items())
    )
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])])
