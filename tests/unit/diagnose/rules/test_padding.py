"""Padding that is computed."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, case, given, judge, profile


def padded(*lengths, padding="to-seq-len"):
    return case(workload={"seq_len": 512, "varying_seq_lens": lengths, "padding": padding})


@pytest.mark.parametrize(("lengths", "share"), [((256, 512), 0.25), ((128, 128), 0.75)])
def test_the_share_of_tokens(lengths, share):
    found = judge("BW004", given(profile(), case=padded(*lengths)))
    assert isinstance(found, Symptom)
    assert found.evidence[1].value == pytest.approx(share)
    assert sum(found.parts.values()) == pytest.approx(0.1 * share)


def test_silent_where_little_or_none():
    assert judge("BW004", given(profile(), case=padded(500, 512))) is None
    assert judge("BW004", given(profile(), case=padded(128, padding="none"))) is None
    assert judge("BW004", given(profile(), case=case())) is None


def test_a_trace_does_not_say():
    assert abstains("BW004", given(profile()))
