"""Compares a count with the threshold of a label."""

from __future__ import annotations

from olmorl.verifiers.instructions.constraint import one_of

relation = one_of("less than", "at least")
"""The comparison words of the IFEval and IFBench sets."""
quantifier = one_of("at least", "around", "at most")
"""The comparison words of labels with `func_name`."""


def meets(count: int, how: str, threshold: int, tolerance: int = 0) -> bool:
    """Whether the count satisfies the comparison.

    Args:
        tolerance: the largest distance from the threshold for `around`.
    """
    if how == "at least":
        return count >= threshold
    if how == "less than":
        return count < threshold
    return count <= threshold if how == "at most" else abs(count - threshold) <= tolerance
