"""What instances see of the clicks of their rows: never their own, and the same however a pass is
read; and the priors of slots that follow from these clicks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import TableConfig
from paddlebox.data.click_counts import FOLDS, estimate, seed_of, sums_of
from paddlebox.data.sequences import SequenceOptions
from paddlebox.errors import ConfigError, PassError
from paddlebox.store.table import Table
from tests.data.test_protocol import push_ones
from tests.support.fixtures import WriteLines
from tests.support.instances import SLOTS, multislot_lines

MIB = 1 << 20
CONFIG = TableConfig.model_validate({"embedx_dim": 4, "embedx_threshold": 0.0})
Instance = tuple[int, list[list[int]]]  # the label, and the feasigns of each slot


def parsed(lines: list[str]) -> list[Instance]:
    """`1 click 2 age age 1 user n word ...` lines."""
    found = []
    for line in lines:
        words = line.split()
        found.append((int(words[1]), [[int(words[6])], [int(word) for word in words[8:]]]))
    return found


def fold_of(pass_number: int, number: int) -> int:
    return int(core.mix((seed_of(pass_number) + core.mix(number + 1)) % 2**64) % FOLDS)


class Clicks:
    """A plain count of the shows and clicks of feasigns."""

    def __init__(self, other: Clicks | None = None) -> None:
        self.of: dict[int, tuple[float, float]] = {} if other is None else dict(other.of)

    def add(self, instance: Instance) -> None:
        label, slots = instance
        for feasign in (feasign for slot in slots for feasign in slot):
            show, click = self.of.get(feasign, (0, 0))
            self.of[feasign] = (show + 1, click + label)

    def seen(self, instance: Instance) -> list[float]:
        """The shows of both slots, then their clicks."""
        pairs = [[self.of.get(feasign, (0, 0)) for feasign in slot] for slot in instance[1]]
        return [sum(pair[which] for pair in slot) for which in (0, 1) for slot in pairs]


def expected(before: Clicks, part: list[Instance], pass_number: int, first: int = 0) -> np.ndarray:
    """The counts before the part, and those of its instances in other folds."""
    folds = [fold_of(pass_number, number) for number in range(first, first + len(part))]
    known = [Clicks(before) for _ in range(FOLDS)]
    for instance, own in zip(part, folds, strict=True):
        for fold in {*range(FOLDS)} - {own}:
            known[fold].add(instance)
    return np.array([known[own].seen(one) for one, own in zip(part, folds, strict=True)])


class Run:
    """Passes over files, one after another."""

    def __init__(self, folder: Path, table: dict[str, Any] | None = None, **init: Any) -> None:
        options = {"folder": folder, "mem_budget_bytes": MIB, **(table or {})}
        self.table = Table(CONFIG, **options)
        self.dataset = UpstreamDataset(self.table, seed=1)
        self.dataset.init(slots=SLOTS, batch_size=16, click_slots=[0, 1], **init)
        self.priors: list[np.ndarray] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.dataset.close()
        self.table.close()

    def columns(
        self,
        file: str,
        *,
        train: bool = True,
        repeated: bool = False,
        loaded: Callable[[], object] = lambda: None,
    ) -> np.ndarray:
        """What follows the dense features of each instance. loaded: called before begin_pass."""
        self.dataset.set_test_mode(not train)
        self.dataset.set_click_priors(self.priors.append, repeated=repeated)
        self.dataset.set_filelist([file])
        self.dataset.load_into_memory()
        loaded()
        self.dataset.begin_pass()
        seen = []
        for batch in self.dataset.batches():
            seen.append(batch["box_dense"][:, 2:])
            if train:
                push_ones(self.dataset, batch)
        current = self.dataset._stager.current
        assert current is not None
        self.spans = [(span.begin, span.end) for span in current.loaded.ranges]
        self.dataset.end_pass()
        return np.concatenate(seen)


@pytest.fixture
def lines() -> list[list[str]]:
    return [multislot_lines(120, seed=seed, vocabulary=40) for seed in range(2)]


@pytest.fixture
def files(lines: list[list[str]], write_lines: WriteLines) -> list[str]:
    return [write_lines(f"{at}.txt", of_file) for at, of_file in enumerate(lines)]


def test_an_instance_sees_earlier_passes_and_the_other_folds_of_its_own(
    tmp_path: Path, files: list[str], lines: list[list[str]]
) -> None:
    before = Clicks()
    with Run(tmp_path / "a") as run:
        for number, (file, of_file) in enumerate(zip(files, lines, strict=True), 1):
            instances = parsed(of_file)
            np.testing.assert_array_equal(run.columns(file), expected(before, instances, number))
            for instance in instances:
                before.add(instance)
        seen = run.columns(files[0], train=False)
    np.testing.assert_array_equal(seen, [before.seen(one) for one in parsed(lines[0])])


def test_instances_see_the_counts_that_the_ends_of_days_have_decayed(
    tmp_path: Path, files: list[str], lines: list[list[str]]
) -> None:
    first, second = map(parsed, lines)
    fresh, halved = Clicks(), Clicks()
    for instance in first:
        fresh.add(instance)
    halved.of = {feasign: (show / 2, click / 2) for feasign, (show, click) in fresh.of.items()}
    with Run(tmp_path / "a") as run:
        run.columns(files[0])
        run.table.life.end_of_day(20001, decay=0.5)
        seen = run.columns(files[0], train=False)
        np.testing.assert_array_equal(seen, [halved.seen(one) for one in first])
        np.testing.assert_array_equal(run.columns(files[1]), expected(halved, second, 3))


def test_a_second_epoch_takes_the_own_fold_out_and_counts_nothing_again(
    tmp_path: Path, files: list[str], lines: list[list[str]]
) -> None:
    instances = parsed(lines[0])
    with Run(tmp_path / "a") as run:
        first = run.columns(files[0])
        run.table.wait_commit()
        rows = run.table.read_all()[1]
        second = run.columns(files[0], repeated=True)
        run.table.wait_commit()
        again = run.table.read_all()[1]
    np.testing.assert_array_equal(rows[:, 1:3], again[:, 1:3])  # shows and clicks
    assert not np.array_equal(first, second)  # the pass has a number of its own, so other folds
    np.testing.assert_array_equal(second, expected(Clicks(), instances, 2))
    np.testing.assert_allclose(run.priors[0], run.priors[1])


def test_parts_and_spilled_passes_see_what_a_whole_pass_in_memory_sees(
    tmp_path: Path, write_lines: WriteLines
) -> None:
    lines = multislot_lines(3000, seed=5, vocabulary=4000)
    file = write_lines("many.txt", lines)
    with Run(tmp_path / "a") as run:
        whole = run.columns(file)
    with Run(tmp_path / "b", budget_bytes=MIB // 4, spill_dir=tmp_path) as run:
        spilled = run.columns(file)
        assert run.dataset.stats.spilled_bytes > 0
    np.testing.assert_array_equal(spilled, whole)
    with Run(tmp_path / "c", {"hbm_budget_bytes": MIB}, dedup_slots="auto") as run:
        split = run.columns(file)
        spans = run.spans
    assert len(spans) > 1
    before, instances, found = Clicks(), parsed(lines), []
    for begin, end in spans:  # a part is to the next one what a pass is
        found.append(expected(before, instances[begin:end], 1, begin))
        for instance in instances[begin:end]:
            before.add(instance)
    np.testing.assert_array_equal(split, np.concatenate(found))


def test_a_pass_shuffled_after_loading_sees_what_one_shuffled_before_sees(
    tmp_path: Path, files: list[str]
) -> None:
    with Run(tmp_path / "a") as run:
        run.dataset.local_shuffle()
        expected = run.columns(files[0])
    with Run(tmp_path / "b") as run:

        def shuffle() -> None:
            run.dataset.wait_staged()
            run.dataset.local_shuffle()

        np.testing.assert_array_equal(run.columns(files[0], loaded=shuffle), expected)


def test_only_what_is_trained_counts(
    tmp_path: Path, files: list[str], lines: list[list[str]]
) -> None:
    instances = parsed(lines[0])
    whole = len(instances) - len(instances) % 16
    assert whole < len(instances)
    with Run(tmp_path / "a", drop_last=True) as run:
        seen = run.columns(files[0])
    np.testing.assert_array_equal(seen, expected(Clicks(), instances[:whole], 1))
    with Run(tmp_path / "b") as run:
        run.dataset.set_read_slots(["user"])
        seen = run.columns(files[0])
    of_user = expected(Clicks(), [(label, [slots[0], []]) for label, slots in instances], 1)
    np.testing.assert_array_equal(seen, of_user)


def test_page_views_are_refused(tmp_path: Path, files: list[str]) -> None:
    with Run(tmp_path / "a") as run:
        run.dataset.set_enable_pv_merge(True)
        run.dataset.set_filelist(files[:1])
        run.dataset.load_into_memory()
        with pytest.raises(PassError, match="counted for one order"):
            run.dataset.preprocess_instance()


def test_sequences_of_users_are_refused(tmp_path: Path) -> None:
    with Run(tmp_path / "a") as run, pytest.raises(ConfigError, match="in several pieces"):
        run.dataset.set_sequences(SequenceOptions("user"))


def test_the_prior_is_the_rate_and_how_alike_the_rows_of_a_slot_are() -> None:
    # Slot 0: two rows of 100 shows, 10 and 30 clicks. Slot 1: rows that differ by chance alone.
    # Slot 2: one row, which says nothing about how rows differ. Slot 3: no row.
    counts = np.array([[100, 10], [100, 30], [50, 5], [50, 5], [7, 7], [0, 0]], np.float32)
    slot_of_row = np.array([0, 0, 1, 1, 2, 0])
    rate, strength = estimate(sums_of(counts, slot_of_row, [0, 1, 2, 3]))
    np.testing.assert_allclose(rate, [0.2, 0.1, 1 - 1e-6, np.nan], rtol=1e-6)
    # By hand: sum c^2 / n = 10 and C^2 / N = 8, so the variance between the rows is 2, and that
    # within them (40 - 10) / 198 = 5 / 33. A row has 100 shows.
    correlation = (2 - 5 / 33) / (2 + 99 * 5 / 33)
    np.testing.assert_allclose(strength[0], (1 - correlation) / correlation, rtol=1e-5)
    np.testing.assert_array_equal(strength[1:], [1e6, 1e6, np.nan])


def test_the_estimated_strength_is_that_of_the_distribution_of_rates() -> None:
    random = np.random.default_rng(3)
    rates = random.beta(0.2 * 20, 0.8 * 20, 20_000)  # mean 0.2, strength 20
    shows = random.integers(1, 60, len(rates))
    counts = np.stack([shows, random.binomial(shows, rates)], axis=1).astype(np.float32)
    rate, strength = estimate(sums_of(counts, np.zeros(len(rates), int), [0]))
    np.testing.assert_allclose(rate, 0.2, rtol=0.01)
    np.testing.assert_allclose(strength, 20, rtol=0.05)


def test_a_row_outside_the_counts_is_refused(tmp_path: Path, files: list[str]) -> None:
    with Run(tmp_path / "a") as run:
        run.dataset.set_filelist(files[:1])
        run.dataset.load_into_memory()
        loaded = run.dataset._stager.next
        assert loaded is not None
        instances = loaded.loaded.instances
        rows = np.arange(instances.unique_keys, dtype=np.int32)
        counts = np.zeros((instances.unique_keys - 1, 1, 2), np.float32)
        for call in ("add_click_counts", "pack_click_counts"):
            with pytest.raises(ValueError, match=f"expected below {len(counts)}"):
                getattr(instances, call)(0, instances.size, 0, rows, 1, [0, 1], counts)
