"""The cells of `roofline`."""

import msgspec
import pytest

from peakward.records.measurement import Environment
from peakward.studies.roofline.cells import largest, profiled, read
from peakward.studies.setting import Setting


def test_a_cell_has_its_roof_places_and_profile(cells):
    assert len(cells) == len(profiled(cells)) == 18
    for cell in cells:
        assert cell.profile.case == cell.case
        assert cell.ridge == pytest.approx(50 if cell.precision == "fp32" else 800)
    assert cells[0].name == "micro, fp32, eager, batch 1"
    assert cells[0].place("up").kind == "up"
    assert cells[0].place("attention") is None


def test_the_largest_batch_that_was_profiled(setting, told, small):
    here = setting(small)

    def overrule(case):
        return "oom" if case.workload.batch_size == 16 else None

    found = largest(read(told(here, overrule=overrule), here))
    assert len(found) == 6
    assert {cell.batch_size for cell in found} == {4}


def test_without_a_calibration_or_datasheet_there_are_no_places(setting, told, small):
    here = setting(small)
    readings = told(here)
    readings.calibration = None
    cells = read(readings, here)
    assert {(cell.on, cell.places, cell.ridge) for cell in cells} == {(None, (), None)}


def test_a_gpu_of_the_catalogue_has_predictions_and_a_cpu_none(setting, told, small):
    here = setting(small)
    readings = told(here)
    h200: Environment = msgspec.structs.replace(
        here.environment, device_name="NVIDIA H200", device_memory_bytes=150754820096
    )
    there: Setting = msgspec.structs.replace(here, environment=h200)
    readings.calibration = None
    cell, *_ = read(readings, there)
    assert cell.on.source == "datasheet"
    assert all(each.predicted_s for each in cell.places)
    cpu = setting(small, "cpu")
    cell, *_ = read(told(cpu), cpu)
    assert {each.predicted_s for each in cell.places} == {None}
