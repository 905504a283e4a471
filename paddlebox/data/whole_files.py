"""Whole files as the instances of one pass, without the rows of any table: for tools that look at
files or evaluate them."""

from __future__ import annotations

from collections.abc import Sequence

from paddlebox.config import Config, Slots
from paddlebox.data.instance_options import InstanceOptions
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.errors import ConfigError

_ALL_KEYS = (1 << 31) - 1


def load_files(
    config: Config,
    slots: Slots,
    files: Sequence[str],
    batch_size: int,
    reader: str,
    tables: tuple[int, ...] = (),
) -> LoadedPass:
    """Instances in the order of the files.

    Args:
        reader: who wants them, for the error. tables: (S) of the sparse slots, where there are
            several.

    Raises: DataError; ConfigError where the config's data come through a program of its own.
    """
    data = config.data
    if data.pipe_command or data.parser:
        raise ConfigError(
            f"{reader} without data.pipe_command and data.parser, which the config has"
        )
    options = LoadOptions(
        format=data.format,
        slots=slots,
        batch_size=batch_size,
        key_space=data.key_space,
        max_bad_line_ratio=data.max_bad_line_ratio,
        max_line_bytes=data.max_line_bytes,
        retries=data.retries,
        tables=tables,
        instances=InstanceOptions(parse_logkey=data.logkey),
    )
    return load(list(files), options, [_ALL_KEYS] * (max(tables, default=0) + 1))
