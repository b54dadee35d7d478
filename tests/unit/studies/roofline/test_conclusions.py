"""What is said of each step rests on its profile and on the calibration."""

import msgspec
import pytest

from peakward.studies import roofline
from peakward.studies.roofline import conclusions


def test_what_is_bound_by_what(cells, figures, roofed):
    first, *others = conclusions.sides(cells, roofed())
    assert len(others) == 5
    assert "In micro, fp32, eager, batch 16" in first.text
    assert figures(first)["ridge"] == pytest.approx(50)
    assert 1 / 4 < figures(first)["share of the roof"] < 1 / 2
    ids = {name for each in first.evidence for name in each.from_ids}
    assert ids == {cells[2].profile.id, roofed().id}


def test_what_loses_most_is_farthest_from_its_roof_by_time(cells, figures, roofed):
    first, *_ = conclusions.farthest(cells, roofed())
    lost = {each.kind: each.measured_s - each.floor_s for each in cells[2].places}
    kind = max(lost, key=lost.get)
    assert f"by {kind}:" in first.text
    assert figures(first)[f"time of {kind} above the roof"] == pytest.approx(lost[kind])


def test_predictions_are_judged_over_all_places(cells, figures, roofed):
    assert list(conclusions.predictions(cells, roofed())) == []
    foretold = [
        msgspec.structs.replace(
            cell,
            places=tuple(
                msgspec.structs.replace(each, predicted_s=each.measured_s / 1.25)
                for each in cell.places
            ),
        )
        for cell in cells
    ]
    (said,) = conclusions.predictions(foretold, roofed())
    assert figures(said)["measured over predicted"] == pytest.approx(1.25)
    assert figures(said)["places with a prediction"] == sum(len(each.places) for each in cells)


def test_nothing_is_said_of_what_was_not_profiled(setting, told, small):
    here = setting(small)
    assert roofline.parts(told(here, overrule=lambda case: "oom"), here).conclusions == ()


def test_nothing_is_said_of_sides_without_a_ridge(cells, roofed):
    unknown = [
        msgspec.structs.replace(each, on=each.on._replace(matmul_flops_per_s=None))
        for each in cells
    ]
    assert list(conclusions.sides(unknown, roofed())) == []
