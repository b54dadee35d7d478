"""Rotary position embedding of queries and keys in place inside a fused projection."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.contest import OURS, Contest
from kernels.rows import MODES, backward_of, built, compiled, random_rows
from peakward.kernels.ops.rope.api import rope_qkv_
from peakward.kernels.ops.rope.triton import settings_for, turn
from peakward.kernels.ops.rows.layout import RowSettings

DTYPE = torch.bfloat16
SHAPES = (
    (8, 4096, 32, 8, 128),
    (4, 8192, 12, 12, 64),
    (2, 4096, 64, 8, 128),
    (7, 3001, 32, 32, 80),
)
"""batch, seq_len, heads, heads of keys and values, head_dim."""


def theirs(qkv: Tensor, cos: Tensor, sin: Tensor, n_heads: int, n_kv_heads: int):
    """As the reference decoder has it: q and k turned into new tensors, v as it lies."""
    batch, seq_len, width = qkv.shape
    head_dim = width // (n_heads + 2 * n_kv_heads)
    packed = qkv.view(batch, seq_len, -1, head_dim).transpose(1, 2)
    q, k, _ = packed.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    return turned(q, cos, sin), turned(k, cos, sin)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def angles(seq_len: int, head_dim: int) -> tuple[Tensor, Tensor]:
    drawn = random_rows(seq_len, head_dim // 2, dtype=torch.float32) * 10
    return drawn.cos().to(DTYPE), drawn.sin().to(DTYPE)


def contests() -> Iterator[Contest]:
    for batch, seq_len, n_heads, n_kv_heads, head_dim in SHAPES:
        n_all = n_heads + 2 * n_kv_heads
        qkv = random_rows(batch, seq_len, n_all * head_dim, dtype=DTYPE)
        cos, sin = angles(seq_len, head_dim)
        shape = {
            "batch": batch,
            "seq_len": seq_len,
            "heads": n_heads,
            "kv_heads": n_kv_heads,
            "head_dim": head_dim,
        }
        heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
        n_moved = 2 * qkv.nbytes * (n_heads + n_kv_heads) // n_all + 2 * cos.nbytes
        yield Contest(
            operator="rope",
            shape={**shape, "pass": "forward"},
            arms={
                "eager": built(lambda a=(qkv, cos, sin), h=heads: theirs(*a, **h)),
                **{
                    f"compile {mode}": compiled(
                        lambda q, c, s, h=heads: theirs(q, c, s, **h), qkv, cos, sin, mode=mode
                    )
                    for mode in MODES
                },
                OURS: _in_place(qkv, cos, sin, n_heads, n_kv_heads),
            },
            n_bytes=n_moved,
        )
        q, k = theirs(qkv, cos, sin, **heads)
        gradients = torch.randn_like(q), torch.randn_like(k)
        whole = torch.zeros(batch, seq_len, n_all, head_dim, device="cuda", dtype=DTYPE)
        whole[:, :, :n_heads] = gradients[0].transpose(1, 2)
        whole[:, :, n_heads:-n_kv_heads] = gradients[1].transpose(1, 2)
        whole = whole.view(batch, seq_len, -1)
        arms = {
            "eager": backward_of(
                lambda q, a=(cos, sin), h=heads: theirs(q, *a, **h), (qkv,), gradients
            )
        }
        for mode in MODES:
            fast = torch.compile(
                lambda q, a=(cos, sin), h=heads: theirs(q, *a, **h),
                mode=mode,
                fullgraph=True,
                dynamic=False,
            )
            arms[f"compile {mode}"] = backward_of(fast, (qkv,), gradients)
        arms[OURS] = backward_of(
            lambda q, a=(cos, sin), h=heads: rope_qkv_(q.clone(), *a, **h), (qkv,), whole
        )
        yield Contest(
            operator="rope",
            shape={**shape, "pass": "backward"},
            arms=arms,
            n_bytes=2 * qkv.nbytes + 2 * cos.nbytes,
        )


def _in_place(qkv: Tensor, cos: Tensor, sin: Tensor, n_heads: int, n_kv_heads: int):
    """A builder of a call that turns its own copy further each time, by as much work each time.

    What the first call gives is checked, and is q and k as the peers give them.
    """

    def build():
        own = qkv.clone()
        packed = own.view(*own.shape[:2], n_heads + 2 * n_kv_heads, -1).transpose(1, 2)

        def call() -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                rope_qkv_(own, cos, sin, n_heads=n_heads, n_kv_heads=n_kv_heads)
            return packed[:, :n_heads], packed[:, n_heads : n_heads + n_kv_heads]

        return call

    return build


def sweep() -> Iterator[Contest]:
    """Our kernel at several settings: each in place on the same projection, whose values do not
    matter."""
    for batch, seq_len, n_heads, n_kv_heads, head_dim in SHAPES:
        n_all = n_heads + 2 * n_kv_heads
        qkv = random_rows(batch, seq_len, n_all, head_dim, dtype=DTYPE).transpose(1, 2)
        cos, sin = angles(seq_len, head_dim)
        default = settings_for(head_dim, qkv.element_size())
        arms = {}
        for each in (8, 16, 32):
            for warps in (1, 2, 4, 8):
                rows = warps * 32 * each // default.columns
                chosen = RowSettings(rows, default.columns, warps)
                if rows and chosen != default:
                    arms[f"r{rows} w{warps}"] = _turned_at(qkv, cos, sin, n_all, chosen)
        arms[OURS] = _turned_at(qkv, cos, sin, n_all, default)
        yield Contest(
            operator="rope",
            shape={"batch": batch, "seq_len": seq_len, "heads": n_all, "head_dim": head_dim},
            arms=arms,
            n_bytes=2 * qkv.nbytes,
        )


def _turned_at(qkv: Tensor, cos: Tensor, sin: Tensor, n_turned: int, settings: RowSettings):
    out = torch.empty_like(qkv)

    def call() -> Tensor:
        turn(qkv, out, cos, sin, n_turned=n_turned, inverse=False, settings=settings)
        return out

    return built(call)
