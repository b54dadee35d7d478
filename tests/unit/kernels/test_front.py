"""The public names of `peakward.kernels`."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from peakward import kernels, levers


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_name_is_a_callable_with_words_of_its_own(name):
    found = getattr(kernels, name)
    assert callable(found)
    assert inspect.getdoc(found)
    assert found.__name__ == name


def test_what_is_typed_is_what_is_given():
    tree = ast.parse(Path(kernels.__file__).read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peakward.kernels")
        for alias in node.names
    }
    assert typed == set(kernels.__all__) == set(dir(kernels))


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'sdpa'"):
        _ = kernels.sdpa


def test_advice_names_what_there_is():
    files = Path(levers.__file__).parent.glob("*.py")
    text = "".join(each.read_text(encoding="utf-8") for each in files)
    named = set(re.findall(r"peakward\.kernels\.(?!ops\b)(\w+)\b(?!{)", text))
    assert named
    assert named <= set(kernels.__all__)
