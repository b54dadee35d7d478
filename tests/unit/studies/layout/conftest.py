"""What `layout` makes of known figures."""

import pytest

from peakward.studies import layout


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return layout.parts(gathered(layout, here, **options), here)

    return make
