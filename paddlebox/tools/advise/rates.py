"""What the parts of training cost on a machine: measured by `calibrate`, kept as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """Seconds are wall time of one thread unless they say otherwise."""

    format: str  # data.format that parse_byte_s is of
    parse_byte_s: float  # read and parse, a byte of text
    key_id_s: float  # append, shuffle, sort and index, an id
    pack_id_s: float  # put into a batch, an id
    stage_row_s: float  # bring up, a row that is in memory or new
    commit_row_s: float  # write, a row
    commit_s: float  # write, whatever the rows: synced files, the manifest
    pull_id_s: float
    push_id_s: float
    step_s: float  # run a program that does nothing
    flops_per_s: float  # of the dense part: 6 a weight and instance
    dense_cores: float  # processors that a dense step keeps busy
    metric_s: float  # of an instance
    first_step_s: float  # what the first step takes longer
    end_s: float  # of a pass: metrics, a copy of the dense state
    cores: float  # processors' worth of time that busy threads got, beside whoever else runs
    disk_read_bytes_per_s: float

    def save(self, path: Path) -> None:
        """Raises: ConfigError when it cannot be written."""
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    @staticmethod
    def load(path: Path) -> Rates:
        """Raises: ConfigError for a file that `save` did not write."""
        again = "measure anew with --save-rates"
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; {again}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: is not JSON: {error}; {again}") from error
        names = {field.name for field in fields(Rates)}
        if not isinstance(found, dict) or found.keys() != names:
            differing = names.symmetric_difference(found) if isinstance(found, dict) else names
            raise ConfigError(
                f"{path}: expected rates with the keys of this version, but these differ: "
                f"{', '.join(sorted(map(str, differing)))}; {again}"
            )
        for name, value in found.items():
            if name != "format" and not (
                isinstance(value, int | float) and math.isfinite(value) and value >= 0
            ):
                raise ConfigError(f"{path}: {name} is {value!r}, expected a number >= 0; {again}")
        for name in ("flops_per_s", "cores", "disk_read_bytes_per_s"):
            if found[name] == 0:
                raise ConfigError(f"{path}: {name} is 0, expected more; {again}")
        return Rates(**found)
