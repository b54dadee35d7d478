"""Rates above the roof."""

from peakward.studies.flash.grid import read
from peakward.studies.flash.over_roof import causes


def told(read_flash, **options):
    here, readings = read_flash(**options)
    return causes(read(readings, here), readings.calibration)


def test_nothing_is_said_below_it(read_flash):
    assert told(read_flash) == ()


def test_tensor_cores_are_not_held_to_the_roof_of_fp32(read_flash):
    here, readings = read_flash(roofs={"fp32": 0.5e12, "tf32": 1e15, "bf16": 1e15})
    above = {cell.arm.name for cell in read(readings, here) if (cell.roof_share or 0) > 1}
    assert above == {"naive", "sdpa-math", "flex"}


def test_doubts_of_the_calibration_are_named(read_flash):
    (note,) = told(
        read_flash, scope="small", device="cpu", roofs={"fp32": 5e12}, doubts=("it rained",)
    )
    assert note.endswith("When the roof was measured, it rained: it may be too low.")


def test_otherwise_the_product_was_not_the_best(read_flash):
    (note,) = told(read_flash, roofs={"bf16": 5e12})
    assert note.endswith("The square product of the calibration was not this device's best.")
