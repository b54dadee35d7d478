"""The grid of `compile`, its speed-ups and paybacks."""

import math

import msgspec
import pytest

from peakward.studies import compile as compile_study
from peakward.studies.compile.grid import EAGER, Mode, cells, modes, plan, refusals


def test_a_gpu_runs_every_mode_and_a_cpu_the_default(setting):
    assert len(modes(setting())) == 6
    assert modes(setting(device="cpu")) == (EAGER, Mode(compile="default"))


def test_without_a_compiler_only_eager_runs_and_the_study_says_why(setting):
    bare = msgspec.structs.replace(setting(device="cpu"), has_compiler=False)
    assert modes(bare) == (EAGER,)
    assert any("compiler" in each for each in refusals(bare))


def test_compiled_cases_begin_in_a_fresh_process(setting):
    for case, protocol in plan(setting()):
        compiled = getattr(case, "configuration", case).compile != "none"
        assert protocol.fresh_process == compiled


def test_the_corners_autotune_the_first_size_alone(setting):
    def autotuned(scope):
        return {
            case.model.name
            for case, _ in plan(setting(scope))
            if hasattr(case, "model") and case.configuration.compile == "max-autotune"
        }

    assert autotuned("corners") == {"small"}
    assert len(autotuned("full")) == 5


def test_what_autotunes_comes_last(setting):
    planned = compile_study.plan(setting())
    autotunes = [
        getattr(case, "configuration", case).compile == "max-autotune" for case, _ in planned
    ]
    assert len(set(planned)) == len(planned)
    assert autotunes == sorted(autotunes)
    assert any(autotunes)


def test_compiled_is_held_against_eager_of_its_own_precision(setting, gathered):
    here = setting()
    found = {
        (cell.shape.name, cell.subject, cell.mode.name): cell
        for cell in cells(gathered(compile_study, here), here)
    }
    tf32 = found["small", "train_step", "tf32 compile default"]
    assert tf32.speedup.factor == pytest.approx(2.0)
    assert tf32.baseline.summary.median_s.estimate == pytest.approx(
        8.0 * tf32.measurement.summary.median_s.estimate
    )


@pytest.fixture
def cell(setting, gathered):
    here = setting()
    return next(
        each
        for each in cells(gathered(compile_study, here), here)
        if each.subject == "train_step" and each.mode == Mode(compile="default")
    )


def test_the_payback_is_compile_time_over_time_saved(cell):
    saved_s = cell.eager.summary.median_s.estimate - cell.measurement.summary.median_s.estimate
    assert cell.payback_steps == pytest.approx(30.0 / saved_s)


def test_what_is_not_faster_never_pays(cell):
    assert math.isinf(msgspec.structs.replace(cell, eager=cell.measurement).payback_steps)


def test_a_gain_within_the_intervals_never_pays(cell):
    summary = cell.measurement.summary
    median = msgspec.structs.replace(summary.median_s, estimate=summary.median_s.estimate * 1.005)
    near = msgspec.structs.replace(
        cell.measurement, summary=msgspec.structs.replace(summary, median_s=median)
    )
    assert math.isinf(msgspec.structs.replace(cell, eager=near).payback_steps)


def test_no_payback_of_a_case_that_failed(cell):
    assert msgspec.structs.replace(cell, measurement=None).payback_steps is None
    assert msgspec.structs.replace(cell, eager=None).payback_steps is None
