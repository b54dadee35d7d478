"""Causes of a share over 100%, none of them claimed where it cannot be."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.studies.roofline import over_roof
from peakward.studies.roofline.cells import read


@pytest.fixture
def notes(setting, told, small, monkeypatch):
    """Makes notes of a cell whose places of these kinds take half of their least time."""
    here = setting(small)
    cell = next(each for each in read(told(here), here) if each.places)

    def make(l2_bytes, **bounds):
        places = tuple(
            msgspec.structs.replace(each, measured_s=each.floor_s / 2, bound=bounds[each.kind])
            if each.kind in bounds
            else each
            for each in cell.places
        )
        figure = None if l2_bytes is None else SimpleNamespace(value=l2_bytes)
        device = SimpleNamespace(l2_bytes=figure)
        monkeypatch.setattr(over_roof.devices, "match", lambda name, memory_bytes: device)
        return tuple(over_roof.causes([msgspec.structs.replace(cell, places=places)], here))

    return make


def test_below_the_roof_nothing_is_said(notes):
    assert notes(2**30) == ()


def test_a_cache_is_named_only_where_it_could_hold_what_is_moved(notes):
    (held,) = notes(2**30, loss="memory", softmax="memory")
    assert "loss" in held and "softmax" in held
    assert "fits into the L2 of 1.00 GiB" in held
    assert notes(2, loss="memory") == (
        "A share over 100% (loss): what a call moves is more than the L2 holds; the cause is not "
        "known.",
    )
    (unknown,) = notes(None, loss="memory")
    assert "whose size is not known" in unknown


def test_products_have_a_cause_of_their_own(notes):
    products, cached = notes(2**30, up="compute", loss="memory")
    if "(loss)" in products:
        products, cached = cached, products
    assert products == (
        "A share over 100% (up): products ran faster than the square one of the calibration."
    )
    assert "(loss)" in cached
