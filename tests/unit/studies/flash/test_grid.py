"""The grid of `flash`."""

import pytest

from peakward.studies.attention_arms import FLASH, FLASH_HOPPER, SDPA
from peakward.studies.flash.grid import groups, plan, read, subject
from peakward.studies.readings import Readings
from peakward.studies.scope import Scope


def test_the_full_grid(setting):
    cases = [case for case, _ in plan(setting("full"))]
    assert {case.seq_len for case in cases} == {2**power for power in range(7, 17)}
    assert {case.head_dim for case in cases} == {16, 32, 64, 128}
    assert {case.pass_ for case in cases} == {"forward", "backward", "forward_backward"}
    assert {case.precision for case in cases} == {"fp32", "bf16"}
    assert {(case.batch_size, case.n_heads) for case in cases} == {(1, 1)}


def test_every_arm_has_a_row_at_every_size(setting):
    for group in groups(read(Readings(), setting("full"))):
        assert len(group) == 10 * 10


def test_ours_is_the_subject_and_where_it_cannot_run_torchs_choice(setting):
    assert subject(read(Readings(), setting())) == (FLASH, FLASH_HOPPER)
    assert subject(read(Readings(), setting("small", "cpu"))) == (SDPA,)


@pytest.mark.parametrize(
    ("asked", "found"),
    [(("fp32",), {"fp32"}), (("bf16", "fp8"), {"bf16"}), (("fp8",), {"fp32", "bf16"})],
)
def test_precisions_that_were_asked_for_or_where_none_of_them_is_there_all(setting, asked, found):
    cells = read(Readings(), setting(Scope("corners", precisions=asked)))
    assert {cell.precision for cell in cells} == found


@pytest.mark.parametrize(
    ("pass_", "factor"), [("forward", 1), ("backward", 2.5), ("forward_backward", 3.5)]
)
def test_flops_are_half_of_the_square_and_backward_two_and_a_half_times_that(
    setting, pass_, factor
):
    here = setting(Scope("corners", seq_lens=(256,)))
    cell = next(each for each in read(Readings(), here) if each.pass_ == pass_)
    assert cell.flops == factor * 2 * 256**2 * cell.head_dim


def test_a_rate_is_flops_over_time_and_its_share_that_of_the_roof(read_flash):
    here, readings = read_flash()
    for cell in read(readings, here):
        if cell.attempt.obstacle is None and cell.pass_ == "forward":
            gain = {"naive": 1, "compiled": 2}.get(cell.arm.name, 8)
            rate = gain * {"fp32": 1e12, "bf16": 8e12}[cell.precision]
            assert cell.rate.estimate == pytest.approx(rate)
            assert cell.rate.low < rate < cell.rate.high
            if cell.precision == "bf16" or cell.arm.name in ("naive", "flex", "sdpa-math"):
                roof = {"fp32": 50e12, "bf16": 400e12}[cell.precision]
                assert cell.roof_share == pytest.approx(rate / roof)


def test_without_a_rate_of_the_type_there_is_no_share(read_flash):
    here, readings = read_flash(roofs={"fp32": 50e12})
    cells = read(readings, here)
    assert {cell.roof_share for cell in cells if cell.precision == "bf16"} == {None}
