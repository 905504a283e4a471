"""The table of sizes counts what it says."""

from __future__ import annotations

from pathlib import Path

from tests.ci import scripts

size = scripts.load("size")

SOURCE = '''
class Base:
    def __init__(self, a, /, b, *, c=1):
        pass

    def shared(self):
        pass


class Derived(Base):
    def shared(self):
        """Two lines
        of words."""

    async def own(self):
        pass
'''


def test_lines_methods_and_parameters_are_counted_once(tmp_path: Path) -> None:
    package = tmp_path / "paddlebox"
    package.mkdir()
    (package / "a.py").write_text(SOURCE)
    found = size.measure(package)
    assert found.files == [(16, "paddlebox/a.py")]
    assert found.parameters == [(3, "paddlebox/a.py:2 Base")]
    assert found.methods == [(2, "paddlebox/a.py:2 Base"), (3, "paddlebox/a.py:10 Derived")]
    assert sorted(found.functions)[-1] == (3, "paddlebox/a.py:11 shared")
    assert size.report(found)[1] == "lines: 16, outside paddlebox/tools 16"
