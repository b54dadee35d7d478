"""What several tests of this room share."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def studies():
    """The hand-made records of the golden reports."""
    path = Path(__file__).parents[2] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
