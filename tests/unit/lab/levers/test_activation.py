"""The lever of activations, on modules of a user's."""

import pytest
from torch import nn

from peakward.lab.numerics.verify import verify
from peakward.levers.activation import AXIS
from peakward.levers.catalogue import case_obstacle
from peakward.records.errors import PeakwardError

SETTING = {"more": (("activation", "torch"),)}


def test_the_numbers_of_a_users_module_hold(make_module_case):
    pytest.importorskip("transformers")
    base = make_module_case("hf:gpt2", pass_="forward_backward")
    candidate = make_module_case("hf:gpt2", pass_="forward_backward", **SETTING)
    found = verify(base, candidate, "reordered")
    assert (found.verdict, found.reason) == ("holds", None)
    assert any(each.candidate_error != each.base_error for each in found.errors)


def test_a_cpu_takes_it(make_module_case):
    case = make_module_case("hf:gpt2", **SETTING)
    assert case_obstacle(case, compute_capability=None, has_compiler=True) is None


def test_a_module_without_one_written_out_is_refused():
    with pytest.raises(PeakwardError, match=r"that write out GELU or SiLU, got Sequential without"):
        AXIS.to_module(nn.Sequential(nn.Linear(2, 2), nn.GELU()), "torch")
