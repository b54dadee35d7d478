"""What `vectorization` makes of known figures."""

import pytest

from peakward.studies import vectorization


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return vectorization.parts(gathered(vectorization, here, **options), here)

    return make
