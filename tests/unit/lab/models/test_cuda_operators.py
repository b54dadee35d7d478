"""Operators that CUDA dispatches in the place of others."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from peakward.lab.models.module_capture import capture_module
from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import OpGraph

HOPPER, AMPERE = (9, 0), (8, 0)
N_TOKENS, WIDTH, N_EXPERTS = 30, 16, 4


class Expert(nn.Module):
    """Tokens sorted by expert, and one product of each expert's rows."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, N_EXPERTS)
        self.up = nn.Parameter(torch.randn(N_EXPERTS, WIDTH, 32))

    def forward(self, x):
        chosen, order = self.router(x).argmax(-1).sort()
        ends = torch.histc(chosen.float(), N_EXPERTS, 0, N_EXPERTS - 1).cumsum(0).int()
        rows = x[order].to(self.up.dtype)
        return F.grouped_mm(rows, self.up, offs=ends)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.back = Expert(), nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.back(self.expert(x))


def captured(module, dtype, capability=HOPPER, **settings):
    x = torch.randn(N_TOKENS, WIDTH, dtype=dtype)
    return capture_module(
        module.to(dtype),
        (x,),
        pass_="forward_backward",
        loss=lambda y: y.float().sum(),
        compute_capability=capability,
        **settings,
    )


def of_experts(found):
    """(phase, operator): calls and FLOPs of what multiplies outside the router."""
    products = [x for x in found.graph.operators if x.flops and x.module is None]
    totals = OpGraph(operators=tuple(products)).totals(lambda each: (each.phase, each.name))
    return {key: (total.n_calls, total.flops) for key, total in totals.items()}


def waits(graph):
    """How often the ends of groups are copied to the host, by phase."""
    found = Counter()
    for each in graph.operators:
        if each.name == "aten._to_copy" and each.inputs == each.outputs:
            found[each.phase] += each.count
    return found


ALL = 2 * N_TOKENS * WIDTH * 32
"""FLOPs of one product of every token with its expert."""


def test_bf16_on_hopper_is_one_kernel():
    found = captured(Expert(), torch.bfloat16)
    assert of_experts(found) == {
        ("forward", "aten._grouped_mm"): (1, ALL),
        ("backward", "aten._grouped_mm"): (1, ALL),
    }
    assert not waits(found.graph)


@pytest.mark.parametrize(
    ("dtype", "capability"), [(torch.float32, HOPPER), (torch.bfloat16, AMPERE)]
)
def test_elsewhere_it_is_a_loop_for_which_the_host_waits(dtype, capability):
    """A product for each expert, whose rows are dealt evenly though 30 do not divide by 4; x needs no
    gradient, so there is one loop each way."""
    found = captured(Expert(), dtype, capability)
    assert of_experts(found) == {
        ("forward", "aten.mm"): (N_EXPERTS, ALL),
        ("backward", "aten.mm"): (N_EXPERTS, ALL),
    }
    assert waits(found.graph) == {"forward": 1, "backward": 1}


def test_autocast_leaves_it_in_the_parameters_type():
    found = captured(Expert(), torch.float32, autocast=torch.bfloat16)
    products = [x for x in found.graph.operators if (x.name, x.module) == ("aten.mm", None)]
    assert {each.dtype for x in products for each in (*x.inputs, *x.outputs)} == {"float32"}


def test_the_loop_writes_into_one_result():
    """Experts' rows are stretches of one tensor, whose memory exists once in each of two steps."""
    found = capture_module(Expert(), (torch.randn(N_TOKENS, WIDTH),))
    assert [x.n_bytes for x in found.lifetimes].count(N_TOKENS * 32 * 4) == 2


def test_compiled_code_has_every_expert_s_product():
    blocks = nn.Sequential(Block(), Block())
    found = captured(blocks, torch.float32, compiled=list(blocks))
    step = compiled_step(found)
    flops = {
        phase: sum(x.count * x.flops for x in step.graph.operators if x.phase == phase)
        for phase in ("forward", "backward")
    }
    eager = {
        phase: sum(x.count * x.flops for x in found.graph.operators if x.phase == phase)
        for phase in ("forward", "backward")
    }
    assert flops == eager
    assert waits(step.graph) == waits(found.graph) == {"forward": 2, "backward": 3}
    assert step.n_graphs == {"forward": 2, "backward": 2}, "no graph ends where an operator waits"


class AskingBlock(Block):
    """As transformers' mixtures, whose experts go another way where they are compiled and not in bf16."""

    def forward(self, x):
        torch.compiler.is_compiling()
        return super().forward(x)


def test_a_compiled_loop_that_would_be_another_is_refused():
    blocks = nn.Sequential(AskingBlock(), AskingBlock())
    with pytest.raises(PeakwardError, match="multiplied one by one in Python"):
        captured(blocks, torch.float32, compiled=list(blocks))
    assert captured(blocks, torch.float32).compiled is None
    assert captured(blocks, torch.bfloat16, compiled=list(blocks)).compiled is not None


class Rows(nn.Module):
    """Rows of a result in another order, some twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 8)

    def forward(self, x, order):
        return self.linear(x)[order].exp()


def test_the_gradient_of_indexing_is_added_in_place_as_where_no_mode_watches():
    module, x = Rows(), torch.randn(N_TOKENS, WIDTH)
    order = torch.arange(2 * N_TOKENS) // 2
    with torch.profiler.profile() as seen:
        module(x, order).sum().backward()
    ran = {each.key for each in seen.key_averages()}
    assert "aten::_index_put_impl_" in ran
    assert "aten::index_put" not in ran
    found = capture_module(module, (x, order), pass_="forward_backward", loss=lambda y: y.sum())
    (put,) = [each for each in found.graph.operators if "index_put" in each.name]
    assert put.name == "aten._index_put_impl_"
    n_bytes = N_TOKENS * 8 * 4
    assert (put.bytes_read, put.bytes_written) == (
        n_bytes + 2 * N_TOKENS * 8 + 2 * n_bytes,
        n_bytes,
    )


def test_in_compiled_code_it_is_a_kernel_of_inductors():
    module = Rows()
    found = capture_module(
        module,
        (torch.randn(N_TOKENS, WIDTH), torch.arange(2 * N_TOKENS) // 2),
        pass_="forward_backward",
        loss=lambda y: y.sum(),
        compiled=[module],
    )
    fused = [x for x in compiled_step(found).graph.operators if "aten._index_put_impl" in x.fused]
    assert [(x.name, x.phase) for x in fused] == [("inductor.pointwise", "backward")]
