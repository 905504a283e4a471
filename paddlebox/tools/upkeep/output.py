"""The exit codes of tools/store.py, and how its commands print."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

SOUND, DAMAGED, UNUSABLE = 0, 1, 2


def show(arguments: argparse.Namespace, value: Any, lines: Sequence[str]) -> None:
    """Print a result as JSON or text. If the command runs for several ranks, keep it in
    `arguments.told` instead."""
    if "told" in arguments:
        arguments.told.append((value, lines))
        return
    print(json.dumps(value, indent=1) if arguments.json else "\n".join(lines))
