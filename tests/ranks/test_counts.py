"""What a step of many ranks costs, counted in the real planning and exchange."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ci import scripts
from tests.support.marks import slow

many_ranks = scripts.load("many_ranks", "benchmarks")
counted_exchange = scripts.load("peers/counted_exchange", "benchmarks")


@pytest.mark.parametrize(("bare", "dense", "rounds"), [slow(0.0, 1000, 1), (0.5, 30_000, 2)])
def test_a_step_of_many_ranks_waits_twice_at_most_and_asks_no_store(
    bare: float, dense: int, rounds: int
) -> None:
    """A sum of more than 256 KiB / 3 takes two rounds."""
    setting = counted_exchange.Setting(ranks=16, per_host=4, steps=10, bare=bare, dense=dense)
    found = counted_exchange.counted(setting, counted_exchange.zipf_batches(64, 8, 40_000))
    # During the sum, the gradients of rows are exchanged and then the rows that they have changed.
    assert found.waits == 2
    # Each of these exchanges takes two turns within a host and a message to one of three hosts. So
    # does each round of the sum, which begins and ends with another turn within a host.
    assert found.messages_waited_for == max(2 * 3, 2 + rounds * 3)
    of_model = many_ranks.predict(16, machine=many_ranks.Machine(ranks_a_node=4))
    assert rounds == 1 or of_model.messages == found.messages_waited_for
    assert found.requests == 0
    assert found.most_messages == 2 * 3  # of four hosts: one to each other one, one from each
    assert found.over_least < 1.1
    # Rows early and late, gradients, the sum, and twice in ten steps ids and bits of late rows; the
    # first window of a pass has two steps.
    assert found.messages == pytest.approx(3 * (3 + rounds + 2 * 2 / 10))


def test_the_least_bytes_are_those_of_ids_rows_bits_and_gradients() -> None:
    """Two hosts of one rank; each needs the same eight keys in a single step."""
    setting = counted_exchange.Setting(ranks=2, per_host=1, steps=1, dim=16, dense=10)
    batch = np.arange(1, 9).reshape(2, 4)
    found = counted_exchange.counted(setting, lambda _rank, _step: batch)
    keys = counted_exchange.mixed(batch)
    of_second = int(np.count_nonzero(keys >= np.uint64(1 << 63)))
    # Per host: rows of 76 bytes and their gradients, ids of one byte each, and a bit per row.
    bits = (of_second > 0) + (of_second < 8)
    assert found.least_bytes == (8 * (2 * 76 + 1) + bits) / 2
    assert found.sum_bytes == 8 + 1 + 40  # a message has the size of its part
