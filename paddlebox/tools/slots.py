"""The command `paddlebox slots`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded

_ROWS = 10


def slots_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox slots`. Returns the exit code (docs/running.md)."""
    given = parse(slots_parser(), argv)

    with guarded() as ended:
        from paddlebox.config import load_config, load_slots
        from paddlebox.data.first_look import FirstLook
        from paddlebox.data.normalizers import constants_of, with_constants

        config = load_config(given.config)
        slots = load_slots(config.data.slots, labelled=False)
        slots = with_constants(slots, constants_of(config, slots, [str(given.file)]))
        for number, row in enumerate(FirstLook(config, slots).shown(str(given.file), _ROWS), 1):
            print(f"row {number}")
            for name, values in row.items():
                print(f"  {name}: {' '.join(map(str, values)) or 'none'}")
    return ended.code


def slots_parser() -> argparse.ArgumentParser:
    parser = create_parser("Shows what the slots of slots.yaml read and compute.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    about = "show the first ten rows of a file after all transforms: the numbers of dense slots, "
    about += "and the ids of sparse slots"
    shows = commands.add_parser("try", help=about, description=f"{about[0].upper()}{about[1:]}.")
    shows.add_argument("file", type=Path, metavar="FILE", help="a file of the format of the config")
    shows.add_argument(
        "-c", "--config", type=Path, required=True, metavar="FILE", help="the config"
    )
    return parser
