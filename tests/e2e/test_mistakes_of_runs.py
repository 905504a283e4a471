"""A mistake that shows when a command runs gives one error, once, that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import run_python
from tests.e2e import mistaken_runs
from tests.e2e.mistakes import Named, Said, check

MADE = mistaken_runs.made()
_CODE = "import sys\nfrom tests.e2e import mistaken_runs\nmistaken_runs.say(sys.argv[1])"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What was said of each."""
    return run_python(_CODE, str(tmp_path_factory.mktemp("mistakes")))


@pytest.mark.slow  # a few seconds, which all of them share
@pytest.mark.parametrize(("name", "named"), MADE.items(), ids=MADE)
def test_a_mistake_gives_one_error_that_names_all_four(said: Any, name: str, named: Named) -> None:
    check(Said(*said[name]), named)
