"""The stored results of each device, and what the rules say of the same records now."""

from pathlib import Path

import pytest

from faults.gate import newest
from faults.judge import verdicts

STORED = newest(Path(__file__).parents[2] / "results")


@pytest.fixture(scope="session", params=STORED)
def device(request):
    """Each in turn."""
    return request.param


@pytest.fixture(scope="session")
def stored(device):
    return STORED[device]


@pytest.fixture(scope="session")
def now(stored):
    return verdicts(stored.ran)
