"""The stored results of each device, and what the rules say of the same records now."""

import pytest

from faults.gate import newest
from faults.judge import verdicts
from stored_results import FOLDER

STORED = newest(FOLDER)


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
