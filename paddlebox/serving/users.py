"""Scores candidates after the history of a user. Native code keeps the histories
(ops/library/users.h), as the serving library does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.errors import DataError
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.program import UserProgram

HISTORY, CANDIDATE = "history", "candidate"  # in messages, before the number
MOST_NAME: int = core.MOST_NAME  # characters of a user's name
_MOST_AFTER = (1 << 64) - 1


@dataclass(frozen=True)
class UserRequest:
    """What to predict for one user (`Predictor.predict_user`)."""

    history: Sequence[Mapping[str, Any]]
    candidates: Sequence[Mapping[str, Any]]
    user: str = ""
    after: int = 0


class UserScorer:
    """Scores candidates with one version of a model. inputs: its native ModelInputs."""

    def __init__(
        self, inputs: Any, program: UserProgram, budget_bytes: int, fields: FieldParser
    ) -> None:
        self._fields, self._inputs, self._program = fields, inputs, program
        self._histories = core.Histories(budget_bytes)

    def score(self, request: UserRequest) -> np.ndarray:
        prepared = self.prepared(request)
        predictions, made = self._program.run(prepared.tensors)
        prepared.keep(made)
        return predictions

    def prepared(self, request: UserRequest) -> Any:
        """The native UserRequest, with the inputs of the program."""
        if request.after < 0:
            raise ValueError(f"after {request.after}: expected 0 or more")
        try:
            user = request.user.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"user: expected a name in Unicode, found {error}") from None
        after = min(request.after, _MOST_AFTER)
        native = core.UserRequest(self._inputs, self._histories, user, after)
        parts = []
        for given, what in ((request.history, HISTORY), (request.candidates, CANDIDATE)):
            stamps = core.Stamps(self._inputs, what is HISTORY)
            parts += [self._fields.parse(given, what, stamps), stamps]
        native.prepare(*parts)
        return native
