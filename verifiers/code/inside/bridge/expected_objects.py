"""Makes the objects that a test only compares with other arguments, to see whether the test then fails.

A class of the program is told what the test expects: `assert solve(6) == Point(4, 2)`. It may hand that to `solve`, to
an answer that it gave before, or to an equality. A test that passes whatever it expects says nothing of the answer.
"""

from __future__ import annotations

from typing import Any

from olmorl.verifiers.code.inside.bridge.remote import Remote, handle_of
from olmorl.verifiers.code.inside.bridge.self_comparison import Altered, Steps, alike

STEPS: Steps = ((2, -3), (11, 4))
"""How much the first number differs, and how much more each further one does: little, for a class that wants likely
arguments, and more. Neither leaves a fraction as it was, as adding 1 and 2 to 1/2 does."""


class ExpectedObjects:
    """Counts the objects that the test makes with a class, in order: the program sees no difference between runs."""

    def __init__(self, altered: tuple[int, ...] = (), step: int = 0) -> None:
        """
        Args:
            altered: the objects that this run makes with other arguments.
            step: how far the arguments differ: a place in `STEPS`.
        """
        self._altered = altered
        self._step = STEPS[step]
        self._made = 0
        self.equal: set[int] = set()
        """The objects whose only use was that an answer was or equalled them."""

    def arguments(self, args: Any, kwargs: Any) -> tuple[frozenset[int], Any, Any]:
        """The arguments of the next object, and the objects to alter for it: itself, if it can be, and its parts."""
        self._made += 1
        altering = _AlteredArguments(self._step)
        others = tuple(map(altering.value, args)), {name: altering.value(value) for name, value in kwargs.items()}
        if self._made in self._altered:
            return frozenset(), *others
        own = set() if alike(others, (args, kwargs)) else {self._made}
        return altering.parts | own, args, kwargs

    def compared(self, first: Remote, second: Remote) -> None:
        """Record two equal objects. If the test made both only to compare them, it tests the equality itself."""
        if not (first._remote_expected and second._remote_expected):
            self.equal |= first._remote_expected | second._remote_expected

    def answered(self, answer: Any) -> None:
        """Record the objects that a function of the program returned, although the test never gave them to it."""
        if self._made:
            found = _AlteredArguments(self._step)
            found.value(answer)
            self.equal |= found.parts


class _AlteredArguments(Altered):
    """Leaves the program's objects as they are."""

    parts: frozenset[int] = frozenset()

    def twin(self, value: Any) -> Any:
        if (handle := handle_of(value)) is None:
            return super().twin(value)
        self.parts |= handle._remote_expected
        return value
