"""Configuration: reads one YAML file into a typed, frozen `Config`. Imports no Paddle."""

from paddlebox.config.checkpoint import CheckpointConfig, GuardConfig
from paddlebox.config.data import DataConfig, Format, KeySpace
from paddlebox.config.load import load_config
from paddlebox.config.models import AnyModelConfig, ModelConfig, ModelType
from paddlebox.config.schema import Config, SecurityConfig
from paddlebox.config.section import parse_bytes
from paddlebox.config.slots import Slot, Slots, SlotType, load_slots
from paddlebox.config.table import (
    EmbedRuleConfig,
    HbmConfig,
    HbmPlace,
    LifeConfig,
    MemConfig,
    Rule,
    RuleConfig,
    SsdConfig,
    TableConfig,
)
from paddlebox.config.trainer import (
    DenseDtype,
    OptimizerConfig,
    OptimizerType,
    Phase,
    Program,
    Schedule,
    TrainerConfig,
)

__all__ = [
    "AnyModelConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DenseDtype",
    "EmbedRuleConfig",
    "Format",
    "GuardConfig",
    "HbmConfig",
    "HbmPlace",
    "KeySpace",
    "LifeConfig",
    "MemConfig",
    "ModelConfig",
    "ModelType",
    "OptimizerConfig",
    "OptimizerType",
    "Phase",
    "Program",
    "Rule",
    "RuleConfig",
    "Schedule",
    "SecurityConfig",
    "Slot",
    "SlotType",
    "Slots",
    "SsdConfig",
    "TableConfig",
    "TrainerConfig",
    "load_config",
    "load_slots",
    "parse_bytes",
]
