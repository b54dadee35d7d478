"""What `data-loading` makes of known figures."""

import pytest

from peakward.studies import data_loading


@pytest.fixture
def made(setting, gathered):
    def make(device="cuda", scope="corners", **options):
        here = setting(scope, device)
        return data_loading.parts(gathered(data_loading, here, **options), here)

    return make
