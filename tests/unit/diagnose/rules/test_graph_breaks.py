"""Breaks and recompilations."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.measurement import CompileReport

from .made import abstains, case, given, judge, measurement

COMPILED = case(compile="default")


def compiled(n_graph_breaks, n_recompiles):
    report = CompileReport(
        compile_s=10.0,
        n_graphs=3,
        n_graph_breaks=n_graph_breaks,
        n_recompiles=n_recompiles,
        reasons=("graph break: loss.item()",),
    )
    return given(case=COMPILED, measurement=measurement(COMPILED, compile=report))


@pytest.mark.parametrize("counts", [(1, 0), (0, 5), (20, 7)])
def test_either_counts(counts):
    found = judge("HOST007", compiled(*counts))
    assert isinstance(found, Symptom)
    assert [each.value for each in found.evidence[:2]] == list(counts)
    assert "loss.item()" in found.cause
    assert not found.parts


def test_silent_without_them():
    assert judge("HOST007", compiled(0, 0)) is None
    assert judge("HOST007", given(case=case())) is None


def test_without_a_report():
    assert abstains("HOST007", given(case=COMPILED, measurement=measurement(COMPILED)))
    assert abstains("HOST007", given())
