"""Closing: what has a `close` and is good for one `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    def close(self) -> None:
        """May be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
