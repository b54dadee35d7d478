"""The stored accuracy of each device, and its stored measurements predicted again."""

import pytest

from accuracy.gate import newest
from accuracy.judge import replayed
from accuracy.replay import sites
from accuracy.seen import FITTED_ON
from stored_results import FOLDER

SITES = sites(FOLDER)


@pytest.fixture(scope="session")
def every_stored():
    """By device."""
    return newest(FOLDER)


@pytest.fixture(scope="session")
def stored(every_stored):
    """Of the device that the constants were fitted to."""
    return every_stored[FITTED_ON]


@pytest.fixture(scope="session")
def now():
    return replayed(FOLDER, SITES[FITTED_ON])


@pytest.fixture(scope="session", params=SITES)
def device(request):
    """Each in turn."""
    return request.param


@pytest.fixture(scope="session")
def stored_there(every_stored, device):
    return every_stored[device]


@pytest.fixture(scope="session")
def now_there(device):
    return replayed(FOLDER, SITES[device])
