"""Configuration: one YAML file, typed and frozen. Imports no Paddle."""

from paddlebox.config.load import load_config
from paddlebox.config.models import ModelConfig, ModelType
from paddlebox.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    EmbedRuleConfig,
    Format,
    GuardConfig,
    HbmConfig,
    KeySpace,
    LifeConfig,
    MemConfig,
    OptimizerConfig,
    OptimizerType,
    OversizePass,
    Program,
    Rule,
    RuleConfig,
    SecurityConfig,
    SsdConfig,
    StoreConfig,
    TableConfig,
    TrainerConfig,
)
from paddlebox.config.slots import Slot, Slots, SlotType, load_slots
from paddlebox.config.units import parse_bytes
from paddlebox.config.zoo import AnyModelConfig

__all__ = [
    "AnyModelConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "EmbedRuleConfig",
    "Format",
    "GuardConfig",
    "HbmConfig",
    "KeySpace",
    "LifeConfig",
    "MemConfig",
    "ModelConfig",
    "ModelType",
    "OptimizerConfig",
    "OptimizerType",
    "OversizePass",
    "Program",
    "Rule",
    "RuleConfig",
    "SecurityConfig",
    "Slot",
    "SlotType",
    "Slots",
    "SsdConfig",
    "StoreConfig",
    "TableConfig",
    "TrainerConfig",
    "load_config",
    "load_slots",
    "parse_bytes",
]
