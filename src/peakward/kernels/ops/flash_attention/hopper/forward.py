"""The forward pass: out and log-sum-exp, a tile of queries at a time against all keys that it sees."""

import math

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from peakward.kernels.ops.flash_attention.hopper.descriptors import describe
from peakward.kernels.ops.flash_attention.hopper.forward_loads import bring
from peakward.kernels.ops.flash_attention.hopper.forward_rows import attend
from peakward.kernels.ops.flash_attention.hopper.forward_sizes import Sizes
from peakward.kernels.ops.flash_attention.hopper.refusals import require
from peakward.kernels.ops.flash_attention.hopper.ring import barriers, ring, tiles_of
from peakward.kernels.ops.flash_attention.hopper.schedule import (
    L2_BYTES,
    announcements,
    balanced,
    heads_at_once,
)
from peakward.kernels.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    ForwardSettings,
    forward_settings_for,
    n_programs,
)
from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.recording import launch

LOG2E = math.log2(math.e)


@gluon.jit(
    do_not_specialize=[
        "scale",
        "q_len",
        "k_len",
        "n_heads",
        "group",
        "n_q_blocks",
        "n_tiles",
        "heads_at_once",
        "n_all_heads",
    ]
)
def _attention_forward(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    lse,
    counter,
    scale,
    q_len,
    k_len,
    n_heads,
    group,
    n_q_blocks,
    n_tiles,
    heads_at_once,
    n_all_heads,
    CAUSAL: gl.constexpr,
    KEYS: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    WARPGROUPS: gl.constexpr,
    REGISTERS: gl.constexpr,
    Q_STAGES: gl.constexpr,
):
    qs = ring(q, Q_STAGES * WARPGROUPS, 1)
    out_tiles = tiles_of(out, WARPGROUPS)
    ks = ring(k, STAGES, WARPGROUPS)
    vs = ring(v, STAGES, WARPGROUPS)
    my_turn = barriers(WARPGROUPS, 1)
    turns = announcements(WARPGROUPS)
    fence_async_shared()
    sizes = Sizes(CAUSAL, KEYS, ROWS, D, WARPGROUPS)
    brought = (
        q, k, v, qs, ks, vs, turns, counter, q_len, k_len, n_heads, group, n_q_blocks, n_tiles,
        heads_at_once, n_all_heads, sizes,
    )  # fmt: skip
    rows = (out, lse, qs, out_tiles, ks, vs, my_turn, turns, scale, q_len, k_len, n_heads, sizes)
    if WARPGROUPS == 2:
        gl.warp_specialize(
            [(attend, (0,) + rows), (attend, (1,) + rows), (bring, brought)],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [(attend, (0,) + rows), (attend, (1,) + rows), (attend, (2,) + rows), (bring, brought)],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    rule: Rule,
    packing: Packing | None = None,
    settings: ForwardSettings | None = None,
) -> tuple[Tensor, Tensor]:
    """out, laid out as torch.empty_like(q), and lse of (batch, heads, q_len) in fp32.

    Raises:
        ValueError: what these kernels are not made for (`refusals`).
    """
    require(q, slopes, rule, packing)
    batch, n_heads, q_len, d = q.shape
    n_kv_heads, k_len = k.shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty(batch, n_heads, q_len, dtype=torch.float32, device=q.device)
    if q.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(-math.inf)
    chosen = settings or forward_settings_for(d, k_len, causal=rule.causal)
    n_q_blocks = triton.cdiv(q_len, ROWS * chosen.warpgroups)
    n_all_heads = batch * n_heads
    kv_bytes = 2 * k_len * d * k.element_size() * n_kv_heads // n_heads
    most = n_programs(q.device)
    least = balanced(n_q_blocks, most) if rule.causal else 1
    n_tiles = n_q_blocks * n_all_heads
    width = 64 if d == 64 else 128
    launch(
        _attention_forward,
        (min(most, n_tiles),),
        describe("q", q, ROWS, width),
        describe("k", k, KEYS, width),
        describe("v", v, KEYS, width),
        describe("out", out, ROWS, width),
        lse,
        torch.zeros(1, dtype=torch.int32, device=q.device),
        rule.scale * LOG2E,
        q_len,
        k_len,
        n_heads,
        n_heads // n_kv_heads,
        n_q_blocks,
        n_tiles,
        heads_at_once(L2_BYTES // max(1, kv_bytes), n_all_heads, least=least),
        n_all_heads,
        CAUSAL=rule.causal,
        KEYS=KEYS,
        ROWS=ROWS,
        D=d,
        STAGES=chosen.stages,
        WARPGROUPS=chosen.warpgroups,
        REGISTERS=chosen.registers,
        Q_STAGES=chosen.q_stages,
        num_warps=4,
        launch_pdl=True,
    )
    return out, lse
