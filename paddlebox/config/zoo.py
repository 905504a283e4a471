"""The section `model`: one of the models' sections, chosen by its `type`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paddlebox.config.custom_model import CustomConfig
from paddlebox.config.models import SingleTaskConfig
from paddlebox.config.task_models import (
    AitmConfig,
    BstConfig,
    DienConfig,
    DinConfig,
    DssmConfig,
    EsmmConfig,
    HstuConfig,
    MmoeConfig,
    PleConfig,
    SharedBottomConfig,
)

AnyModelConfig = Annotated[
    SingleTaskConfig
    | SharedBottomConfig
    | MmoeConfig
    | PleConfig
    | EsmmConfig
    | AitmConfig
    | DinConfig
    | DienConfig
    | BstConfig
    | HstuConfig
    | DssmConfig
    | CustomConfig,
    Field(discriminator="type"),
]
