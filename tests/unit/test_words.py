"""Docstrings that a reader understands without the code below them."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "peakward"
FRAGMENTS = ("Of", "That", "What")
"""The first words of docstrings that continue a sentence which the code began."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of every string that stands alone: docstrings, and those below attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text


def fragments(source: str) -> list[int]:
    return [
        line for line, text in docstrings(source) if text.split()[:1] in ([x] for x in FRAGMENTS)
    ]


def test_no_docstring_begins_with_a_fragment():
    files = sorted(SOURCE.rglob("*.py"))
    assert files
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in files
        for line in fragments(path.read_text())
    ]
    assert not found


def test_a_fragment_is_seen_in_a_module_a_function_and_below_an_attribute():
    source = '"""What it does."""\n\nx = 1\n"""Of the time."""\n\n\ndef f():\n    """That one."""\n'
    assert fragments(source) == [1, 4, 8]
    assert not fragments('"""Offers whatever it has."""\n')
