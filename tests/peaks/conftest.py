"""The stored accuracy of memory, and the stored measurements predicted again."""

from pathlib import Path

import pytest

from peaks.gate import newest
from peaks.judge import replayed

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="session")
def stored():
    return newest(RESULTS)


@pytest.fixture(scope="session")
def now():
    return replayed(RESULTS)
