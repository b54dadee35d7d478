"""The innermost module that runs, as it changes."""

import pytest

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.module_marks import told_modules
from peakward.records.case import Configuration, ModelCase, Workload


@pytest.fixture
def told(make_shape):
    """told(pass, **configuration): what is said over one step, and what is left of the hooks."""

    def run(pass_, **configuration):
        case = ModelCase(
            model=make_shape(n_layers=2),
            workload=Workload(batch_size=2, seq_len=8, pass_=pass_),
            configuration=Configuration(**configuration),
            device="cpu",
        )
        said = []
        with prepare(case) as step:
            with told_modules(step.model, said.append):
                step.step()
            n_said = len(said)
            step.step()
            assert len(said) == n_said, "nothing is told afterwards"
            assert not any(each._forward_hooks for each in step.model.modules())
        return said

    return run


def test_modules_enter_and_leave_in_order(told):
    said = told("forward", attention="sdpa")
    assert said[:2] == ["embedding", ""]
    assert said[-1] == ""
    begin = said.index("blocks.1")
    assert said[begin : begin + 5] == [
        "blocks.1",
        "blocks.1.attention_norm",
        "blocks.1",
        "blocks.1.attention",
        "blocks.1.attention.qkv",
    ]


def test_naive_attention_has_its_parts(told):
    said = told("forward")
    parts = ["scores", "softmax", "values"]
    assert [each for each in said if each.split(".")[-1] in parts] == [
        f"blocks.{block}.attention.{part}" for block in range(2) for part in parts
    ]


def test_a_recomputed_block_runs_again_and_leaves(told):
    plain = told("forward_backward")
    again = told("forward_backward", checkpointing="every-block")
    assert again.count("blocks.1.attention.qkv") == 2 * plain.count("blocks.1.attention.qkv")
    assert set(again) == set(plain)
    assert again[-1] == ""


def test_compiled_modules_are_left_alone(make_shape):
    case = ModelCase(
        model=make_shape(n_layers=2), workload=Workload(batch_size=1, seq_len=8), device="cpu"
    )
    with prepare(case) as step:
        step.model.blocks[0].compile()
        with told_modules(step.model, lambda path: None):
            assert not step.model.blocks[0].ff.up._forward_hooks
            assert step.model.blocks[1].ff.up._forward_hooks
