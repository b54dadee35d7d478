"""The grid of `kernels`."""

import pytest

from peakward.studies import kernels
from peakward.studies.kernels.grid import longest, pairs, plan, read
from peakward.studies.scope import Scope


def lengths(setting):
    return sorted({case.workload.seq_len for case, _ in plan(setting)})


def test_every_size_and_length_is_run_in_inference_and_in_training(setting):
    cases = [case for case, _ in plan(setting("small", "cpu"))]
    assert {case.workload.pass_ for case in cases} == {"forward", "train_step"}
    assert len(cases) == len(set(cases)) == 8
    assert {case.configuration.precision for case in cases} == {"fp32"}


def test_the_corners_have_a_length_between_unless_lengths_are_asked_for(setting):
    assert lengths(setting("corners")) == [128, 512, 1024]
    assert lengths(setting("full")) == [128, 256, 512, 1024]
    assert lengths(setting(Scope("corners", seq_lens=(64,)))) == [64]


def test_what_was_measured_is_profiled(setting, gathered):
    here = setting()
    cells = read(gathered(kernels, here), here)
    assert all(cell.profile and cell.profile.case == cell.case for cell in cells)
    assert [cell.over_plain for cell in cells] == pytest.approx([1.25] * 12)


def test_what_failed_is_not_profiled(setting, gathered):
    here = setting()

    def overrule(case):
        return "oom" if case.workload.pass_ == "train_step" else None

    cells = read(gathered(kernels, here, overrule=overrule), here)
    assert [cell.profile is None for cell in cells] == [False, True] * 6
    assert cells[1].over_plain is None
    assert pairs(cells) == ()
    assert {cell.case.workload.pass_ for cell in longest(cells)} == {"forward"}


def test_the_longest_of_each_size_and_pass_that_was_profiled(setting, gathered):
    here = setting()

    def overrule(case):
        return "oom" if case.model.name == "2.7B" and case.workload.seq_len == 1024 else None

    cells = longest(read(gathered(kernels, here, overrule=overrule), here))
    found = [(cell.case.model.name, cell.case.workload.seq_len) for cell in cells]
    assert found == [("small", 1024)] * 2 + [("2.7B", 512)] * 2


def test_inference_is_paired_with_training(setting, gathered):
    here = setting()
    both = pairs(read(gathered(kernels, here), here))
    assert len(both) == 6
    for each in both:
        assert each.training.case == each.case
        assert each.inference.case.workload.pass_ == "forward"
        assert each.inference.case.workload.seq_len == each.case.workload.seq_len
