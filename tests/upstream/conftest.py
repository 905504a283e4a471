"""What the tests of PaddleBox's names share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fixtures import OpenTable
from tests.support.instances import SLOTS

OpenUpstream = Callable[..., Any]


@pytest.fixture
def open_upstream(open_table: OpenTable) -> Iterator[OpenUpstream]:
    """Opens datasets by the name of their class: open_upstream(NAME, **arguments of init). Without
    arguments, init is not called. The test's end closes them."""
    from paddlebox import compat

    opened: list[Any] = []

    def make(name: str, table: dict[str, Any] | None = None, **init: Any) -> Any:
        factory = compat.DatasetFactory(open_table(**(table or {})), seed=1)
        dataset = factory.create_dataset(name)
        if init:
            dataset.init(**{"slots": SLOTS, "batch_size": 4, **init})
        opened.append(dataset)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()
