"""What `fusion` makes of known figures."""

import pytest

from peakward.studies import fusion


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return fusion.parts(gathered(fusion, here, **options), here)

    return make
