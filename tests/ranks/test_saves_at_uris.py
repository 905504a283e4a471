"""Saves of several ranks at a URI. The first rank copies, and all ranks get its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paddlebox.saves import open_save
from tests.support import processes


@pytest.mark.slow
def test_every_rank_is_told_of_a_copy_that_fails_and_of_one_that_succeeds(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("no folder")
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    launcher += ["--log_dir", str(tmp_path / "log")]
    done = processes.run([*launcher, "tests/ranks/uri_saves.py", str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"result-{r}.json").read_text()) for r in (0, 1))
    uri, out = f"file://{tmp_path}/there", f"{tmp_path}/out"
    failed, copied, again, merged, absent, local = first["said"]
    assert failed.startswith(f"StoreError: {uri}/20240101/1")
    assert (copied, merged) == (f"{uri}/20240101/base", f"{uri}/20240101/merged")
    assert again.startswith(f"StoreError: {uri}/20240101/base: is done already")
    assert absent.startswith(f"StoreError: {uri}/20240101/absent: holds no complete save")
    assert local == f"{out}/20240101/merged"
    prefix = "StoreError: "
    told = [text.replace(prefix, f"{prefix}the first rank failed: ") for text in first["said"]]
    assert second["said"] == told
    assert (first["last"], second["last"]) == ("20240101/merged", "20240101/merged")
    for name in ("1", "base"):
        assert len(open_save(tmp_path / "there" / "20240101" / name).meta["ranks"]) == 2
    assert open_save(tmp_path / "there" / "20240101" / "merged").name == open_save(local).name
    assert (first["loaded"], second["loaded"]) == ("20240101/base", "20240101/base")
