"""What tests share: the folder of real data, tables and datasets, programs in their own process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import find_chromium
from tests.support.fixtures import OpenDataset, OpenTable, WriteLines
from tests.support.processes import call, run, run_python, share_servers, tool

__all__ = ["call", "run_python", "tool"]
ROOT = Path(__file__).resolve().parent.parent
pytest_plugins = ["tests.support.limits"]
PATIENCE_S = 240  # what a test waits for longer does not come; no promise of a time


def pytest_configure() -> None:
    """Paddle's launchers that run at the same time take their ports from different ranges, below
    the ports that Linux gives to connections. Each looks for a free port long before it listens
    there, so two of them could find the same one. Workers of pytest share the servers that run
    programs."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    first = 20_000 + 3_000 * worker
    os.environ["PORT_RANGE"] = f"{first}:{first + 2_999}"
    share_servers()


def pytest_collection_finish() -> None:
    """Garbage collections leave out the imported modules and the tests: each is much shorter."""
    gc.freeze()


@pytest.fixture(autouse=True)
def keeps_variables_of_ranks() -> Iterator[None]:
    """A test that leaves variables of a launcher behind would change the next one of its worker."""
    before = _variables_of_ranks()
    yield
    assert _variables_of_ranks() == before


def _variables_of_ranks() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("PADDLE_")}


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real data: $PADDLEBOX_DATA, default ../shared/data."""
    folder = Path(os.environ.get("PADDLEBOX_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: PADDLEBOX_DATA names its folder")
    return folder


@pytest.fixture
def open_table() -> Iterator[OpenTable]:
    """Opens tables that the test's end closes: open_table(config fields, **arguments of Table)."""
    from paddlebox.config import TableConfig
    from paddlebox.store.table import Table

    opened: list[Table] = []

    def make(fields: dict[str, Any] | None = None, **arguments: Any) -> Table:
        config = TableConfig.model_validate(
            {"embedx_dim": 4, "embedx_threshold": 0.0, **(fields or {})}
        )
        arguments = {"mem_budget_bytes": 8 << 20, "hbm_budget_bytes": 64 << 20, **arguments}
        opened.append(Table(config, **arguments))
        return opened[-1]

    yield make
    for table in opened:
        if table.first.native is not None and table.first.native.training:
            table.first.native.abandon()
        table.close()


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    def write(name: str, lines: Sequence[str]) -> str:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return write


@pytest.fixture
def open_dataset(open_table: OpenTable) -> Iterator[OpenDataset]:
    """Opens datasets that the test's end closes: open_dataset(arguments of open_table, **arguments
    of init)."""
    from paddlebox.compat.upstream import UpstreamDataset
    from tests.support.instances import SLOTS

    opened: list[UpstreamDataset] = []

    def make(table: dict[str, Any] | None = None, **init: Any) -> UpstreamDataset:
        dataset = UpstreamDataset(open_table(**(table or {})), seed=1)
        dataset.init(**{"slots": SLOTS, "batch_size": 32, **init})
        opened.append(dataset)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()


def make_synthetic(folder: Path, *, passes: int, rows: int, test_rows: int = 10) -> Path:
    """Training files of so many rows each, and test.txt, as datasets/synthetic makes them."""
    counts = ("--passes", str(passes), "--rows-per-pass", str(rows), "--test-rows", str(test_rows))
    done = run(["datasets/synthetic/prepare.py", "--out", str(folder), *counts])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    return find_chromium()


@pytest.fixture
def in_new_process() -> Callable[..., Any]:
    return run_python
