"""Reads the tests in a label.

A `code` label is a list of assert statements, or of larger tests. A `code_stdio` label is a list of {"input",
"output"}, or one {"inputs", "outputs"}. The label is a Python object, JSON text, or the older form: JSON in a
compressed pickle in base64. A worker process reads labels, because a label may be large or may crash the parser.
"""

from __future__ import annotations

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from typing import Any

MAX_BYTES = 64 << 20
"""The largest size of a decompressed label."""


def assertions(label: Any) -> list[str] | str:
    """The tests of a `code` label, or the reason why the label has none.

    An entry that checks nothing is a preparation. It is put in front of each test that follows.
    """
    try:
        entries = decoded(label)
    except ValueError as error:
        return f"the label {error}"
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        return "a code label is a list of assert statements"
    tests: list[str] = []
    preparation = ""
    judging = _Judging()
    for entry in entries:
        try:
            judges = judging.judges(ast.parse(entry))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"the test {entry[:80]!r} does not parse: {error}"
        if judges:
            tests.append(preparation + entry)
        else:
            preparation += entry + "\n"
    return tests or "the label has no test: no entry asserts anything; add an assert statement"


def cases(label: Any) -> list[tuple[str, str]] | str:
    """Input and expected output of each test of a `code_stdio` label, or the reason why the label has none."""
    try:
        found = decoded(label)
    except ValueError as error:
        return f"the label {error}"
    if isinstance(found, dict) and isinstance(found.get("inputs"), list) and isinstance(found.get("outputs"), list):
        if found.get("fn_name") or len(found["inputs"]) != len(found["outputs"]):
            return "inputs and outputs must have the same length, and fn_name must be absent"
        found = [{"input": a, "output": b} for a, b in zip(found["inputs"], found["outputs"], strict=True)]
    if not isinstance(found, list) or not all(isinstance(case, dict) for case in found):
        return 'a code_stdio label is a list of {"input", "output"}'
    if not found:
        return 'the label has no test; add {"input", "output"}'
    read = [(_text(case.get("input")), _text(case.get("output"))) for case in found]
    if any(given is None or expected is None for given, expected in read):
        return "the input and output of a test must be text, or lists of lines"
    if any(case.get("testtype", "stdin") != "stdin" for case in found):
        return "the testtype of a code_stdio test must be stdin; use the verifier code for function calls"
    if not any(expected and expected.strip() for _, expected in read):
        return "the label has no test: every expected output is blank; give at least one output"
    return [(given or "", expected or "") for given, expected in read]


def _text(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


class _Judging:
    """Separates the entries that check a program from the entries that prepare a check."""

    def __init__(self) -> None:
        self._helpers: set[str] = set()
        """Functions that fail for a wrong program when they are called, like `check(candidate)`."""

    def judges(self, tree: ast.Module) -> bool:
        """Whether running an entry can fail for a wrong program.

        A function that the entry only defines counts if its name marks it as a test.
        """
        judging = [self._statement(node) for node in tree.body]
        return any(judging)

    def _statement(self, node: ast.stmt) -> bool:
        judges = any(map(self._judges, ast.walk(node)))
        if isinstance(node, ast.ClassDef):
            collected = node.name.startswith("Test") or any("TestCase" in ast.unparse(base) for base in node.bases)
        else:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            collected = not function or node.name.startswith("test")  # type: ignore[attr-defined]
        if judges and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._helpers.add(node.name)
        return judges and collected

    def _judges(self, node: ast.AST) -> bool:
        """Whether the node asserts, raises, or uses `assertEqual`, `pytest.raises` or a helper that checks."""
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._helpers or node.id == "raises"
        return isinstance(node, ast.Attribute) and (node.attr.startswith("assert") or node.attr in ("raises", "fail"))


def decoded(label: Any) -> Any:
    """Decode a label in any of its forms. Raises ValueError."""
    if not isinstance(label, str):
        return label
    try:
        return json.loads(label)
    except (ValueError, RecursionError):
        pass
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(label, validate=True), MAX_BYTES)
        if packed.unconsumed_tail:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        value = _Plain(io.BytesIO(data)).load()
    except (binascii.Error, zlib.error):
        raise ValueError("is neither JSON nor a compressed pickle of plain data") from None
    except Exception as error:  # a broken pickle can raise any exception
        raise ValueError(f"is a pickle with more than plain data: {error}") from None
    return json.loads(value) if isinstance(value, str) else value


class _Plain(pickle.Unpickler):
    """Reads a pickle without any class or function, so reading runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names an external object")
