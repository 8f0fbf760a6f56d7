"""The counts of `make shape` are right."""

from __future__ import annotations

from pathlib import Path

from tests import shape

PAGE = """
# Architecture

| # | file |
| --- | --- |
| 1 | `no/walk.py` |

## Walk 1: a group

| # | file | function |
| --- | --- | --- |
| 1 | `a.py` | `take` |
| 2 | `b.py` | `put` |
| 3 | `a.py` | `give` |

## Walk 2: a rank
| 1 | `c.py` | `run` |

## After
| 1 | `d.py` | |
"""


def test_a_walk_counts_each_file_once() -> None:
    assert shape.walks(PAGE) == {"Walk 1: a group": ["a.py", "b.py"], "Walk 2: a rank": ["c.py"]}


def test_the_attributes_of_a_class_are_those_it_declares_and_those_it_assigns(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        "class A:\n    x: int\n    def f(self, other):\n        self.x = self.y = 1\n        other.z = self.w\n"
        "class B:\n    pass\n"
    )
    assert list(shape.attributes(file)) == [("A", 2), ("B", 0)]
