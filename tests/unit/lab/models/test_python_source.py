"""A factory in Python, and what may be wrong with it."""

import pytest
import torch

from peakward.lab.models import given_module
from peakward.lab.models.python_source import build, raise_as_bad_input
from peakward.records.errors import PeakwardError


def built(path, **changed):
    return build(path, **{"batch_size": 2, "seq_len": 16, "device": "cpu", "seed": 0, **changed})


def test_a_factory_builds_the_same_weights_under_one_seed(at_user_modules):
    first, second = (built("tiny_gpt:build").module.state_dict() for _ in range(2))
    other = built("tiny_gpt:build", seed=1).module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_a_factory_is_told_the_sizes_that_it_takes(at_user_modules):
    found = built("tiny_gpt:with_batch", batch_size=3, seq_len=8)
    assert found.args[0].shape == (3, 8)


@pytest.mark.parametrize(
    ("factory", "scope"), [("compiled", "model"), ("compiled_by_blocks", "block")]
)
def test_a_module_that_comes_compiled_is_plain_beside_what_was_compiled(
    factory, scope, at_user_modules
):
    found, plain = built(f"tiny_gpt:{factory}"), built("tiny_gpt:build")
    assert (found.compiled, plain.compiled) == (scope, None)
    assert found.module.state_dict().keys() == plain.module.state_dict().keys()
    assert not any(each._compiled_call_impl for each in found.module.modules())
    with pytest.raises(PeakwardError, match=r"was called on in blocks\.1: leave that out"):
        built("tiny_gpt:compiled_inside")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("tiny_gpt", "expected py:package.module:factory, got 'tiny_gpt'"),
        (
            "absent.module:build",
            "expected a module absent.module that can be imported from the working",
        ),
        ("tiny_gpt:absent", "expected a function absent in tiny_gpt, got nothing by that name"),
        ("tiny_gpt:VOCAB_SIZE", "expected a function VOCAB_SIZE in tiny_gpt, got int"),
        (
            "tiny_gpt:raises",
            r"tiny_gpt:raises that returns, got ValueError: no weights today \(tiny_gpt.py:\d+, in raises\)",
        ),
        ("tiny_gpt:exits", "got SystemExit: 3"),
        (
            "tiny_gpt:wants_more",
            "expected a factory tiny_gpt:wants_more that takes none but batch_size, seq",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(path, line, at_user_modules):
    with pytest.raises(PeakwardError, match=line) as caught:
        built(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_module_that_misses_another_names_that_one(at_user_modules):
    (at_user_modules / "needy.py").write_text("import nowhere_to_be_found")
    with pytest.raises(PeakwardError, match=r"No module named 'nowhere_to_be_found' \(needy.py:1"):
        built("needy:build")


def test_a_fault_of_ours_is_no_bad_input():
    with pytest.raises(AttributeError) as caught:
        given_module.expect_plain(3)
    with pytest.raises(AttributeError):
        raise_as_bad_input(caught.value, "anything")


def test_memory_that_ran_out_is_no_bad_input():
    with pytest.raises(torch.OutOfMemoryError):
        raise_as_bad_input(torch.OutOfMemoryError("CUDA out of memory"), "anything")
