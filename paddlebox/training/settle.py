"""Chooses values that a config leaves open, once, when a run begins: from its model and the number
of its rows and slots, the same on all ranks. Each commit stores them as if the config had named
them. A run with commits uses its stored values for all keys that its config does not name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox.config import Config, KeySpace, ModelType, Rule, Slots, TableConfig
from paddlebox.config.check import validate
from paddlebox.config.combinations import check_combinations
from paddlebox.config.fields import click_slots
from paddlebox.config.models import AnyModelConfig
from paddlebox.config.section import list_to_tuple
from paddlebox.config.slots import VALUES
from paddlebox.config.stored import with_stored
from paddlebox.config.trainer import PhaseConfig
from paddlebox.data.first_look import FirstLook, Numbers
from paddlebox.data.prior_gain import slots_that_gain
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.run_config import stored_config
from paddlebox.training.opening import read_slots
from paddlebox.training.pass_line import Lines
from paddlebox.training.plan import PlannedPass, check_click_priors
from paddlebox.training.resume import ResumeRequest

log = logging.getLogger("paddlebox")


# Chosen with benchmarks/defaults.py (docs/results.md).
_BATCH_SIZES = (  # (fewest training rows of a rank, batch size)
    *((1_000_000, 512), (400_000, 256), (50_000, 128)),
    *((25_000, 64), (0, 32)),
)
_UNCOUNTED = 512  # if rows cannot be counted: hours, streams, and files read by a command
# Bounds of the learning rate of embed_w. The embed_w of each slot in an instance adds to the logit,
# so a model with fewer slots gets a higher rate. Models without a network get the upper bound.
_RATES = (0.05, 0.2)
_INITIAL_G2SUM = 1.0
_WITHOUT_NETWORK = (ModelType.LR, ModelType.FM)
# Logistic regression gains from several epochs at a lower rate. FM does not: its vectors overfit.
_LR_EPOCHS, _LR_RATE_OF_EPOCHS, _LR_EPOCHS_BELOW_ROWS = 5, 0.1, 400_000
_LR_RATE_OF_IDS = 2.4  # a step moves a logit by the rate times the number of its ids
# Networks gain from a second epoch that begins with new rows. From the third on they overfit fewer
# rows, and more rows cost more time than they gain.
_EPOCHS, _FEW_ROWS = 2, range(2_000, 100_000)
# For as few rows, wider networks have the same AUC and take 1.5 times as long (docs/quality.md).
_HIDDEN_OF_FEW_ROWS = (256, 128)
_DENSE_RATE_WITHOUT_NETWORK = 0.1  # such models have few dense parameters, which start at 0
_LOOKED_ROWS = 20_000  # first rows from which values are chosen
# Models with a network for one label gain from click priors; the log loss of LR and FM may rise.
_WITH_PRIORS = (
    *(ModelType.DNN, ModelType.WIDE_DEEP, ModelType.DEEPFM, ModelType.DCN, ModelType.DCN_V2),
    *(ModelType.XDEEPFM, ModelType.AUTOINT, ModelType.FIBINET, ModelType.DLRM, ModelType.GATENET),
    *(ModelType.MASKNET, ModelType.FINALMLP, ModelType.DIN, ModelType.DIEN, ModelType.BST),
)
_FEW_STEPS = 300  # after fewer steps, dense layers are still close to their initial values


def settled(
    request: ResumeRequest,
    plan: Sequence[PlannedPass],
    world: Group,
    source: Mapping[str, Any] | None = None,
    look: FirstLook | None = None,
    *,
    filled: bool = False,
) -> Config:
    """The config that the run trains with. Every rank calls it.

    Args:
        request: with the config as the user wrote it.
        plan: the passes of the config; empty for hours and streams.
        source: the stored config of the run, or of its network, with which this run starts.
        look: reads the first rows of files; None: a new one.
        filled: whether the run starts with rows, of a run or imported ones.

    Raises: DataError, which names a file that cannot be read; StoreError if the version `back_to`
    does not exist; ConfigError if this version of paddlebox cannot read the stored config.
    """
    config, slots, run_dir = request.config, request.slots, request.run_dir
    found = world.gather("stored config", stored_config(run_dir, request.back_to))
    stored = next((one for one in found if one), None)
    if stored is not None:
        return with_stored(config, stored, f"{run_dir}: config")
    if source is not None:
        config = _like(config, source, slots)
    return chosen(config, slots, plan, world, look, filled=filled)


def chosen(
    config: Config,
    slots: Slots,
    plan: Sequence[PlannedPass],
    world: Group = ONE_RANK,
    look: FirstLook | None = None,
    *,
    filled: bool = False,
) -> Config:
    """The config that a new run trains with. Every rank calls it. filled: whether it starts with
    rows. Raises: DataError, which names a file that cannot be read."""
    choice = _Choice(slots, plan, world, look or FirstLook(config, slots))
    config = choice.with_exact_values(config, filled)
    config = choice.with_priors(config)
    config = choice.with_steps(config, filled)
    config = choice.with_rates(config)
    config = choice.with_encodings(config)
    if choice.reasons and world.rank == 0:
        text = "; ".join(dict.fromkeys(choice.reasons))
        log.info("chosen, because the config does not name them: %s", text)
    return config


def warn_of_few_steps(config: Config, lines: Lines) -> None:
    """Log a warning at the end of a run if it trained too few steps to learn much. There is none
    if lines of earlier starts are lost."""
    if lines.batches < _FEW_STEPS and lines.passes == lines.last.get("pass"):
        measured = batch_size_for(lines.samples // config.trainer.epochs)
        log.warning(
            "%s: the run ends after %d training steps of data.batch_size %d; fewer than %d are too "
            "few for a model to learn well: %s",
            config.name,
            lines.batches,
            config.data.batch_size,
            _FEW_STEPS,
            # More epochs are no advice: most models overfit small data.
            f"data.batch_size: auto takes {measured} for so few rows"
            if measured < config.data.batch_size
            else "train on more data",
        )


def batch_size_for(rows: int) -> int:
    """The batch size that `auto` stands for. rows: training rows of a rank in an epoch."""
    return next(size for least, size in _BATCH_SIZES if rows >= least)


def _like(config: Config, source: Mapping[str, Any], slots: Slots) -> Config:
    """The config with the key_space, exact_values, use_cvm, hidden, click_prior, dense_scale and
    dense_ranges of another run, unless it names them: the rows and layers of that run have no
    meaning with other values.
    Raises: ConfigError if the config does not allow one of them."""
    theirs = source["data"]["key_space"]
    if "key_space" not in config.data.model_fields_set and theirs in [*KeySpace]:
        config = config.having({"data.key_space": KeySpace(theirs)})
    values = source["data"].get("exact_values", "auto")
    if config.data.exact_values == "auto" and values != "auto":
        own = [slot.name for slot in slots.dense if slot.dim == 1]
        values = {name: tuple(of) for name, of in values.items() if name in own}
        config = config.having({"data.exact_values": values})
    made = config.with_phases(
        lambda name, phase: phase.having(
            {"model": _model_like(phase.model, source, name, slots.dense_width)}
        )
    )
    origin = "config (what it does not name is taken over from the source of the rows)"
    validate(Config, made.model_dump(mode="json"), origin)
    return made


def _model_like(
    model: AnyModelConfig, source: Mapping[str, Any], phase: str, dense_width: int
) -> AnyModelConfig:
    of_phases = source.get("phases") or {}
    theirs = of_phases.get(phase, source)["model"]
    update: dict[str, Any] = {}
    if "use_cvm" in type(model).model_fields and "use_cvm" in theirs:
        update["use_cvm"] = theirs["use_cvm"]
    if theirs["type"] == model.type and "hidden" in theirs:
        update["hidden"] = tuple(theirs["hidden"])
    prior = theirs["click_prior"]
    update["click_prior"] = False if prior == "auto" else list_to_tuple(prior)
    for key in ("dense_scale", "dense_ranges"):
        value = theirs[key]
        if isinstance(value, str) or len(value) == dense_width:
            update[key] = value if isinstance(value, str) else tuple(map(tuple, value))
    named = {key for key in model.model_fields_set if getattr(model, key) != "auto"}
    return model.having({key: value for key, value in update.items() if key not in named})


class _Choice:
    """Chooses the values of a new run. Methods take a config and return it with chosen values;
    every rank calls them in the same order. The first rank reads files."""

    def __init__(
        self, slots: Slots, plan: Sequence[PlannedPass], world: Group, look: FirstLook
    ) -> None:
        self._slots, self._plan, self._world, self._look = slots, plan, world, look
        self.reasons: list[str] = []  # what was chosen, and why

    def with_exact_values(self, config: Config, filled: bool) -> Config:
        """With dense slots in place of `exact_values: auto`, which runs that choose none keep: for
        them it means none."""
        model, taken = config.model, {slot.name for slot in self._slots.slots}
        names = [
            slot.name
            for slot in self._slots.dense
            if slot.dim == 1 and slot.name + VALUES not in taken
        ]
        able = model.type in _WITH_PRIORS and not (config.phases or model.slots or filled)
        able = able and model.dense_scale == model.dense_ranges == "auto"
        found: dict[str, tuple[float, ...]] = {}
        if config.data.exact_values != "auto":
            found = config.data.exact_values
        elif able and names and self._may_look(config):
            if self._world.rank == 0:
                found = self._look.exact_values(self._plan[0].files, _LOOKED_ROWS, names)
            theirs = self._world.first("exact values", found)
            found = {name: tuple(of) for name, of in theirs.items()}
            config = config.having({"data.exact_values": found})
            if found:
                self.reasons.append(f"data.exact_values of {', '.join(found)}")
        if found:
            self._slots = self._slots.with_exact_values(found)
            self._look = self._look.having(self._slots.slots)
        return config

    def with_priors(self, config: Config) -> Config:
        """With slots in place of `click_prior: auto`, which models that cannot gain keep: for them
        it means none."""
        model = config.model
        if config.phases or model.type not in _WITH_PRIORS or model.click_prior != "auto":
            return config
        found, why = tuple[str, ...](), self._no_priors(config)
        if not why:
            candidates = click_slots(model.having({"click_prior": True}), self._slots)
            if self._world.rank == 0:
                first = self._look.first_rows(self._plan[0].files, _LOOKED_ROWS)
                gain = slots_that_gain(first, candidates)
                found = tuple(self._slots.sparse[number].name for number in gain)
            found = tuple(self._world.first("click priors", found))
            why = f"no slot of rare values gains in the first {_LOOKED_ROWS} rows"
        shown = f"of {len(found)} slots" if found else f"false ({why})"
        self.reasons.append(f"model.click_prior {shown}")
        return config.having({"model.click_prior": found or False})

    def with_steps(self, config: Config, filled: bool) -> Config:
        """With a batch size, a number of epochs and the size of the network."""
        several = _may_have_epochs(config, filled)
        sized = not (filled or config.phases) and config.model.type in _WITH_PRIORS
        sized = sized and "hidden" not in config.model.model_fields_set
        if config.data.batch_size != 0 and not several and not sized:
            return config
        rows, why = self._rows(config)
        if config.data.batch_size == 0:
            size = _UNCOUNTED if rows is None else batch_size_for(rows // self._world.size)
            config = config.having({"data.batch_size": size})
            self.reasons.append(f"data.batch_size {size} ({why})")
        if sized and rows is not None and rows in _FEW_ROWS:
            config = config.having({"model.hidden": _HIDDEN_OF_FEW_ROWS})
            self.reasons.append(f"model.hidden {list(_HIDDEN_OF_FEW_ROWS)} ({why})")
        if not several or rows is None:
            return config
        if config.model.type is ModelType.LR:
            if rows >= _LR_EPOCHS_BELOW_ROWS:
                return config
            self.reasons.append(f"trainer.epochs {_LR_EPOCHS} (model lr, {why})")
            return config.having({"trainer.epochs": _LR_EPOCHS})
        if rows not in _FEW_ROWS:
            return config
        self.reasons.append(f"trainer.epochs {_EPOCHS}, trainer.reset_rows ({why})")
        return config.having({"trainer.epochs": _EPOCHS, "trainer.reset_rows": True})

    def with_rates(self, config: Config) -> Config:
        """With learning rates for the model and the number of slots, unless the config names
        them."""
        alone = config.model.type in _WITHOUT_NETWORK and not config.phases
        least, most = _RATES
        rate = round(min(max(1.0 / max(len(self._slots.sparse), 1), least), most), 3)
        if alone:
            of_epochs = config.model.type is ModelType.LR and config.trainer.epochs > 1
            rate = _LR_RATE_OF_EPOCHS if of_epochs else most
            rate = round(min(rate, _LR_RATE_OF_IDS / max(self._ids_of_a_row(config), 1.0)), 4)
        table, *others = [
            self._with_rate(table, f"extra_tables.{table.name}" if number else "table", rate)
            for number, table in enumerate(config.tables)
        ]
        update: dict[str, Any] = {"table": table, "extra_tables": {one.name: one for one in others}}
        if alone and "learning_rate" not in config.optimizer.model_fields_set:
            update["optimizer.learning_rate"] = _DENSE_RATE_WITHOUT_NETWORK
            self.reasons.append(
                f"optimizer.learning_rate {_DENSE_RATE_WITHOUT_NETWORK} "
                f"(model {config.model.type.value})"
            )
        made = config.having(update)
        if not config.ranks.sync_weight_step:
            return made

        def not_averaged(name: str, phase: PhaseConfig) -> PhaseConfig:
            if not phase.optimizer.averaging or "averaging" in phase.optimizer.model_fields_set:
                return phase
            key = f"phases.{name}.optimizer" if config.phases else "optimizer"
            self.reasons.append(f"{key}.averaging 0 (ranks.sync_weight_step)")
            return phase.having({"optimizer.averaging": 0.0})

        return made.with_phases(not_averaged)  # each rank has parameters of its own

    def with_encodings(self, config: Config) -> Config:
        """With computed values in place of `dense_scale: auto` and `dense_ranges: auto`."""
        models = [config.model, *(phase.model for phase in config.phases.values())]
        if not self._slots.dense_width or all(model.dense_scale != "auto" for model in models):
            return config
        found = Numbers((), ())
        if self._may_look(config):
            mine = self._world.rank == 0
            own = self._look.numbers(self._plan[0].files, _LOOKED_ROWS) if mine else found
            found = _as_numbers(self._world.first("dense features", own))

        def encoded(_: str, phase: PhaseConfig) -> PhaseConfig:
            model = phase.model
            if model.dense_scale != "auto":  # a config that names the scales gets no ranges either
                return phase
            custom = model.type is ModelType.CUSTOM  # its layer may encode features by itself
            scales = "none" if custom or not found.scales else found.scales
            ranged = any(found.ranges) and not (custom or model.reads_sequences)
            wanted: dict[str, Any] = {"model.dense_scale": scales}
            if model.dense_ranges == "auto":
                wanted["model.dense_ranges"] = found.ranges if ranged else "none"
            return phase.having(wanted)

        made = config.with_phases(encoded)
        for key in ("dense_scale", "dense_ranges"):
            values = [getattr(model, key) for model in (made.model, config.model)]
            if not isinstance(values[0], str) and values[1] == "auto":
                self.reasons.append(f"model.{key} of {len(values[0])} dense features")
        return made

    # ---- implementation

    def _may_look(self, config: Config) -> bool:
        """Whether the first rows can be read in advance."""
        return bool(self._plan) and not (config.data.pipe_command or config.data.parser)

    def _no_priors(self, config: Config) -> str:
        """Why no slot may have click priors; empty if slots may."""
        if not self._may_look(config):
            return "the first rows cannot be read in advance"
        wanted = config.having({"model.click_prior": True})
        try:
            check_combinations(wanted)
            read_slots(wanted, self._slots)
            check_click_priors(wanted, self._plan, 0)
        except ValueError as error:
            return str(error)
        return "" if click_slots(wanted.model, self._slots) else "no sparse slots"

    def _rows(self, config: Config) -> tuple[int | None, str]:
        """The approximate number of rows of an epoch on all ranks, or None; and a text about it.
        It is the number of rows of the first pass times that of the passes."""
        if not self._plan or config.data.pipe_command:
            return None, "the rows cannot be counted in advance"
        most = _BATCH_SIZES[0][0] * self._world.size  # more rows of a rank change nothing
        passes, mine = sum(planned.epoch == 1 for planned in self._plan), 0
        if self._world.rank == 0:
            mine = passes * self._look.rows(self._plan[0].files, -(-most // passes))
        rows = int(self._world.first("rows", mine))
        return rows, f"{'at least' if rows >= most else 'about'} {rows} training rows"

    def _ids_of_a_row(self, config: Config) -> float:
        """The mean number of feasigns of a row, for a regression of several epochs whose learning
        rate it bounds; else 0."""
        several = config.model.type is ModelType.LR and config.trainer.epochs > 1
        named = all("learning_rate" in table.embed.model_fields_set for table in config.tables)
        if named or not (several and self._may_look(config)):
            return 0.0
        first = self._world.rank == 0
        mine = self._look.ids(self._plan[0].files, _LOOKED_ROWS) if first else 0.0
        return float(self._world.first("ids of a row", mine))

    def _with_rate(self, table: TableConfig, where: str, rate: float) -> TableConfig:
        """The table with a learning rate and an initial g2sum of embed_w, unless it names them.
        where: key of its section."""
        if table.embed.rule is not Rule.ADAGRAD:
            return table
        named = table.embed.model_fields_set
        wanted = {"learning_rate": rate, "initial_g2sum": _INITIAL_G2SUM}
        taken = {key: value for key, value in wanted.items() if key not in named}
        if taken:
            shown = ", ".join(f"{where}.embed.{key} {value}" for key, value in taken.items())
            self.reasons.append(f"{shown} ({len(self._slots.sparse)} slots)")
        return table.having({f"embed.{key}": value for key, value in taken.items()})


def _may_have_epochs(config: Config, filled: bool) -> bool:
    """Whether several epochs may be chosen. Not for data ordered by day, hour or pass, nor with
    histories of users, because an epoch goes back in time."""
    data, trainer = config.data, config.trainer
    in_order = data.date or data.path_template or data.files_per_day or data.stream
    in_order = in_order or data.sequences.history.length
    once = config.model.has_click_priors and config.table.admission.min_count > 1  # plan.py
    if config.phases or "epochs" in trainer.model_fields_set or in_order or once:
        return False
    if config.model.type in _WITHOUT_NETWORK:
        return config.model.type is ModelType.LR
    # A later epoch begins with new rows, which neither a source nor a delta save allows.
    if filled or config.save.out or data.files_per_pass or data.sequences.user:
        return False
    return config.model.type is not ModelType.CUSTOM and not trainer.model_fields_set & {
        "reset_rows"
    }


def _as_numbers(found: Sequence[Sequence[Sequence[float]]]) -> Numbers:
    """`Numbers` after a message, which has lists in place of tuples."""
    scales, ranges = found
    return Numbers(
        tuple((mean, deviation) for mean, deviation in scales), tuple(map(tuple, ranges))
    )
