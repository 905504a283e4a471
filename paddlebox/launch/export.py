"""The command `paddlebox export`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlebox.config import Phase, TrainerConfig, load_config
from paddlebox.errors import ConfigError
from paddlebox.launch.arguments import add_config, add_phase, create_parser, finite, parse
from paddlebox.launch.process import guarded, prepare
from paddlebox.store.record import title

if TYPE_CHECKING:
    from paddlebox.serving.gate import Gate
    from paddlebox.serving.source import Source
    from paddlebox.serving.writer import Writer

log = logging.getLogger("paddlebox")


def export_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox export`. Prints one JSON object. Returns the exit code."""
    arguments = _arguments(argv)

    with guarded() as ended:
        prepare(TrainerConfig())
        print(json.dumps(_run(arguments), default=dataclasses.asdict))
    return ended.code


def export_parser() -> argparse.ArgumentParser:
    parser = create_parser("Creates export files for serving, and adds new versions to them.")
    option, flag = parser.add_argument, {"action": "store_true"}
    about = "with --out: a run folder, or those of an ensemble; otherwise an export file"
    option("path", type=Path, nargs="*", metavar="PATH", help=about)
    group = parser.add_mutually_exclusive_group(required=True)
    what: Callable[..., Any] = group.add_argument
    what("--out", type=Path, metavar="FILE", help="create FILE from a commit of the run")
    about = "add a new version to the file, from a run or a save"
    what("--apply", type=Path, metavar="DIR", help=about)
    what("--pin", type=int, metavar="VERSION", help="show a version until --unpin")
    what("--unpin", **flag, help="show the newest version again")
    what("--rollback", **flag, help="show the previous version")
    what("--show", **flag, help="list the versions of the file")
    about = "with --out, instead of a run folder: a save, which is read with its whole chain"
    option("--from-save", type=Path, metavar="SAVE_DIR", help=about)
    about = "the config of the training, if neither the commit nor the run folder holds it"
    add_config(parser, about)
    precisions = ("float32", "float16", "int8")
    about = "format of embedx; default: with --apply that of the file, else float32"
    option("--precision", choices=precisions, help=about)
    about = "also keep the dense part as an ONNX model; --apply goes on with it"
    option("--onnx", action="store_true", help=about)
    option("--version", type=int, metavar="N", help="version of the run; default: the newest")
    option(
        "--threshold",
        type=finite,
        metavar="SCORE",
        help="keep the rows of a base save with this table.life.base_threshold; 0: all rows; "
        "default: with --apply as the file does, for a new file all rows",
    )
    about = "with --apply: accept a version that has more than 20 %% fewer live rows"
    option("--force", action="store_true", help=about)
    add_phase(parser, "the program to serve")
    gate = parser.add_argument_group("a gate: the new version is shown only if it passes")
    gate.add_argument("--gate-files", nargs="+", metavar="FILE", help="labelled data to predict")
    gate.add_argument(
        "--min-auc", type=finite, default=0.0, metavar="AUC", help="least AUC; 0: any"
    )
    about = "largest relative difference of COPC from that of the version shown now; 0: any"
    gate.add_argument("--max-copc-drift", type=finite, default=0.0, metavar="X", help=about)
    return parser


def _arguments(argv: Sequence[str] | None) -> Any:
    parser = export_parser()
    arguments = parse(parser, argv)
    arguments.path, *arguments.others = arguments.path or [None]
    if arguments.others and (arguments.out is None or arguments.version is not None):
        parser.error("several run folders need --out FILE, and have no --version in common")
    if (arguments.path is None) != (arguments.from_save is not None):
        parser.error("expected either a path or --from-save SAVE_DIR")
    if arguments.from_save is not None and arguments.out is None:
        parser.error("--from-save needs --out FILE; --apply SAVE_DIR adds a save to a file")
    return arguments


# The functions below import the modules that use Paddle, after the settings of Paddle are made.


