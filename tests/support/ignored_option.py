"""A plugin of pytest with which an option of the config has its default, whatever a config says.

IGNORED_OPTION=table.embedx_dim python -m pytest -p tests.support.ignored_option TEST
"""

from __future__ import annotations

import os

from pydantic import BaseModel, BeforeValidator

from paddlebox.config import Config


def ignore(option: str) -> None:
    """Let every config from now on have the default of an option."""
    sections: list[type[BaseModel]] = [Config]
    *path, name = option.split(".")
    for part in path:
        sections.append(sections[-1].model_fields[part].annotation)  # type: ignore[arg-type]
    field = sections[-1].model_fields[name]
    default = field.get_default(call_default_factory=True)
    field.metadata = [*field.metadata, BeforeValidator(lambda _: default)]
    for section in reversed(sections):  # each holds the schema of those within it
        section.model_rebuild(force=True)


def pytest_configure() -> None:
    ignore(os.environ["IGNORED_OPTION"])
