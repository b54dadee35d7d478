"""The synthetic studies, for the tests of this folder."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def studies():
    """The module `studies`, which the import mode of these tests keeps off the path."""
    spec = importlib.util.spec_from_file_location(
        "studies", Path(__file__).parents[2] / "golden" / "studies.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_study(studies):
    """`peakward run` on an H200, complete."""
    return studies.run_study()


@pytest.fixture
def bench_study(studies):
    """`peakward bench` on a laptop, ended early, with an OOM."""
    return studies.bench_study()
