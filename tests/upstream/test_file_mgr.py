"""BoxFileMgr over local disk, over another file system, and before init."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from paddlebox.compat import BoxFileMgr
from paddlebox.errors import ConfigError, PassError


def test_a_file_is_not_renamed_into_another_file_system(tmp_path: Path) -> None:
    files = BoxFileMgr()
    assert files.init("", "", "")
    (tmp_path / "a").touch()
    assert not files.rename(str(tmp_path / "a"), "mock:///a")
    assert (tmp_path / "a").exists()
    assert not files.truncate(str(tmp_path / "a"), -1)


@pytest.fixture(params=["local", "file uri", "subtree"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BoxFileMgr, str]:
    """A file manager, and its name of an empty folder on disk."""
    folder = tmp_path / "files"
    folder.mkdir()
    files = BoxFileMgr()
    assert files.init("file:///" if request.param == "file uri" else "", "me,secret", "")
    if request.param == "subtree":  # another class than that of local disk
        files._system = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        return files, "/"
    return files, f"file://{folder}/" if request.param == "file uri" else f"{folder}/"


def names(paths: list[Any]) -> list[Any]:
    """Paths as they are within the folder."""
    return [path.rpartition("files/")[2] for path in paths]


def test_files_and_folders(opened: tuple[BoxFileMgr, str], tmp_path: Path) -> None:
    files, at = opened
    here = tmp_path / "files"
    assert files.makedir(f"{at}day/pass")
    assert (here / "day" / "pass").is_dir()
    assert files.touch(f"{at}day/done")
    (here / "day" / "pass" / "part-0").write_bytes(b"0123456789")
    (here / "day" / "pass" / "part-1").write_bytes(b"01234")
    assert files.touch(f"{at}day/pass/part-1")  # which stays
    assert files.exists(f"{at}day")
    assert not files.exists(f"{at}nothing")
    assert files.file_size(f"{at}day/pass/part-0") == 10
    assert files.file_size(f"{at}day") == files.file_size(f"{at}nothing") == -1
    assert names(files.list_dir(f"{at}day")) == ["day/done", "day/pass"]
    infos = files.list_info(f"{at}day/pass")
    assert (names([path for path, _ in infos]), [size for _, size in infos]) == (
        ["day/pass/part-0", "day/pass/part-1"],
        [10, 5],
    )
    assert [size for _, size in files.dus(f"{at}day")] == [0, 15]
    assert [size for _, size in files.dus(f"{at}day/pass/part-1")] == [5]
    assert [files.count(f"{at}{name}") for name in ("day", "day/done", "nothing")] == [3, 1, 0]


def test_changes(opened: tuple[BoxFileMgr, str], tmp_path: Path) -> None:
    files, at = opened
    here = tmp_path / "files"
    (here / "a").write_bytes(b"0123456789")
    assert files.truncate(f"{at}a", 4)
    assert (here / "a").read_bytes() == b"0123"
    assert not files.truncate(f"{at}a", 5)
    assert not files.truncate(f"{at}nothing", 0)
    assert files.rename(f"{at}a", f"{at}b")
    assert not files.rename(f"{at}a", f"{at}c")
    assert sorted(path.name for path in here.iterdir()) == ["b"]
    assert files.download(f"{at}b", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"0123"
    assert files.upload(str(tmp_path / "copy"), f"{at}c")
    assert (here / "c").read_bytes() == b"0123"
    assert files.remove(f"{at}c")
    assert not files.remove(f"{at}c")
    (here / "folder").mkdir()
    (here / "folder" / "d").touch()
    assert files.remove(f"{at}folder")
    assert sorted(path.name for path in here.iterdir()) == ["b"]


def test_a_failure_is_logged_and_returned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = BoxFileMgr()
    files.init("", "", "")
    with caplog.at_level(logging.WARNING):
        assert files.list_dir(f"{tmp_path}/nothing") == []
        assert not files.download(f"{tmp_path}/nothing", f"{tmp_path}/copy")
        assert not files.init("hdfs://no-such-host-of-a-test:1", "me,secret", "")
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"BoxFileMgr: list_info {tmp_path}/nothing failed: ")
    assert said[-1].startswith("BoxFileMgr: init hdfs://me@no-such-host-of-a-test:1 failed: ")


def test_a_call_before_init_and_afs_are_errors(tmp_path: Path) -> None:
    files = BoxFileMgr()
    for path in ("/a", f"file://{tmp_path}"):
        with pytest.raises(PassError, match="init is missing"):
            files.exists(path)
    with pytest.raises(ConfigError, match="found 'afs://host:1'"):
        files.init("afs://host:1", "me,secret", "conf")
    files.init("", "", "")
    files.finalize()
    with pytest.raises(PassError, match="init is missing"):
        files.count("/a")
