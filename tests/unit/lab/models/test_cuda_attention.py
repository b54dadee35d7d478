"""A captured module's attention, against the closed form that captures on an H200 hold."""

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import OpGraph
from tiers import rows_in_full

HOPPER, AMPERE = (9, 0), (8, 0)
SHAPES = {
    "plain": {},
    "grouped": {"n_kv_heads": 2},
    "window": {"window": 5},
    "padded heads, grouped": {"head_dim": 12, "n_kv_heads": 2},
    "heads of no fused kernel": {"head_dim": 6},
    "alibi": {"positions": "alibi"},
}


def without_layouts(graph):
    """The closed form knows neither how operands lie nor micro-batches of one."""
    seen = (msgspec.structs.replace(x, scattered=None, causal=True) for x in graph.operators)
    return {each for each in OpGraph.of(seen).operators if each.module is not None}


HELD = [(name, *each) for name in SHAPES for each in (("bf16", HOPPER), ("fp32", HOPPER))]
HELD += [(name, "bf16", AMPERE) for name in ("plain", "padded heads, grouped")]
"""fp32 takes the same kernels on both."""


@pytest.mark.parametrize(
    ("name", "precision", "capability"),
    [
        *HELD,
        *rows_in_full(
            (name, "bf16", AMPERE) for name in SHAPES if (name, "bf16", AMPERE) not in HELD
        ),
        *rows_in_full((name, "fp32", AMPERE) for name in SHAPES),
    ],
)
def test_the_reference_decoder_has_the_closed_forms_operators(name, precision, capability):
    """All of them, forward and backward, with FLOPs and bytes; a mask of 50 keys has to be padded."""
    shape = msgspec.structs.replace(model("tiny"), n_layers=2, **SHAPES[name])
    with torch.device("meta"):
        module = Decoder(shape, implementation("sdpa"))
    module = module.bfloat16() if precision == "bf16" else module
    ids = torch.zeros(2, 50, dtype=torch.long)
    found = capture_module(
        module, (ids, ids), pass_="forward_backward", compute_capability=capability
    )
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=2, seq_len=50, pass_="forward_backward"),
        configuration=Configuration(precision=precision, attention="sdpa"),
        device="cuda",
    )
    closed = op_graph(case, compute_capability=capability)
    assert without_layouts(found.graph) == without_layouts(closed)


class Attention(nn.Module):
    """Attention of queries (2, 4, 16, 8) to keys of `n_heads` heads, with dropout."""

    def __init__(self, n_heads=4, dropout=0.5):
        super().__init__()
        self.to_keys, self.dropout = nn.Linear(8, 8, bias=False), dropout
        self.n_heads = n_heads

    def forward(self, x):
        k = self.to_keys(x[:, : self.n_heads])
        return F.scaled_dot_product_attention(
            x, k, k, dropout_p=self.dropout, is_causal=True, enable_gqa=self.n_heads != 4
        )


def captured(module, dtype=torch.float32, **settings):
    x = torch.empty(2, 4, 16, 8, device="meta", dtype=dtype)
    return capture_module(
        module.to(dtype), (x,), pass_="forward_backward", loss=lambda y: y.sum(), **settings
    )


def names(found):
    return {each.name.removeprefix("aten.") for each in found.graph.operators}


@pytest.mark.parametrize(
    ("dtype", "capability", "kernel"),
    [
        (torch.float32, HOPPER, "efficient"),
        (torch.bfloat16, HOPPER, "cudnn"),
        (torch.bfloat16, AMPERE, "flash"),
    ],
)
def test_a_fused_kernel_drops_weights_itself(dtype, capability, kernel):
    """So that it takes the operators, but for what they drop, and the memory of attention without."""
    dropping, plain = (
        captured(Attention(dropout=p), dtype, compute_capability=capability) for p in (0.5, 0.0)
    )
    name = f"_scaled_dot_product_{kernel}_attention"
    assert {name, f"{name}_backward"} < names(dropping)
    assert "bmm" not in names(dropping)
    operators = dropping.graph.operators
    assert {each.name for each in operators if each.drops} == {
        f"aten.{name}",
        f"aten.{name}_backward",
    }
    without = OpGraph.of(msgspec.structs.replace(each, drops=False) for each in operators)
    assert (set(without.operators), dropping.lifetimes) == (
        set(plain.graph.operators),
        plain.lifetimes,
    )


