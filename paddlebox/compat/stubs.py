"""Methods of PaddleBox that have nothing to do here, or cannot do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from paddlebox.errors import ConfigError, PaddleBoxError


def idle(why: str) -> Callable[..., None]:
    """A method that is accepted, with any arguments, and does nothing."""

    def accept(self: object, *arguments: Any, **named: Any) -> None:
        del self, arguments, named

    accept.__doc__ = f"Accepted without effect: {why}."
    return accept


def refused(why: str, error: type[PaddleBoxError] = ConfigError) -> Callable[..., NoReturn]:
    """A method that raises an error with this text, whatever its arguments."""

    def refuse(self: object, *arguments: Any, **named: Any) -> NoReturn:
        del self, arguments, named
        raise error(why)

    refuse.__doc__ = f"Refused. {why}."
    return refuse