def _run(arguments: Any) -> Any:
    from paddlebox.serving.file import ExportFile
    from paddlebox.serving.writer import Writer

    gate, chosen = _gate(arguments), _chosen(arguments)
    if arguments.out is not None:
        return _export(arguments, chosen, gate)
    if arguments.show:
        with ExportFile(arguments.path) as file, file.read() as txn:
            return {"head": file.head(txn), "generations": file.generations(txn)}
    with Writer(arguments.path) as writer:
        if arguments.apply is not None:
            return _apply(writer, arguments, chosen, gate)
        if arguments.pin is not None:
            return writer.pin(arguments.pin)
        return writer.unpin() if arguments.unpin else writer.rollback()


def _gate(arguments: Any) -> Gate | None:
    from paddlebox.config.checkpoint import Bounds
    from paddlebox.serving.gate import Gate

    bounds = arguments.min_auc or arguments.max_copc_drift
    if bounds and not arguments.gate_files:
        raise ConfigError("--min-auc and --max-copc-drift need --gate-files")
    if arguments.gate_files and not bounds:
        raise ConfigError("--gate-files needs --min-auc or --max-copc-drift")
    if not bounds:
        return None
    drift = arguments.max_copc_drift
    copc = Bounds(copc=(max(0.0, 1 - drift), 1 + drift)) if drift else Bounds()
    return Gate(arguments.gate_files, copc, arguments.min_auc)


def _chosen(arguments: Any) -> dict[str, Any]:
    """The options that describe a run, as arguments of RunSource."""
    overrides = [*arguments.override]
    return {
        "config": load_config(arguments.config, overrides) if arguments.config else None,
        "overrides": overrides,
        "version": arguments.version,
        "threshold": arguments.threshold,
    }


def _export(arguments: Any, chosen: dict[str, Any], gate: Gate | None) -> Any:
    from paddlebox.serving.writer import export_ensemble

    paths = (arguments.from_save or arguments.path, *arguments.others)
    sources: list[contextlib.AbstractContextManager[Any]] = [
        _opened(path, arguments, chosen) for path in paths
    ]
    precision = arguments.precision or "float32"
    with contextlib.ExitStack() as stack:
        if not arguments.others:  # opened first, so that its errors do not name the file
            sources = [contextlib.nullcontext(stack.enter_context(sources[0]))]
        onnx = arguments.onnx
        return export_ensemble(sources, arguments.out, precision=precision, gate=gate, onnx=onnx)


def _apply(writer: Writer, arguments: Any, chosen: dict[str, Any], gate: Gate | None) -> Any:
    from paddlebox.serving.gate import filters_of
    from paddlebox.serving.writer import MOST_FEWER

    newest = writer.newest()
    filters = filters_of(newest) if newest is not None else None
    most = 1.0 if arguments.force else MOST_FEWER
    with _opened(arguments.apply, arguments, chosen, filters) as source:
        precision, onnx = arguments.precision, arguments.onnx
        return writer.apply(source, precision=precision, gate=gate, most_fewer=most, onnx=onnx)


@contextlib.contextmanager
def _opened(
    path: Path, arguments: Any, chosen: dict[str, Any], filters: Any = None
) -> Iterator[Any]:
    """A run or a save, opened when the context is entered. At its end, its version is logged, and
    what a run left out. filters: those of the newest version of the export file."""
    from paddlebox.serving.source import RunSource, SaveSource, is_save
    from paddlebox.training.config_changes import check_evaluated

    phase, file = Phase(arguments.phase), arguments.out or arguments.path
    if arguments.from_save is not None or (arguments.out is None and is_save(path)):
        for option, value in chosen.items():
            if value not in (None, []):
                raise ConfigError(f"--{option} is for a run; {path} is a save, which has its own")
        if phase is Phase.JOIN:
            raise ConfigError(f"--phase join is for a run; {path} is a save, which serves update")
        save = SaveSource(path, whole=arguments.out is not None)
        yield save
        log.info("%s: %s of %s", file, _version(save), path)
        return
    with RunSource(path, **chosen, filters=filters) as source:
        check_evaluated(path, source.head, source.config, source.slots)
        source.choose(phase)
        yield source
        log.info("%s: %s of %s; %s", file, _version(source), path, source.summary())


def _version(source: Source) -> str:
    meta = source.meta
    return title(meta["version"], meta["pass_number"], meta["day"])