def test_fp32_with_shared_heads_is_written_out_and_keeps_a_mask_of_what_it_dropped():
    found = captured(Attention(n_heads=2))
    assert {"bmm", "_safe_softmax", "native_dropout", "native_dropout_backward"} < names(found)
    (dropped,) = [x for x in found.graph.operators if x.name == "aten.native_dropout"]
    assert [(each.shape, each.dtype) for each in dropped.outputs] == [
        ((2, 4, 16, 16), "float32"),
        ((2, 4, 16, 16), "bool"),
    ]


def test_kernels_that_the_caller_leaves_out_are_not_taken():
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert "_scaled_dot_product_flash_attention" in names(captured(Attention(), torch.bfloat16))
        assert "bmm" in names(captured(Attention()))


def test_under_autocast_it_computes_in_the_narrow_type():
    found = captured(Attention(), autocast=torch.bfloat16)
    (attention,) = [x for x in found.graph.operators if x.name.endswith("cudnn_attention")]
    assert {each.dtype for each in attention.inputs} == {"bfloat16"}


def test_dropout_is_one_operator_that_keeps_a_mask_of_bool():
    found = captured(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)))
    assert {"native_dropout", "native_dropout_backward"} < names(found)
    assert not {"bernoulli_", "div_"} & names(found)


@pytest.mark.parametrize("module", [nn.Dropout(0.1).eval(), nn.Dropout(0.0)])
def test_dropout_that_drops_nothing_is_no_operator(module):
    assert "native_dropout" not in names(captured(nn.Sequential(nn.Linear(8, 8), module)))


def test_what_is_recomputed_is_as_on_cuda_too():
    class Recomputed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    found = captured(Recomputed(nn.Linear(8, 8), nn.RMSNorm(8), nn.Dropout(0.1), Attention()))
    counts = found.graph.totals(lambda each: each.name)
    assert counts["aten._fused_rms_norm"].n_calls == counts["aten.native_dropout"].n_calls == 2
    assert counts["aten._scaled_dot_product_efficient_attention"].n_calls == 2


@pytest.mark.parametrize(("enable_gqa", "n_kernels"), [(False, 0), (True, 2)])
def test_heads_that_are_broadcast_are_written_out(enable_gqa, n_kernels):
    """torch's fused kernels take fewer heads of keys where they are told alone (Falcon does not tell)."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 8)

        def forward(self, x):
            q = self.q(x).view(2, 16, 4, 8).transpose(1, 2)
            k = self.kv(x).view(2, 16, 1, 8).transpose(1, 2)
            return F.scaled_dot_product_attention(
                q, k, k, is_causal=True, enable_gqa=enable_gqa
            ).sum()

    module = Shared().bfloat16().to("meta")
    x = torch.zeros(2, 16, 32, dtype=torch.bfloat16, device="meta")
    found = capture_module(module, (x,), pass_="forward_backward", compute_capability=HOPPER)
    names = [each.name for each in found.graph.operators]
    assert sum("attention" in each for each in names) == n_kernels
    assert any("softmax" in each for each in names) is not enable_gqa


@pytest.mark.parametrize(("capability", "kernel"), [(HOPPER, "cudnn"), (AMPERE, "efficient")])
def test_values_may_be_narrower_than_keys(capability, kernel):
    """As in latent attention. Flash takes no such values, so the GPU that prefers flash runs another."""

    class Latent(nn.Module):
        def __init__(self):
            super().__init__()
            self.to_values = nn.Linear(8, 16, bias=False)

        def forward(self, x):
            k = torch.cat([x, x, x], -1)
            return F.scaled_dot_product_attention(k, k, self.to_values(x), is_causal=True)

    found = captured(Latent(), torch.bfloat16, compute_capability=capability)
    name = f"aten._scaled_dot_product_{kernel}_attention"
    (forward,) = [each for each in found.graph.operators if each.name == name]
    assert forward.outputs[0].shape == (2, 4, 16, 16)
    assert forward.flops == 2 * 2 * 4 * 16 * 16 * (24 + 16)
