"""Combinations of settings that a config cannot have: `Config` checks each row of the tables
`EXCLUDES` and `NEEDS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paddlebox.config.data import Format, ShareBy
from paddlebox.config.models import CustomConfig, ModelConfig
from paddlebox.config.stream import kafka_of
from paddlebox.config.table import HbmPlace
from paddlebox.config.trainer import OptimizerConfig, Phase, Schedule, Wire

if TYPE_CHECKING:
    from paddlebox.config.schema import Config

#: Returns what a config has, as an error names it; "" if the config does not have it.
Setting = Callable[["Config"], str]

_PAIRS = 8192  # instances; an array of all pairs then has 256 MiB


def check_combinations(config: Config) -> None:
    """Raise ValueError, which names the settings, for the first rule that a config breaks."""
    for first, second, why in EXCLUDES:
        if (one := first(config)) and (other := second(config)):
            raise ValueError(
                f"{one} does not work together with {other}: {why}: take one of them out"
            )
    for needing, has, needed in NEEDS:
        if (one := needing(config)) and not has(config):
            raise ValueError(f"{one} needs {needed.format(config)}")


def _optimizers(config: Config) -> dict[str, OptimizerConfig]:
    phases = {f"phases.{name}.optimizer": one.optimizer for name, one in config.phases.items()}
    return phases or {"optimizer": config.optimizer}


def _with(what: str, test: Callable[[ModelConfig], object]) -> Setting:
    """A model that passes a test. what: its key, and its value as a format of the model."""

    def found(config: Config) -> str:
        of_keys = config.models.items()
        return next((f"{key}.{what.format(one)}" for key, one in of_keys if test(one)), "")

    return found


def _key(what: str, test: Callable[[Config], object]) -> Setting:
    """A config that passes a test. what: the key and its value, as a format of the config."""
    return lambda config: what.format(config) if test(config) else ""


def _join(test: Callable[[ModelConfig], object]) -> Setting:
    """A model of the join phase that passes a test."""

    def found(config: Config) -> str:
        if not config.phases or not test(config.phases[Phase.JOIN].model):
            return ""
        return f"phases.join.model.type {config.phases[Phase.JOIN].model.type.value}"

    return found


def _served(test: Callable[[ModelConfig], object]) -> Setting:
    """A served model, the only one or that of update, that passes a test."""

    def found(config: Config) -> str:
        key = "phases.update.model" if config.phases else "model"
        return f"{key}.type {config.model.type.value}" if test(config.model) else ""

    return found


def _either(*settings: Setting) -> Setting:
    return lambda config: next((found for one in settings if (found := one(config))), "")


def _wire(name: str) -> Setting:
    return lambda config: (
        f"ranks.{name} {wire.value}"
        if (wire := getattr(config.ranks, name)) is not Wire.FLOAT32
        else ""
    )


def _code(config: Config) -> str:
    names = ("pipe_command", "parser")
    of_data = [f"data.{name}" for name in names if getattr(config.data, name)]
    layers = _with("layer", lambda model: isinstance(model, CustomConfig))(config)
    losses = _with("loss", lambda model: model.runs_code)(config)
    return next(filter(None, [*of_data, layers, losses]), "")


def _plateau(config: Config) -> str:
    of_keys = _optimizers(config).items()
    found = (key for key, one in of_keys if one.schedule is Schedule.PLATEAU)
    return next((f"{key}.schedule plateau" for key in found), "")


def _metric_of_a_phase(config: Config) -> str:
    return next((f"metric {one.name!r}" for one in config.metrics if one.phase != "both"), "")


def _update_group(config: Config) -> str:
    group = config.model.loss_group
    return f"phases.update.model.loss_group {group}" if config.phases and group else ""


def _page_views(model: ModelConfig) -> bool:
    return model.page_views


def _reads_sequences(model: ModelConfig) -> bool:
    return model.reads_sequences


_phases = _key("phases", lambda c: c.phases)
_gpu = _key("hbm.place gpu", lambda c: c.hbm.place is not HbmPlace.HOST)
_saves = _key("save.out", lambda c: c.save.out)
_epochs = _key("trainer.epochs {0.trainer.epochs}", lambda c: c.trainer.epochs > 1)
_sequences = _key("data.sequences", lambda c: c.data.sequences.user)
_negatives = _key("data.negative_rate {0.data.negative_rate}", lambda c: c.data.negative_rate < 1)
_large_batch = _key("data.batch_size {0.data.batch_size}", lambda c: c.data.batch_size > _PAIRS)
_by_instance = _key(
    "data.share {0.data.share}",
    lambda c: c.data.share_by[0] in (ShareBy.INSTANCE, ShareBy.INS_ID),
)
_holdout = _key("data.holdout", lambda c: c.data.holdout)
_holdout_of_places = _key(
    "data.holdout.share without by", lambda c: c.data.holdout and c.data.holdout.of_places
)
_drop_last = _key("data.drop_last", lambda c: c.data.drop_last)
_history = _key("data.sequences.history", lambda c: c.data.sequences.history.length)
_hours = _key("data.path_template", lambda c: c.data.path_template)
_stream = _key("data.stream", lambda c: c.data.stream)
_columns = _key(
    "data.format {0.data.format}",
    lambda c: c.data.format in (Format.PARQUET, Format.ORC),
)
_arrow = _key("data.format arrow", lambda c: c.data.format is Format.ARROW)
_folder = _key(
    "data.stream of a folder", lambda c: c.data.stream and not kafka_of(c.data.stream.source)
)
_filters = _key("data.pipe_command", lambda c: c.data.pipe_command)
_parser = _key("data.parser", lambda c: c.data.parser)
_days = _key("data.files_per_day", lambda c: c.data.files_per_day)
_more_tables = _key("extra_tables", lambda c: c.extra_tables)
_decay = _key("table.weight_decay", lambda c: any(table.weight_decay for table in c.tables))
_counts = _key("table.counts", lambda c: c.table.counts)
_reset = _key("trainer.reset_rows", lambda c: c.trainer.reset_rows)
_partial = _key("checkpoint.partial_recovery", lambda c: c.checkpoint.partial_recovery)
_stop = _key("checkpoint.guard.quality: stop", lambda c: c.checkpoint.guard.quality == "stop")
_dates = _key("checkpoint.every: date", lambda c: c.checkpoint.every == "date")
_gate = _key("publish.gate_files", lambda c: c.publish.gate_files)
_file = _key("publish.file", lambda c: c.publish.file)
_sinks = _key("publish.to", lambda c: c.publish.to)
_click_prior = _with("click_prior", lambda m: m.has_click_priors)
_grouped = _with("loss_group", lambda m: m.loss_group)
_delayed = _with("delayed_task {0.delayed}", lambda m: m.delayed)

_HOST = "only the host computes it"
_CLICKS = "it counts the clicks of single instances for one program and one table"
_DELTA = "it changes all rows, but a delta has only the rows of its passes"
_ROUNDS = "it rounds what must be exact"
_LACK = "would lack instances that they have when served"
_MISS = "would miss instances: name a column in data.holdout.by"
_ONCE = "with days the files are trained once"
_BOUNDS = "alerts.max_auc_drop or alerts.copc: set one of them"

#: Two settings that exclude each other, and why.
EXCLUDES: tuple[tuple[Setting, Setting, str], ...] = (
    (_join(_page_views), _negatives, f"page views {_LACK}"),
    (_sequences, _negatives, f"sequences {_LACK}"),
    (_sequences, _drop_last, "batches of sequences differ in size, so none is incomplete"),
    (_join(_page_views), _sequences, "join trains on sequences then, not on page views"),
    (_served(_reads_sequences), _phases, "only join has sequences: set phases.join.model"),
    (_served(_reads_sequences), _gate, "the gate predicts single instances, without a history"),
    (_large_batch, _grouped, f"a loss of groups compares all pairs of at most {_PAIRS} instances"),
    (_by_instance, _grouped, "ranks would share a group: set data.share to search_id or slot NAME"),
    (_update_group, _sequences, "update shuffles single instances"),
    (_history, _epochs, "histories go forward in time, and an epoch goes back"),
    (_hours, _epochs, _ONCE),
    (_days, _epochs, _ONCE),
    (_hours, _holdout, "an evaluation would read all hours again"),
    (_stream, _epochs, "a record is trained once"),
    (_stream, _holdout, "an evaluation would read the whole stream again"),
    (_stream, _partial, "a pass that goes on may find other records than it began with"),
    (_stream, _filters, "it filters files"),
    (_stream, _parser, "it parses files"),
    (_stream, _columns, "a record is no such file: use a text format, json or arrow"),
    (_folder, _arrow, "records of a folder are lines: use a text format or json"),
    (_sequences, _holdout_of_places, f"sequences {_MISS}"),
    (_join(_page_views), _holdout_of_places, f"page views {_MISS}"),
    (_click_prior, _phases, _CLICKS),
    (_click_prior, _more_tables, _CLICKS),
    (_click_prior, _sequences, _CLICKS),
    (_click_prior, _negatives, _CLICKS),
    (_click_prior, _partial, "a pass that goes on has counted part of its instances already"),
    (_plateau, _gpu, _HOST),
    (_decay, _gpu, _HOST),
    (_decay, _saves, _DELTA),
    (_reset, _saves, _DELTA),
    (_counts, _gpu, _HOST),
    (_counts, _wire("rows"), _ROUNDS),
    (_counts, _wire("gradients"), _ROUNDS),
    (_delayed, _gpu, _HOST),
    (_delayed, _wire("gradients"), _ROUNDS),
)

#: A setting, whether a config has what it needs, and what that is, as a format of the config.
NEEDS: tuple[tuple[Setting, Callable[[Config], object], str], ...] = (
    (
        _served(_page_views),
        lambda _: False,
        "page views, which only the join phase has: set phases.join.model (docs/phases.md)",
    ),
    (
        _phases,
        lambda c: c.data.logkey or c.data.sequences.user,
        "log keys, because join trains on the instances of one search id: set data.logkey: true",
    ),
    (_metric_of_a_phase, lambda c: c.phases, "a config with phases"),
    (
        _either(_served(_reads_sequences), _join(_reads_sequences)),
        lambda c: c.data.sequences.user,
        "sequences of users: set data.sequences.user, the slot of the user",
    ),
    (
        _plateau,
        lambda c: c.trainer.evaluates_after and c.data.has_tests,
        "trainer.evaluate_passes: after and data.test_files, files that are not trained, or "
        "data.holdout",
    ),
    (_reset, lambda c: c.trainer.epochs > 1, "trainer.epochs above 1: set it, or take it out"),
    (
        _partial,
        lambda c: c.ranks.staleness,
        "ranks.staleness above 0, because it mixes rows of different moments: "
        "set ranks.staleness: 1",
    ),
    (
        _partial,
        lambda c: c.checkpoint.every == "pass",
        "checkpoint.every: pass, found {0.checkpoint.every!r}: a dead rank would lose "
        "several passes",
    ),
    (_file, lambda c: c.save.out, "save.out, found none: set save.out, or take publish.file out"),
    (_sinks, lambda c: c.save.out, "save.out, found none: set save.out, or take publish.to out"),
    (
        _gate,
        lambda c: c.publish.file,
        "publish.file, with which the gate predicts: set publish.file",
    ),
    (
        _key("save.copy_to {0.save.copy_to}", lambda c: c.save.copy_to),
        lambda c: c.save.out,
        "save.out, the folder to which saves are written before they are copied: set save.out",
    ),
    (_stop, lambda c: c.alerts.given, _BOUNDS),
    (_gate, lambda c: c.alerts.given, _BOUNDS),
    (
        _dates,
        lambda c: c.data.date or c.data.path_template or c.data.stream,
        "data.date, the day of the first files",
    ),
    (
        _code,
        lambda c: c.security.allow_commands,
        "security.allow_commands: true, because it runs code: set it if you trust its author",
    ),
)
