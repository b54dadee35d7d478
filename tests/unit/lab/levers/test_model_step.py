"""A decoder in ranges computes the same with the same operators, and afterwards has none.

Counts of graphs are Dynamo's over its `eager` backend, as in test_compilation.
"""

import pytest
import torch
from torch import nn

from peakward.lab.levers import model_step
from peakward.lab.levers.prepare import prepare
from peakward.lab.levers.ranges import opened_phases
from peakward.records.case import Configuration, ModelCase, Workload
from tiers import in_full

N_LAYERS = 3
CHECKPOINTING = ("none", "sqrt", "every-block", "selective")
PARTS = [
    (1, "attention"),
    (2, "attention.scores"),
    (2, "attention.softmax"),
    (2, "attention.values"),
]
WHOLE = [(1, "attention")]


@pytest.fixture
def make_case(make_shape):
    def make(*, shape=None, pass_="train_step", workload=None, **configuration):
        return ModelCase(
            model=make_shape(n_layers=N_LAYERS, **(shape or {})),
            workload=Workload(batch_size=2, seq_len=8, pass_=pass_, **(workload or {})),
            configuration=Configuration(**configuration),
            device="cpu",
        )

    return make


def blocks(depth, inner):
    """The ranges of all the blocks that lie at `depth`, with `inner` in each."""
    return [
        (depth + below, name)
        for n in range(N_LAYERS)
        for below, name in [(0, f"block {n}"), *inner]
    ]


def in_step(step):
    with opened_phases("step") as mark:
        step.step(mark)


def seen_of(case, watched, n_warmup=0):
    with prepare(case) as step:
        for _ in range(n_warmup):
            step.step()
        with step.ranged():
            return watched(lambda: in_step(step))


@pytest.mark.parametrize(("attention", "inner"), [("naive", PARTS), ("sdpa", WHOLE)])
def test_attention_in_blocks_in_phases_in_the_step(attention, inner, make_case, watched):
    assert list(seen_of(make_case(attention=attention), watched).ranges) == [
        (0, "step"),
        (1, "forward"),
        *blocks(2, inner),
        (1, "backward"),
        (1, "optimizer"),
    ]


def test_forward_is_one_phase_for_each_micro_batch(make_case, watched):
    case = make_case(pass_="forward", workload={"accumulate": 2}, attention="sdpa")
    once = [(1, "forward"), *blocks(2, WHOLE)]
    assert list(seen_of(case, watched).ranges) == [(0, "step"), *once, *once]


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_a_pass_with_a_cache_is_a_forward_phase(pass_, make_case, watched):
    case = make_case(pass_=pass_, attention="naive")
    expected = [(0, "step"), (1, "forward"), *blocks(2, PARTS)]
    assert list(seen_of(case, watched).ranges) == expected


@pytest.mark.parametrize("mode", CHECKPOINTING[1:])
def test_a_recomputed_block_opens_its_range_again_in_backward(mode, make_case, watched):
    """Backward reaches the last run of blocks first; recomputation need not go to a run's end."""
    ranges = list(seen_of(make_case(checkpointing=mode, pass_="forward_backward"), watched).ranges)
    backward = ranges.index((1, "backward"))
    assert ranges[: backward + 1] == [
        (0, "step"),
        (1, "forward"),
        *blocks(2, PARTS),
        (1, "backward"),
    ]
    again = [name for depth, name in ranges[backward:] if depth == 2]
    order = (2, 0, 1) if mode == "sqrt" else (2, 1, 0)
    assert again == [f"block {n}" for n in order]


