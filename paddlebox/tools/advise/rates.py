"""The costs of the parts of training on a machine. `calibrate` measures them; a JSON file can hold
them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """Costs. Seconds are wall time of one thread unless the comment says otherwise."""

    format: str  # the data.format of parse_byte_s
    parse_byte_s: float  # read and parse one byte of text
    key_id_s: float  # append, shuffle, sort and index one id
    pack_id_s: float  # put one id into a batch
    stage_row_s: float  # stage one row that is in memory or new
    commit_row_s: float  # write one row
    commit_s: float  # the part of a commit that does not depend on the rows: syncs, the manifest
    pull_id_s: float  # pull one id
    push_id_s: float  # push one id
    step_s: float  # run a program that does nothing
    flops_per_s: float  # of the dense part, which takes 6 per weight and instance
    dense_cores: float  # processors that are busy during a dense step
    metric_s: float  # metrics of one instance
    first_step_s: float  # how much longer the first step takes
    end_s: float  # end of a pass: metrics, a copy of the dense state
    cores: float  # CPU time per second that busy threads get, next to other programs
    disk_read_bytes_per_s: float

    def save(self, path: Path) -> None:
        """Raises: ConfigError if the file cannot be written."""
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    @staticmethod
    def load(path: Path) -> Rates:
        """Raises: ConfigError for a file that `save` did not write."""
        again = "measure again with --save-rates"
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
                f"{path}: expected the keys of this version, but these are missing or unknown: "
                f"{', '.join(sorted(map(str, differing)))}; {again}"
            )
        for name, value in found.items():
            if name != "format" and not (
                isinstance(value, int | float) and math.isfinite(value) and value >= 0
            ):
                raise ConfigError(f"{path}: {name} is {value!r}, expected a number >= 0; {again}")
        for name in ("flops_per_s", "cores", "disk_read_bytes_per_s"):
            if found[name] == 0:
                raise ConfigError(f"{path}: {name} is 0, expected a number above 0; {again}")
        return Rates(**found)
