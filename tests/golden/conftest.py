"""The synthetic studies, for the tests of this folder."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def studies():
    """The module `studies`, which the import mode of these tests keeps off the path."""
    spec = importlib.util.spec_from_file_location("studies", Path(__file__).parent / "studies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
