"""The counts of `make shape` are right."""

from __future__ import annotations

from pathlib import Path

from tests import shape


def test_the_attributes_of_a_class_are_those_it_declares_and_those_it_assigns(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        "class A:\n    x: int\n    def f(self, other):\n        self.x = self.y = 1\n        other.z = self.w\n"
        "class B:\n    pass\n"
    )
    assert list(shape.attributes(file)) == [("A", 2), ("B", 0)]
