"""Grouped products where CUDA has no kernel for them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from peakward.lab.models.module_capture import capture_module
from peakward.prediction.operators.compiled_module.step import compiled_step
from peakward.records.op_graph import READ_BY_HOST

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
    """(phase, operator): calls and FLOPs in the experts but for the router."""
    return {
        key: (total.n_calls, total.flops)
        for key, total in found.graph.totals(lambda each: (each.phase, each.name)).items()
        if key[1] in ("aten._grouped_mm", READ_BY_HOST)
    } | {
        (phase, "aten.mm"): (
            sum(x.count for x in products),
            sum(x.count * x.flops for x in products),
        )
        for phase in ("forward", "backward")
        if (
            products := [
                x
                for x in found.graph.operators
                if (x.name, x.phase, x.module) == ("aten.mm", phase, None)
            ]
        )
    }


ALL = 2 * N_TOKENS * WIDTH * 32
"""FLOPs of one product of every token with its expert."""


def test_bf16_on_hopper_is_one_kernel():
    assert of_experts(captured(Expert(), torch.bfloat16)) == {
        ("forward", "aten._grouped_mm"): (1, ALL),
        ("backward", "aten._grouped_mm"): (1, ALL),
    }


@pytest.mark.parametrize(
    ("dtype", "capability"), [(torch.float32, HOPPER), (torch.bfloat16, AMPERE)]
)
def test_elsewhere_it_is_a_loop_for_which_the_host_waits(dtype, capability):
    """A product for each expert, whose rows are dealt evenly though 30 do not divide by 4; x needs no
    gradient, so there is one loop each way."""
    assert of_experts(captured(Expert(), dtype, capability)) == {
        ("forward", READ_BY_HOST): (1, 0),
        ("forward", "aten.mm"): (N_EXPERTS, ALL),
        ("backward", READ_BY_HOST): (1, 0),
        ("backward", "aten.mm"): (N_EXPERTS, ALL),
    }


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
    assert sum(x.count for x in step.graph.operators if x.name == READ_BY_HOST) == 2 + 4 - 1
