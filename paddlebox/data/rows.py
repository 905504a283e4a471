"""How many rows files have, without parsing them."""

from __future__ import annotations

from collections.abc import Sequence

from paddlebox.config import DataConfig, Format
from paddlebox.data.columnar import count_rows as count_columnar
from paddlebox.data.reader import read_chunks


def count_rows(files: Sequence[str], data: DataConfig, at_most: int) -> int:
    """Rows of the files, headers and malformed lines included; counting stops at ``at_most``.

    Raises: DataError naming a file that cannot be read.
    """
    rows = 0
    for path in files:
        if data.format in (Format.PARQUET, Format.ARROW):
            rows += count_columnar(path, data.format, data.retries)
        else:
            for chunk in read_chunks(path, line_bytes=data.max_line_bytes, retries=data.retries):
                rows += chunk.data.count(b"\n") + (not chunk.data.endswith(b"\n"))
                if rows >= at_most:
                    break
        if rows >= at_most:
            return at_most
    return rows
