"""Rates that are the launches'."""

from peakward.studies.flash.grid import read
from peakward.studies.flash.under_roof import LITTLE, launches


def told(read_flash, **options):
    here, readings = read_flash(**options)
    cells = read(readings, here)
    return cells, launches(cells)


def test_rates_far_below_the_roof_are_told_with_their_longest_length(read_flash):
    cells, (note,) = told(read_flash, roofs={"bf16": 1e18, "fp32": 1e18})
    few = [cell for cell in cells if cell.roof_share is not None]
    assert all(cell.roof_share < LITTLE for cell in few)
    longest = max(cell.seq_len for cell in few)
    assert note.startswith(f"{len(few)} of {len(few)} rates, of lengths up to {longest:,},")


def test_nothing_is_said_of_rates_near_it(read_flash):
    assert told(read_flash, roofs={"bf16": 1e12, "fp32": 1e12})[1] == ()


def test_nor_of_a_cpu(read_flash):
    assert told(read_flash, scope="small", device="cpu", roofs={"fp32": 1e18})[1] == ()
