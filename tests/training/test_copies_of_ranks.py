"""Where the copies of a rank's commits are."""

from __future__ import annotations

import pytest

from paddlebox.config.load import load_config
from paddlebox.training.run_dir import copies_of


@pytest.mark.parametrize(
    ("copy_to", "first", "third"),
    [
        ("", "", ""),
        ("copies/", "copies", "copies/ranks/2"),
        (
            "s3://bucket/x/?region=eu",
            "s3://bucket/x?region=eu",
            "s3://bucket/x/ranks/2?region=eu",
        ),
    ],
)
def test_ranks_have_folders_before_the_options_of_a_uri(
    copy_to: str, first: str, third: str
) -> None:
    config = load_config("configs/dnn_synthetic.yaml", [f"checkpoint.copy_to={copy_to!r}"])
    assert (copies_of(config, 0), copies_of(config, 2)) == (first, third)
