"""What is wrong with a user's module, told before anything is measured."""

import pytest
import torch

from peakward.lab.levers.module_check import check
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize(
    "source", ["py:tiny_gpt:build", "py:tiny_gpt:with_batch", "py:tiny_gpt:as_object"]
)
@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_nothing_is_wrong(source, pass_, make_module_case):
    check(make_module_case(source, pass_=pass_))


@pytest.mark.parametrize(
    ("factory", "scope"), [("build", None), ("compiled", "model"), ("compiled_by_blocks", "block")]
)
def test_what_the_factory_compiled_is_told_and_no_part_of_the_check(
    factory, scope, make_module_case
):
    compiled = torch._dynamo.utils.counters["frames"]["total"]
    assert check(make_module_case(f"py:tiny_gpt:{factory}")).compiled == scope
    assert torch._dynamo.utils.counters["frames"]["total"] == compiled


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        ("few_ids", r"got IndexError: .* \(tiny_gpt.py:\d+, in forward\)"),
        (
            "no_scalar",
            r"expected a loss of one element to go backward from, got a tensor of \(2, 16\)",
        ),
        ("frozen", "expected a loss that depends on a parameter that requires a gradient"),
        (
            "without_parameters",
            "expected a module with parameters to train, got py:tiny_gpt:without",
        ),
        ("growing", "expected a step of the same shapes at every call, got other ones"),
    ],
)
def test_each_fault_has_its_line(factory, line, make_module_case):
    with pytest.raises(PeakwardError, match=line) as caught:
        check(make_module_case(f"py:tiny_gpt:{factory}"))
    assert "\n" not in str(caught.value)
