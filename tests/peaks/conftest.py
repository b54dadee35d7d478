"""The stored accuracy of memory, and the stored measurements predicted again."""

import pytest

from peaks.gate import newest
from peaks.judge import replayed
from stored_results import FOLDER


@pytest.fixture(scope="session")
def stored():
    return newest(FOLDER)


@pytest.fixture(scope="session")
def now():
    return replayed(FOLDER)
