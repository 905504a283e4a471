"""Options of loading, for tests without a config."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from paddlebox.config import DataConfig, Format, KeySpace, Slots
from paddlebox.data.options import LoadOptions

_OWN = {field.name for field in fields(LoadOptions)}


def load_options(data_format: Format, slots: Slots, batch_size: int, **options: Any) -> LoadOptions:
    """Options by their names: fields of LoadOptions, and keys of section `data`."""
    own = {name: value for name, value in options.items() if name in _OWN}
    keys = {name: value for name, value in options.items() if name not in _OWN}
    assert keys.keys() <= DataConfig.model_fields.keys()
    keys = {"threads": 1, "key_space": KeySpace.SHARED, **keys}
    data = DataConfig.model_construct(format=data_format, slots="", batch_size=batch_size, **keys)
    return LoadOptions(data, slots, **own)
