"""The schema of a configuration: one frozen `Config` describes a run.

Each section has its own file. The ``description`` of a field appears in docs/config.md. Names
contain units: a ``_bytes`` key takes an int or a text such as "64MiB".
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paddlebox.config.alerts import AlertsConfig
from paddlebox.config.checkpoint import CheckpointConfig
from paddlebox.config.custom_model import CustomConfig
from paddlebox.config.data import DataConfig, FeederConfig, ShareBy
from paddlebox.config.metrics import MetricConfig
from paddlebox.config.models import SEARCH_ID
from paddlebox.config.passwords import refuse_passwords
from paddlebox.config.phases import Phase, PhaseConfig
from paddlebox.config.ranks import RanksConfig, Wire
from paddlebox.config.save import PublishConfig, SaveConfig
from paddlebox.config.section import ListOf, Section
from paddlebox.config.sequences import SequencesConfig
from paddlebox.config.table import TableConfig
from paddlebox.config.tiers import HbmConfig, HbmPlace, MemConfig, SsdConfig, StoreConfig
from paddlebox.config.trainer import OptimizerConfig, Schedule, TrainerConfig
from paddlebox.config.zoo import AnyModelConfig

MAX_TABLES = 64
_MOST_GROUPED = 8192  # instances; an array of all pairs then has 256 MiB
_TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]  # names a folder


def _named_by_key(value: Any) -> Any:
    """Give each table in {key: table} its key as name, if it has no name."""
    if not isinstance(value, dict):
        return value
    return {k: {"name": k, **t} if isinstance(t, dict) else t for k, t in value.items()}


class SecurityConfig(Section):
    """Permissions."""

    allow_commands: bool = Field(
        default=False,
        description="allow data.pipe_command, data.parser, model.layer and a function as "
        "model.loss, which run with your rights",
    )


class Config(Section):
    """A complete configuration, usually made by `paddlebox.config.load_config`."""

    @model_validator(mode="before")
    @classmethod
    def _without_passwords(cls, values: Any) -> Any:
        refuse_passwords(values)  # before other checks, whose errors would quote a password
        return values

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = Field(
        description="name of the run; becomes part of a folder name"
    )
    seed: int = Field(
        default=1,
        ge=0,
        le=2**63 - 1,
        description="seed of the random numbers for rows, shuffles and weights",
    )
    table: TableConfig = Field(default_factory=TableConfig)
    extra_tables: Annotated[dict[_TableName, TableConfig], BeforeValidator(_named_by_key)] = Field(
        default_factory=dict,
        description="further tables, each with the keys of `table`; a table serves the sparse "
        "slots whose `table` in slots.yaml names it",
    )
    hbm: HbmConfig = Field(default_factory=HbmConfig)
    mem: MemConfig = Field(default_factory=MemConfig)
    ssd: SsdConfig = Field(default_factory=SsdConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    data: DataConfig
    feeder: FeederConfig = Field(default_factory=FeederConfig)
    model: AnyModelConfig
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    phases: dict[str, PhaseConfig] = Field(
        default_factory=dict,
        description="join and update, each with `model` and `optimizer`: two programs over the "
        "table, one after the other in each pass; replaces the top-level `model` and `optimizer` "
        "(docs/phases.md)",
    )
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    ranks: RanksConfig = Field(default_factory=RanksConfig)
    metrics: ListOf[MetricConfig] = Field(
        default=(), description="metrics besides the usual ones: docs/metrics.md"
    )
    save: SaveConfig = Field(default_factory=SaveConfig)
    publish: PublishConfig = Field(default_factory=PublishConfig)
    alerts: AlertsConfig = Field(default_factory=AlertsConfig)
    security: SecurityConfig = Field(default_factory=SecurityConfig)

    @model_validator(mode="before")
    @classmethod
    def _update_is_what_serves(cls, given: Any) -> Any:
        """With phases, fill `model` and `optimizer` with those of update, which is served."""
        phases = given.get("phases") if isinstance(given, dict) else None
        if not phases or not isinstance(phases, dict):
            return given
        if set(phases) != {*Phase}:
            found = ", ".join(map(str, phases))
            raise ValueError(f"phases: expected both, join and update, found {found}")
        update = phases["update"] if isinstance(phases["update"], dict) else {}
        for name in ("model", "optimizer"):
            if name in given and given[name] != update.get(name):
                raise ValueError(
                    f"{name} is given together with phases, but each phase has its own {name}: "
                    f"leave it out, or set phases.update.{name}"
                )
        return {
            **{name: update[name] for name in ("model", "optimizer") if name in update},
            **given,
        }

    @model_validator(mode="after")
    def _page_views_are_for_join(self) -> Config:
        if self.model.page_views:
            key = "phases.update.model" if self.phases else "model"
            raise ValueError(
                f"{key}.type {self.model.type.value} reads page views, which only the join phase "
                "has: set phases.join.model (docs/phases.md)"
            )
        if self.phases and not self.data.logkey and not self.data.sequences.user:
            raise ValueError(
                "phases: join trains on page views, and a page view is the instances of one search "
                "id, which is read from log keys: set data.logkey: true"
            )
        alone = [m.name for m in self.metrics if m.phase != "both" and not self.phases]
        if alone:
            raise ValueError(f"metric {alone[0]!r}: phase needs a config with phases")
        return self

    @model_validator(mode="after")
    def _groups_can_be_compared(self) -> Config:
        models = {f"phases.{name}.model": phase.model for name, phase in self.phases.items()}
        grouped = [key for key, one in (models or {"model": self.model}).items() if one.loss_group]
        if not grouped:
            return self
        if self.data.batch_size > _MOST_GROUPED:
            raise ValueError(
                f"data.batch_size {self.data.batch_size} with {grouped[0]}.loss_group: the loss "
                f"compares all pairs of a batch; expected at most {_MOST_GROUPED}"
            )
        if self.data.share_by[0] in (ShareBy.INSTANCE, ShareBy.INS_ID):
            raise ValueError(
                f"data.share {self.data.share} with {grouped[0]}.loss_group: ranks would share the "
                "instances of a group: set data.share to search_id or `slot NAME`"
            )
        user = self.data.sequences.user
        if user and not self.phases and self.model.loss_group != user:
            raise ValueError(
                f"model.loss_group: expected {user}, the user of data.sequences, found "
                f"{self.model.loss_group!r}: a batch has all instances of a user"
            )
        return self

    @model_validator(mode="after")
    def _groups_of_phases_are_in_one_batch(self) -> Config:
        if not self.phases:
            return self
        user = self.data.sequences.user
        join, update = (self.phases[phase].model.loss_group for phase in (Phase.JOIN, Phase.UPDATE))
        if join not in ("", user or SEARCH_ID):
            raise ValueError(
                f"phases.join.model.loss_group: expected {user or SEARCH_ID}, by which join makes "
                f"its batches, found {join!r}"
            )
        if update and user:
            raise ValueError(
                f"phases.update.model.loss_group {update} with data.sequences: update shuffles "
                "single instances, so a batch has few of a group: take loss_group out"
            )
        return self

    @model_validator(mode="after")
    def _page_views_are_whole(self) -> Config:
        rate = self.data.negative_rate
        if self.phases and rate < 1 and self.phases[Phase.JOIN].model.page_views:
            raise ValueError(
                f"data.negative_rate {rate} with phases.join.model.type "
                f"{self.phases[Phase.JOIN].model.type.value}: page views would lack instances that "
                "they have when the model is evaluated: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _click_priors_have_one_table_of_the_host(self) -> Config:
        models = {f"phases.{name}.model": phase.model for name, phase in self.phases.items()}
        wanted = [key for key, one in (models or {"model": self.model}).items() if one.click_prior]
        if not wanted:
            return self
        for other, found in {
            "phases": bool(self.phases),
            "extra_tables": bool(self.extra_tables),
            "data.sequences": bool(self.data.sequences.user),
            "data.negative_rate": self.data.negative_rate < 1,
            "hbm.place gpu": self.hbm.place is not HbmPlace.HOST,
        }.items():
            if found:
                raise ValueError(
                    f"{wanted[0]}.click_prior does not work together with {other}: take one of "
                    "them out"
                )
        return self

    @model_validator(mode="after")
    def _schedules_have_what_they_need(self) -> Config:
        optimizers = {f"phases.{n}.optimizer": phase.optimizer for n, phase in self.phases.items()}
        for key, one in (optimizers or {"optimizer": self.optimizer}).items():
            if one.schedule is Schedule.PLATEAU and not (
                self.trainer.evaluate_after_pass and self.data.test_files
            ):
                raise ValueError(
                    f"{key}.schedule plateau needs trainer.evaluate_after_pass: true and "
                    "data.test_files, files that are not trained"
                )
            if one.schedule is Schedule.PLATEAU and self.hbm.place is not HbmPlace.HOST:
                raise ValueError(
                    f"{key}.schedule plateau does not work together with hbm.place "
                    f"{self.hbm.place.value}"
                )
        found = {name: phase.optimizer.schedule.value for name, phase in self.phases.items()}
        if len({*found.values()}) > 1:
            told = " and ".join(f"{value} in {name}" for name, value in found.items())
            raise ValueError(
                f"phases: optimizer.schedule is {told}: the phases train the same rows, so give "
                "both the same value"
            )
        return self

    @model_validator(mode="after")
    def _weights_decay_on_one_host(self) -> Config:
        decays = any(table.weight_decay for table in self.tables)
        if decays and self.hbm.place is not HbmPlace.HOST:
            raise ValueError("table.weight_decay does not work together with hbm.place gpu")
        if decays and self.save.out:
            raise ValueError(
                "table.weight_decay changes all rows, but a delta in save.out has only rows of its "
                "passes: take one of them out"
            )
        return self

    @model_validator(mode="after")
    def _counts_are_exact_and_on_the_host(self) -> Config:
        counts = self.table.counts
        for table in self.tables[1:]:
            if table.counts != counts:
                raise ValueError(
                    f"extra_tables.{table.name}.counts is {list(table.counts)}, table.counts is "
                    f"{list(counts)}: one input feeds the counts of all tables: give all the same"
                )
        if counts and self.hbm.place is not HbmPlace.HOST:
            raise ValueError("table.counts does not work together with hbm.place gpu")
        for key in ("rows", "gradients"):
            wire = getattr(self.ranks, key)
            if counts and wire is not Wire.FLOAT32:
                raise ValueError(
                    f"ranks.{key} {wire.value} rounds the counts of table.counts: set float32, or "
                    "leave counts out"
                )
        return self

    @model_validator(mode="after")
    def _late_lines_are_exact_and_on_the_host(self) -> Config:
        models = [self.model, *(phase.model for phase in self.phases.values())]
        delayed = [model.delayed for model in models if model.delayed]
        if delayed and self.hbm.place is not HbmPlace.HOST:
            raise ValueError(f"delayed_task {delayed[0]} does not work together with hbm.place gpu")
        if delayed and self.ranks.gradients is not Wire.FLOAT32:
            raise ValueError(
                f"ranks.gradients {self.ranks.gradients} rounds the weights of late lines, which "
                f"delayed_task {delayed[0]} sends: set float32, or leave delayed_task out"
            )
        return self

    @model_validator(mode="after")
    def _rows_are_reset_between_epochs(self) -> Config:
        if not self.trainer.reset_rows:
            return self
        if self.trainer.epochs == 1:
            raise ValueError(
                "trainer.reset_rows needs trainer.epochs above 1: set it, or take it out"
            )
        if self.save.out:
            raise ValueError(
                "trainer.reset_rows resets all rows, but a delta in save.out has only rows of its "
                "passes: take one of them out"
            )
        return self

    @model_validator(mode="after")
    def _sequences_are_there(self) -> Config:
        joins = self.phases[Phase.JOIN].model if self.phases else None
        for key, model in (("phases.join.model", joins), ("model", self.model)):
            if model is None:
                continue
            if model.reads_sequences and not self.data.sequences.user:
                raise ValueError(
                    f"{key}.type {model.type.value} reads sequences of users: set "
                    "data.sequences.user, the slot of the user"
                )
            if model.page_views and self.data.sequences.user:
                raise ValueError(
                    f"{key}.type {model.type.value} reads page views, but with data.sequences "
                    "join trains on sequences: leave data.sequences out, or choose another model"
                )
        if self.data.sequences.history.length and self.trainer.epochs > 1:
            raise ValueError(
                f"data.sequences.history with trainer.epochs {self.trainer.epochs}: histories go "
                "forward in time, and an epoch goes back: take one of these keys out"
            )
        if self.phases and self.model.reads_sequences:
            raise ValueError(
                f"phases.update.model.type {self.model.type.value} reads sequences of users, which "
                "only join has: set phases.join.model"
            )
        return self

    @model_validator(mode="after")
    def _partial_recovery_is_asynchronous(self) -> Config:
        if not self.checkpoint.partial_recovery:
            return self
        if not self.ranks.staleness:
            raise ValueError(
                "checkpoint.partial_recovery mixes rows of different moments, which is not allowed "
                "with ranks.staleness: 0: set ranks.staleness: 1, or leave partial_recovery out"
            )
        if self.checkpoint.every != "pass":
            raise ValueError(
                "checkpoint.partial_recovery needs checkpoint.every: pass, found "
                f"{self.checkpoint.every!r}: a dead rank would lose several passes"
            )
        return self

    @model_validator(mode="after")
    def _published_is_saved(self) -> Config:
        if self.publish.file and not self.save.out:
            raise ValueError(
                "publish.file: expected save.out, because the saves there are applied to the file, "
                "found none: set save.out, or take publish.file out"
            )
        return self

    @model_validator(mode="after")
    def _judges_have_bounds(self) -> Config:
        bounds = "alerts.max_auc_drop, min_copc or max_copc"
        if self.checkpoint.guard.quality == "stop" and not self.alerts.given:
            raise ValueError(f"checkpoint.guard.quality: stop needs {bounds}: set one of them")
        if self.publish.gate_files and not self.alerts.given:
            raise ValueError(f"publish.gate_files needs {bounds}: set one of them")
        if self.publish.gate_files and self.model.reads_sequences:
            raise ValueError(
                f"publish.gate_files: model.type {self.model.type.value} reads the history of a "
                "user, and the gate predicts single instances: take publish.gate_files out"
            )
        return self

    @model_validator(mode="after")
    def _code_runs_only_where_it_may(self) -> Config:
        wanted = [f"data.{name}" for name in ("pipe_command", "parser") if getattr(self.data, name)]
        models = {f"phases.{name}.model": phase.model for name, phase in self.phases.items()}
        models = models or {"model": self.model}
        wanted += [f"{key}.layer" for key, one in models.items() if isinstance(one, CustomConfig)]
        wanted += [f"{key}.loss" for key, one in models.items() if one.runs_code]
        if wanted and not self.security.allow_commands:
            raise ValueError(
                f"{wanted[0]} runs code, which is off: set security.allow_commands: true if "
                "you trust its author"
            )
        return self

    @model_validator(mode="after")
    def _metric_names_once(self) -> Config:
        names = [metric.name for metric in self.metrics]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"metrics: names are given twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _tables_have_names_of_their_own(self) -> Config:
        for key, table in self.extra_tables.items():
            if table.name != key:
                raise ValueError(
                    f"extra_tables.{key}.name is {table.name!r}; the key is the name: leave it out"
                )
        if self.table.name in self.extra_tables:
            raise ValueError(
                f"extra_tables.{self.table.name} has the same name as `table`; choose another "
                "name, or set table.name"
            )
        if len(self.extra_tables) >= MAX_TABLES:
            raise ValueError(
                f"extra_tables: expected fewer than {MAX_TABLES}, found {len(self.extra_tables)}"
            )
        return self

    @property
    def tables(self) -> tuple[TableConfig, ...]:
        """`table`, then `extra_tables` sorted by name.

        The inputs of a model must not depend on the order of tables in a file.
        """
        return (self.table, *(self.extra_tables[name] for name in sorted(self.extra_tables)))

    @model_validator(mode="after")
    def _days_go_forward(self) -> Config:
        dated = self.data.path_template or self.data.files_per_day
        if dated and self.trainer.epochs > 1:
            raise ValueError(
                f"trainer.epochs is {self.trainer.epochs} and data."
                f"{'path_template' if self.data.path_template else 'files_per_day'} {dated}: with "
                "days the files are trained once; take one of these keys out"
            )
        return self

    @model_validator(mode="after")
    def _commits_have_dates(self) -> Config:
        if self.checkpoint.every == "date" and not (self.data.date or self.data.path_template):
            raise ValueError(
                "checkpoint.every is date, but data.date, the day of the first files, is not set"
            )
        return self

    def of_phase(self, phase: Phase) -> Config:
        """The config of one phase, as a config without phases; `self` if it has no phases."""
        if not self.phases:
            return self
        own = self.phases[phase]
        chosen = [m for m in self.metrics if m.phase in ("both", phase)]
        metrics = tuple(m.model_copy(update={"phase": "both"}) for m in chosen)
        data = self.data
        if phase is Phase.UPDATE:  # only join trains sequences
            data = data.model_copy(update={"sequences": SequencesConfig()})
        return self.model_copy(
            update={
                "data": data,
                "model": own.model,
                "optimizer": own.optimizer,
                "phases": dict[str, PhaseConfig](),
                "metrics": metrics,
            }
        )

    def canonical_json(self) -> str:
        """All values, including defaults, as JSON with sorted keys and without spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> str:
        """SHA-256 of `canonical_json`, in hex. Equal values have equal fingerprints."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
