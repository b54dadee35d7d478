"""The stored accuracy, and the stored measurements predicted again."""

from pathlib import Path

import pytest

from accuracy.gate import newest
from accuracy.judge import replayed

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="session")
def stored():
    return newest(RESULTS)


@pytest.fixture(scope="session")
def now():
    return replayed(RESULTS)
