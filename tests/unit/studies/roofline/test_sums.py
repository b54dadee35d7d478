"""Sums over a step's places."""

import msgspec
import pytest

from peakward.studies.roofline import sums


def test_all_of_the_time_is_placed_and_its_sides_add_up(cells):
    for cell in cells:
        assert sums.placed_s(cell) == pytest.approx(sums.work_s(cell), rel=1e-3)
        sides = sums.side_s(cell, "compute") + sums.side_s(cell, "memory")
        assert sides == pytest.approx(sums.placed_s(cell))
        assert 1 / 4 < sums.floor_s(cell) / sums.placed_s(cell) < 1 / 2


def test_linear_layers_are_left_out(cells):
    cell = cells[0]
    layers = [cell.place(name) for name in ("qkv", "out", "up", "down", "head")]
    moved = sum(each.bytes for each in layers)
    assert sums.moved_bytes(cell) - sums.beside_layers_bytes(cell) == moved
    taken_s = sum(each.measured_s for each in layers)
    assert sums.work_s(cell) - sums.beside_layers_s(cell) == pytest.approx(taken_s, rel=1e-3)


def test_nothing_is_known_of_a_step_without_profile(cells):
    bare = msgspec.structs.replace(cells[0], profile=None, places=())
    assert sums.work_s(bare) is None
    assert sums.placed_s(bare) is None
    assert sums.floor_s(bare) is None
    assert sums.side_s(bare, "compute") is None
    assert sums.beside_layers_s(bare) is None


def test_what_is_notable_took_its_share(cells):
    found = sums.notable(cells[0])
    least_s = sums.LEAST_SHARE * sums.placed_s(cells[0])
    assert min(each.measured_s for each in found) >= least_s
    left_out = [each.kind for each in cells[0].places if each not in found]
    assert left_out, "what is left out took less"
    assert all(cells[0].place(name).measured_s < least_s for name in left_out)
