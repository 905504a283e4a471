"""Ranks that do not fit together say so when they join, all of them the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlebox.config.load import load_config
from paddlebox.errors import ConfigError
from paddlebox.ranks import joining
from paddlebox.ranks.connecting import SECRET_FILE
from tests.ranks.gathering import Gather, on_ranks

_CONFIG = "configs/dnn_synthetic.yaml"
_HELLO = {"host": "a", "build": "1", "secret": "no secret"}


def _gathering(*found: Any) -> Callable[[str, Any], list[Any]]:
    return lambda _what, _mine: list(found)


def test_ranks_of_one_build_are_named_with_their_hosts() -> None:
    assert joining.meet(_gathering(_HELLO, _HELLO | {"host": "b"})) == [
        "rank 0 on host a",
        "rank 1 on host b",
    ]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"build": "2"}, "rank 1 on host b runs build 2 of paddlebox, expected 1 as rank 0 on"),
        (
            {"secret": "a secret"},
            rf"rank 1 on host b has a secret \({SECRET_FILE}\), expected no secret as rank 0 on",
        ),
        ({"secret": f"{SECRET_FILE}: no file"}, f"rank 1 on host b: {SECRET_FILE}: no file"),
    ],
)
def test_a_rank_of_another_build_or_without_the_secret_is_named(
    other: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{told}"):
        joining.meet(_gathering(_HELLO, _HELLO | {"host": "b"} | other))


def test_a_build_is_another_one_when_a_module_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "paddlebox"
    (folder / "ranks").mkdir(parents=True)
    monkeypatch.setattr(joining, "__file__", str(folder / "ranks/joining.py"))
    found = []
    for text in ("x = 1", "x = 2", "x = 1"):
        (folder / "module.py").write_text(text)
        found.append(joining.build())
    assert found[0] == found[2] != found[1]


def _compared(*of_ranks: list[str]) -> list[str]:
    """What each rank says to the configs with these overrides; "" if nothing is wrong."""
    names = ["rank 0 on host a", "rank 1 on host b"]

    def work(rank: int, gather: Gather) -> str:
        try:
            joining.check_same(load_config(_CONFIG, of_ranks[rank]), names, gather)
        except ConfigError as error:
            return str(error)
        return ""

    return on_ranks(2, work)


def test_a_rank_with_another_config_is_named_with_the_key() -> None:
    first, second = _compared(["table.embedx_dim=8"], ["table.embedx_dim=4"])
    expected = "rank 1 on host b: table.embedx_dim is 4, expected 8 as on rank 0 on host a: "
    assert first.startswith(expected)
    assert second == first
    first, _ = _compared([], ["ranks.rows=int8"])
    assert "ranks.rows is 'int8', expected 'float32'" in first


def test_a_rank_with_other_slots_is_named_with_the_first_difference(tmp_path: Path) -> None:
    files = []
    for names in ("click user item", "click item user"):
        label, *sparse = names.split()
        slots = [
            {"name": label, "type": "label"},
            *({"name": name, "type": "sparse"} for name in sparse),
        ]
        files.append(tmp_path / f"{sparse[0]}.yaml")
        files[-1].write_text(yaml.safe_dump({"slots": slots}))
    same = f"data.slots={files[0]}"
    copied = tmp_path / "copy.yaml"
    copied.write_bytes(files[0].read_bytes())
    assert _compared([same], [f"data.slots={copied}"]) == ["", ""]
    first, second = _compared([same], [f"data.slots={files[1]}"])
    told = "rank 1 on host b: data.slots: slots.1.name is 'item', expected 'user' as on rank 0 on"
    assert first.startswith(told)
    assert second == first
    first, _ = _compared([same], ["data.slots=none.yaml"])
    assert "rank 1 on host b: data.slots is 'none.yaml: " in first


def test_keys_of_a_host_may_differ_between_ranks() -> None:
    own = (["data.threads=1", "trainer.dense_threads=1"], ["data.threads=2"])
    assert _compared(*own) == ["", ""]
