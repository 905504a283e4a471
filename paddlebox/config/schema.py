"""The schema of a configuration: one frozen `Config` describes a run.

Each section has its own file. The ``description`` of a field appears in docs/config.md. Names
contain units: a ``_bytes`` key takes an int or a text such as "64MiB".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paddlebox.config.check import refuse_twice
from paddlebox.config.checkpoint import AlertsConfig, CheckpointConfig, PublishConfig, SaveConfig
from paddlebox.config.combinations import check_combinations
from paddlebox.config.data import DataConfig, FeederConfig, SequencesConfig
from paddlebox.config.metrics import MetricConfig
from paddlebox.config.models import SEARCH_ID, AnyModelConfig, ModelConfig
from paddlebox.config.section import ListOf, Section
from paddlebox.config.table import HbmConfig, MemConfig, SsdConfig, TableConfig
from paddlebox.config.trainer import OptimizerConfig, Phase, PhaseConfig, RanksConfig, TrainerConfig

_WITH_PASSWORD = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")


def refuse_passwords(fields: Any) -> None:
    """Raises: ValueError that names the key, but does not show the value, if a text is a URI with a
    password, such as s3://name:password@bucket."""
    found = list(dict.fromkeys(_keys(fields, "")))
    if found:
        raise ValueError(
            f"{', '.join(found)}: found a URI with a password in it, expected one "
            "without: values are written into the log, the run dir, its versions and saves. Remove "
            "the password; credentials of S3, GCS and HDFS are read from the environment or from "
            "their own files"
        )


def _keys(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, str) and _WITH_PASSWORD.search(value):
        yield key
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _keys(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _keys(inner, key)


MAX_TABLES = 64
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
        description="further tables, each with the keys of `table`, for the sparse slots whose "
        "`table` in slots.yaml names them",
    )
    hbm: HbmConfig = Field(default_factory=HbmConfig)
    mem: MemConfig = Field(default_factory=MemConfig)
    ssd: SsdConfig = Field(default_factory=SsdConfig)
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
    def _combinations_work(self) -> Config:
        check_combinations(self)
        user, join = self.data.sequences.user, self.phases.get(Phase.JOIN)
        key, group = "model", self.model.loss_group
        if join is not None:
            key, group = "phases.join.model", join.model.loss_group
        elif not user:
            return self
        if group not in ("", user or SEARCH_ID):
            raise ValueError(
                f"{key}.loss_group: expected {user or SEARCH_ID}, whose instances are in one "
                f"batch, found {group!r}"
            )
        return self

    @model_validator(mode="after")
    def _phases_and_tables_are_alike(self) -> Config:
        schedules = {str(one.optimizer.schedule) for one in self.phases.values()}
        if len(schedules) > 1:
            raise ValueError(
                f"phases: optimizer.schedule is {' and '.join(sorted(schedules))}: the phases "
                "train the same rows, so give both the same value"
            )
        for table in self.tables[1:]:
            if table.counts != self.table.counts:
                raise ValueError(
                    f"extra_tables.{table.name}.counts is {list(table.counts)}, table.counts is "
                    f"{list(self.table.counts)}: one input feeds the counts of all tables: give "
                    "all the same"
                )
        return self

    @model_validator(mode="after")
    def _metrics_and_tables_have_names_of_their_own(self) -> Config:
        refuse_twice([metric.name for metric in self.metrics], "metrics")
        if self.table.pretrained:
            raise ValueError(
                f"table.pretrained is {self.table.pretrained!r}: vectors have a table of their "
                "own: set extra_tables.NAME.pretrained, and `table: NAME` for a slot"
            )
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
        """`table`, then `extra_tables` sorted by name: the inputs of a model must not depend on the
        order of tables in a file."""
        return (self.table, *(self.extra_tables[name] for name in sorted(self.extra_tables)))

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The model, or that of each phase, by the key of its section."""
        phases = {f"phases.{name}.model": phase.model for name, phase in self.phases.items()}
        return dict(phases) or {"model": self.model}

    def of_phase(self, phase: Phase) -> Config:
        """The config of one phase, as a config without phases; `self` if it has no phases."""
        if not self.phases:
            return self
        own = self.phases[phase]
        chosen = [m for m in self.metrics if m.phase in ("both", phase)]
        metrics = tuple(m.model_copy(update={"phase": "both"}) for m in chosen)
        data = self.data
        if phase is Phase.UPDATE:  # only join trains sequences
            data = data.having({"sequences": SequencesConfig()})
        of_phase = {"model": own.model, "optimizer": own.optimizer}
        return self.having({"data": data, **of_phase, "phases": {}, "metrics": metrics})

    def with_phases(self, change: Callable[[str, PhaseConfig], PhaseConfig]) -> Config:
        """The config with changed phases. change: called with the name and the config of each, as
        well as with "update" and the top-level `model` and `optimizer`."""
        served = change(
            Phase.UPDATE, PhaseConfig.model_construct(model=self.model, optimizer=self.optimizer)
        )
        phases = {name: change(name, phase) for name, phase in self.phases.items()}
        return self.having({"model": served.model, "optimizer": served.optimizer, "phases": phases})

    def canonical_json(self) -> str:
        """All values, including defaults, as JSON with sorted keys and without spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def fingerprint(self) -> str:
        """SHA-256 of `canonical_json`, in hex. Equal values have equal fingerprints."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
