"""Compiled blocks with Peakward's parts against steps on an H100, which were predicted before they ran."""

import json

import msgspec
import pytest

import peakward as pw
from peakward.prediction.memory.peak import peak_memory
from peakward.records.case import ModelCase
from stored_results import index

NAME = "2026-11-23-h100-compiled-parts"
FIELDS = ("precision", "norm", "rope", "swiglu")


@pytest.fixture(scope="module")
def measured():
    """(case, median seconds, peak bytes) of each step."""
    return [
        (
            msgspec.convert(each["case"], ModelCase),
            each["measured_step_s"]["estimate"],
            each["measured_peak_bytes"],
        )
        for each in json.loads(index()[NAME].read())["cases"]
    ]


def steps(measured):
    """Captured ones, which do not wait for their host: (measured, predicted) seconds by their parts."""
    return {
        tuple(getattr(case.configuration, each) for each in FIELDS): (
            seconds,
            pw.predict(case, "h100-sxm-80").step_s,
        )
        for case, seconds, _ in measured
        if case.configuration.cuda_graphs
    }


def test_captured_steps_lie_within_their_intervals(measured):
    found = steps(measured)
    assert len(found) == 16
    for seconds, predicted in found.values():
        assert predicted.low < seconds < predicted.high
        assert seconds == pytest.approx(predicted.estimate, rel=0.11)


def test_what_each_part_changes_has_the_sign_that_was_predicted(measured):
    """Of the mixed steps, whose clock was not throttled: a fused norm and a fused RoPE cost, a fused
    SwiGLU gains."""
    found = steps(measured)
    for i, sign in ((1, 1), (2, 1), (3, -1)):
        for parts, fused in found.items():
            if parts[0] == "bf16-mixed" and parts[i] == "fused":
                plain = found[(*parts[:i], "torch", *parts[i + 1 :])]
                assert (fused[0] - plain[0]) * sign > 0
                assert (fused[1].estimate - plain[1].estimate) * sign > 0


def test_peak_memory(measured):
    errors = [abs(peak_memory(case).peak_bytes / held - 1) for case, _, held in measured]
    assert len(errors) == 32
    assert max(errors) < 0.0035
