"""Loads whole files as the instances of one pass, without rows of a table, to inspect the files or
evaluate on them."""

from __future__ import annotations

from collections.abc import Sequence

from paddlebox.config import Config, Slots
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.data.pipeline import Threads
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
    """Load the instances, in the order of the files.

    Args:
        reader: the subject and verb of the error, such as "gate files are read".
        tables: (S) the table of each sparse slot, if there are several tables.

    Raises: DataError; ConfigError if the config has a pipe_command or a parser.
    """
    data = config.data
    if data.pipe_command or data.parser:
        raise ConfigError(
            f"{reader} without data.pipe_command and data.parser, but the config sets one of them"
        )
    # As they are: without dedup_slots, which would change how lists are held.
    plain = {"batch_size": batch_size, "dedup_slots": "off"}
    options = LoadOptions(data.model_copy(update=plain), slots, test=True, tables=tables)
    most = [_ALL_KEYS] * (max(tables, default=0) + 1)
    return load(list(files), options, most, threads=Threads(1, 1))
