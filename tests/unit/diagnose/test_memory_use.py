"""What is known of a case's memory."""

import pytest

from peakward.diagnose.memory_use import peak_use, scores_bytes
from peakward.records.memory import CaseMemory, PhasePeak
from peakward.records.memory_snapshot import MemoryShare

from .rules.made import case, foretold, given


def test_the_predicted_peak_by_purpose():
    given = foretold(case())
    found = peak_use(given)
    told = given.forecast.memory
    assert found.peak_bytes == told.peak_bytes
    assert found.by_purpose["parameters"] == told.peak.parameters_bytes
    assert sum(found.by_purpose.values()) <= found.peak_bytes


def test_a_recorded_one_goes_before():
    peak = PhasePeak(
        phase="backward",
        event=1,
        allocated_bytes=100,
        purposes=(MemoryShare(name="activations", n=1, n_bytes=70),),
    )
    recorded = CaseMemory(
        id="", case=case(), environment_key="", snapshot="", peak_bytes=100,
        counted_peak_bytes=None, reserved_bytes=None, phases=(peak,), purposes=(), timeline=(),
        modules=(), largest=(),
    )  # fmt: skip
    found = peak_use(foretold(case(), memory=recorded))
    assert (found.peak_bytes, found.by_purpose) == (100, {"activations": 70})
    assert found.stored == "memory phases[backward].purposes"


def test_of_nothing_known_nothing():
    assert peak_use(given()) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 4 * 12 * 512 * 512 * 4),
        ({"precision": "bf16"}, 4 * 12 * 512 * 512 * 2),
        ({"workload": {"pass_": "decode"}}, 4 * 12 * 512 * 4),
        ({"attention": "sdpa"}, None),
    ],
)
def test_a_score_matrix(settings, expected):
    assert scores_bytes(given(case=case(**settings))) == expected
