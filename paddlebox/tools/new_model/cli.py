"""The command `paddlebox new-model`: writes three files to start a new model from.

They are the files in skeleton/, with NAME, CLASS and FOLDER filled in.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import ModelType
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import ConfigError
from paddlebox.launch.arguments import create_parser, parse
from paddlebox.launch.process import guarded

_SKELETON = Path(__file__).parent / "skeleton"
_FILES = {"model.txt": "{}.py", "config.txt": "{}.yaml", "test.txt": "test_{}.py"}


def new_model_main(argv: Sequence[str] | None = None) -> int:
    """Run `paddlebox new-model`. Returns the exit code (docs/running.md)."""
    arguments = parse(new_model_parser(), argv)

    with guarded() as ended:
        written = write_model(arguments.name, arguments.out)
        _, config, test = written
        print("\n".join(f"wrote {path}" for path in written))
        print(
            "\nTo train and test it:\n"
            "  python datasets/synthetic/prepare.py\n"
            f"  paddlebox train -c {config} --run-dir runs/{arguments.name}\n"
            f"  python -m pytest {test}"
        )
    return ended.code


def new_model_parser() -> argparse.ArgumentParser:
    parser = create_parser(
        "Writes FOLDER/NAME.py, a network that can be trained, FOLDER/NAME.yaml, its config with "
        "generated data, and FOLDER/test_NAME.py."
    )
    parser.add_argument("name", metavar="NAME", help="lower case, as in my_net")
    folder: dict[str, Any] = {"type": Path, "metavar": "FOLDER", "help": "the folder to write to"}
    parser.add_argument("--out", default=Path("mine"), **folder)
    return parser


def write_model(name: str, folder: AnyPath) -> list[Path]:
    """Write the files. Returns their paths, in the order of `_FILES`. Raises: ConfigError for an
    invalid name, the name of a model in the zoo, a file that exists already, or a folder that
    cannot be written."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(
            f"{name!r}: expected a name of lower-case letters, digits and _, as in my_net"
        )
    if name in {model.value for model in ModelType}:
        raise ConfigError(f"{name!r} is a model of the zoo (docs/models.md): choose another name")
    folder = as_path(folder, "folder")
    files = {folder / written.format(name): _SKELETON / text for text, written in _FILES.items()}
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists already: choose another name or --out")
    words = {
        "NAME": name,
        "CLASS": "".join(word.capitalize() for word in name.split("_")),
        "FOLDER": str(folder),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            filled = re.sub(r"@(NAME|CLASS|FOLDER)@", lambda m: words[m[1]], text.read_text())
            path.write_text(filled)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return [*files]