def results(step):
    """Of three steps."""
    found = []
    for _ in range(3):
        step.step()
        found += [step.output.clone(), *(each.clone() for each in step.gradients())]
    return [*found, *(each.detach().clone() for each in step.model.parameters())]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": "sdpa"},
        {"precision": "bf16-mixed"},
        {"precision": "bf16", "pass_": "forward"},
        {"shape": {"n_kv_heads": 2, "window": 4}},
        {"shape": {"positions": "alibi"}},
        {"checkpointing": "sqrt"},
        *in_full({"checkpointing": each} for each in CHECKPOINTING[1:] if each != "sqrt"),
    ],
    ids=str,
)
def test_every_bit_and_every_operator_is_the_same(changes, make_case, watched):
    case = make_case(**changes)
    with prepare(case) as step:
        plain, operators = results(step), watched(step.step).operators
    with prepare(case) as step, step.ranged():
        ranged, seen = results(step), watched(lambda: in_step(step))
    assert len(plain) == len(ranged)
    assert all(torch.equal(mine, other) for mine, other in zip(ranged, plain, strict=True))
    assert seen.operators == operators


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_afterwards_the_model_is_as_it_was(mode, make_case, watched):
    with prepare(make_case(checkpointing=mode)) as step:
        before = [(name, id(each)) for name, each in step.model.named_modules()]
        attentions = [
            each.attention
            for each in step.model.modules()
            if isinstance(each, model_step.SelfAttention)
        ]
        with pytest.raises(ZeroDivisionError), step.ranged():
            raise ZeroDivisionError
        assert [(name, id(each)) for name, each in step.model.named_modules()] == before
        after = [
            each.attention
            for each in step.model.modules()
            if isinstance(each, model_step.SelfAttention)
        ]
        assert all(a is b for a, b in zip(after, attentions, strict=True))
        assert watched(step.step).ranges == ()


def test_parameters_keep_their_order(make_case):
    with prepare(make_case()) as step:
        before = [id(each) for each in step.model.parameters()]
        with step.ranged():
            assert [id(each) for each in step.model.parameters()] == before


@pytest.fixture
def counts(monkeypatch):
    """counts(): graphs, breaks and recompilations so far, over a backend that generates no code."""
    import torch._dynamo
    from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

    def compile_(self, mode):
        self._compiled_call_impl = torch.compile(self._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_)
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    yield lambda: (
        counters["stats"]["unique_graphs"],
        sum(counters["graph_break"].values()),
        len(get_compilation_metrics()),
    )
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize(
    "compiled",
    [
        ("block", "sqrt"),
        ("model", "none"),
        *in_full(("block", each) for each in CHECKPOINTING if each != "sqrt"),
        *in_full(("model", each) for each in CHECKPOINTING[1:]),
    ],
    ids="-".join,
)
def test_compiled_code_is_neither_broken_nor_compiled_again(compiled, make_case, watched, counts):
    """Compiled blocks keep their own range; a model compiled as a whole its phases alone."""
    scope, checkpointing = compiled
    case = make_case(compile="default", compile_scope=scope, checkpointing=checkpointing)
    with prepare(case) as step:
        for _ in range(2):
            step.step()
        before = counts()
        with step.ranged():
            seen = watched(lambda: in_step(step))
        assert counts() == before
        step.step()
        assert counts() == before
    by_block = scope == "block"
    backward = seen.ranges.index((1, "backward"))
    assert list(seen.ranges[: backward + 1]) == [
        (0, "step"),
        (1, "forward"),
        *(blocks(2, []) if by_block else []),
        (1, "backward"),
    ]
    # Of three blocks the run of the first two is left to eager; the last is compiled as it is.
    recomputed = ["block 0", "block 1"] if by_block and checkpointing == "sqrt" else []
    assert [name for _, name in seen.ranges[backward + 1 :]] == [*recomputed, "optimizer"]


@pytest.mark.parametrize("checkpointing", ["none", *in_full(["every-block"])])
def test_ranges_before_the_first_step_still_break_no_graph(checkpointing, make_case, counts):
    with prepare(make_case(compile="default", checkpointing=checkpointing)) as step:
        with step.ranged():
            for _ in range(2):
                in_step(step)
        n_graphs, n_breaks, n_compilations = counts()
        assert (n_graphs, n_breaks) == (2, 0)  # The block's and the readout's.
        step.step()
        assert counts() == (n_graphs, 0, n_compilations)
