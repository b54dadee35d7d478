"""The attention kernels of Hopper at other settings: which are right, and how fast against cuDNN.

A setting's kernels may wait for ever where a barrier is wrong, so each is checked in a process of its
own before any is timed (`benchmarks/hopper_settings.py`). Tensors are those of `flash_attention.py`.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from kernels.contest import OURS, Arm, Contest
from kernels.flash_attention import OPERATOR, Shape, flops, inputs, sdpa, shape_of
from peakward.lab.ops.flash_attention.hopper import backward, forward
from peakward.lab.ops.flash_attention.hopper.settings import (
    AHEAD,
    AHEAD_QUADS,
    AHEAD_QUADS_DEEP,
    CARRIED,
    CARRIED_DEEP,
    CARRIED_THREE,
    EACH,
    L2_BYTES,
    PAIRS,
    THREE,
    TWO,
    BackwardSettings,
    ForwardSettings,
    forward_settings_for,
)
from peakward.lab.ops.flash_attention.rule import Rule

sys.path.append(str(Path(__file__).parents[2] / "tests" / "kernels"))
from flash_cases import Case, Drawn, Results, draw, exact, torchs
from oracle import error

TWO_PAIRS = TWO._replace(pairs=True)
OF_128: dict[str, ForwardSettings] = {
    "two": TWO,
    "two pairs": TWO_PAIRS,
    "two queries 2": TWO_PAIRS._replace(q_stages=2),
    "carried": CARRIED,
    "carried each": CARRIED._replace(pairs=False),
    "carried 4 MiB": CARRIED._replace(l2_bytes=4 << 20),
}
"""For whatever head dimension; beyond 64 shared memory holds no more stages."""
OF_64: dict[str, ForwardSettings] = {
    "two queries 2 stages 4": TWO_PAIRS._replace(q_stages=2, stages=4),
    "carried stages 4": CARRIED_DEEP,
    "carried stages 4 4 MiB": CARRIED_DEEP._replace(l2_bytes=4 << 20),
    "three": THREE,
    "three pairs": THREE._replace(pairs=True),
    "three carried stages 2": CARRIED_THREE._replace(stages=2),
    "three carried stages 4": CARRIED_THREE,
}
BACKWARD: dict[str, BackwardSettings] = {
    "each": EACH,
    "pairs": PAIRS,
    "ahead": AHEAD,
    "ahead quads": AHEAD_QUADS,
}
BACKWARD_OF_64 = {"ahead quads keys 2": AHEAD_QUADS_DEEP}
HEAD_DIMS = (64, 80, 96, 128)
SEQ_LENS = (512, 1024, 2048, 4096, 16_384)

CHECKED = (
    # As many heads as in the contests follow from head_dim: a backward kernel is compiled for them.
    Case(2, 0, 0, 300, 300),
    Case(2, 0, 0, 300, 300, causal=False),
    Case(2, 4, 2, 1000, 1000),
    Case(1, 4, 2, 333, 700),
    Case(1, 4, 2, 700, 333),
    Case(1, 4, 2, 1, 1),
    # More tiles than programs: each takes several, one into the next.
    Case(8, 4, 2, 1100, 1100),
    Case(2, 4, 2, 700, 333, causal=False),
    Case(8, 4, 2, 1100, 1100, causal=False),
)
IN_FP16 = Case(2, 4, 2, 1000, 1000)
"""Of one head dimension: each is compiled anew, which is what checking takes its time for."""
REPEATS = 8


def forward_settings(head_dim: int) -> dict[str, ForwardSettings]:
    return OF_128 | OF_64 if head_dim == 64 else OF_128


def backward_settings(head_dim: int) -> dict[str, BackwardSettings]:
    return BACKWARD | BACKWARD_OF_64 if head_dim == 64 else BACKWARD


def names() -> Iterator[tuple[str, str]]:
    """(pass, setting) of all that is to be checked: of another order only the launch differs."""
    for name, settings in forward_settings(64).items():
        if settings.l2_bytes == L2_BYTES:
            yield "forward", name
    for name in backward_settings(64):
        yield "backward", name


def check_each(pass_: str, name: str) -> Iterator[tuple[int, str]]:
    """By head dimension what is wrong with a setting, or "" where it is right."""
    of_all = HEAD_DIMS if pass_ == "forward" else (64, 128)
    for head_dim in of_all if name in OF_128 | BACKWARD else (64,):
        try:
            yield head_dim, _wrong(pass_, name, head_dim)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            yield head_dim, f"{type(error).__name__}: {str(error)[:300]}"


class Expected(NamedTuple):
    """What a case asks, and what comes of it in fp64 and by torch in its type."""

    case: Case
    drawn: Drawn
    exact: Results
    exact_lse: Tensor
    torchs: Results


def _wrong(pass_: str, name: str, head_dim: int) -> str:
    """The first case in which it errs beyond twice torch's error, or at all differs from call to call
    where it must not."""
    runs = _forwards if pass_ == "forward" else _backwards
    asked = [(each, torch.bfloat16) for each in CHECKED]
    if head_dim == 64:
        asked.append((IN_FP16, torch.float16))
    for base, dtype in asked:
        heads = base.n_heads or 2048 // head_dim
        case = base._replace(head_dim=head_dim, n_heads=heads, n_kv_heads=base.n_kv_heads or heads)
        drawn = draw(case, dtype)
        said = runs(name, Expected(case, drawn, *exact(drawn, case), torchs(drawn, case)))
        if said:
            return f"{case.q_len} x {case.k_len}, causal {case.causal}, {dtype}:{said}"
    return ""


def _forwards(name: str, expected: Expected) -> str:
    case, drawn, exactly, exact_lse, theirs = expected
    settings = forward_settings(case.head_dim)[name]
    out, lse = forward(*drawn[:3], None, case.rule, settings=settings)
    said = _far("out", out, theirs.out, exactly.out)
    seen = exact_lse > -torch.inf
    if not torch.equal(seen, lse > -torch.inf) or error(lse[seen], exact_lse[seen]) > 1e-5:
        said += " lse is off"
    for _ in range(REPEATS):
        if not torch.equal(forward(*drawn[:3], None, case.rule, settings=settings)[0], out):
            return said + " out differs from call to call"
    return said


def _backwards(name: str, expected: Expected) -> str:
    case, (q, k, v, dout, *_), exactly, _, theirs = expected
    out, lse = forward(q, k, v, None, case.rule)
    settings = backward_settings(case.head_dim)[name]
    arguments = (dout, None, q, k, v, out, lse, None, case.rule)
    gradients = backward(*arguments, settings=settings)
    said = "".join(
        _far(which, mine, getattr(theirs, which), getattr(exactly, which))
        for which, mine in zip(("dq", "dk", "dv"), gradients, strict=True)
    )
    for _ in range(REPEATS):
        again = backward(*arguments, settings=settings)
        if not all(map(torch.equal, again[1:], gradients[1:])):
            return said + " dk or dv differ from call to call"
    return said


def _far(which: str, mine: Tensor, theirs: Tensor, exactly: Tensor) -> str:
    bound = 2 * max(error(theirs, exactly), torch.finfo(mine.dtype).eps / 2)
    errs = error(mine, exactly)
    return "" if errs <= bound else f" {which} errs {errs:.2g}, at most {bound:.2g}"


def contests(wrong: Collection[tuple[str, str, int]]) -> Iterator[Contest]:
    """What decides first. `wrong` are (pass, setting, head dimension) that are not to be called."""
    for head_dim in (64, 128):
        for seq_len in SEQ_LENS:
            yield forward_contest(shape_of(head_dim, seq_len), wrong)
    for seq_len in (1024, 4096, 512, 2048, 16_384):
        for head_dim in (80, 96):
            yield forward_contest(shape_of(head_dim, seq_len), wrong)
    for seq_len in (4096, 16_384, 1024, 2048, 512):
        for head_dim in (64, 128):
            yield backward_contest(shape_of(head_dim, seq_len), wrong)
    for head_dim in (64, 128, 80, 96):
        shape = shape_of(head_dim, 4096, causal=False)
        yield forward_contest(shape, wrong)
        if head_dim in (64, 128):
            yield backward_contest(shape, wrong)


def forward_contest(shape: Shape, wrong: Collection[tuple[str, str, int]]) -> Contest:
    """Against cuDNN; what is called today is `peakward`, where there is any."""
    d = shape.head_dim
    candidates = forward_settings(d)
    arms: dict[str, Callable[[], Arm]] = {"cudnn": partial(_cudnn_forward, shape)}
    if d in (64, 128):
        now = forward_settings_for(d, shape.seq_len, causal=shape.causal)
        arms[OURS] = partial(_forward, shape, now)
    for name, settings in candidates.items():
        checked = next(each for each in candidates if candidates[each] == _in_order(settings))
        if ("forward", checked, d) not in wrong:
            arms[name] = partial(_forward, shape, settings)
    return _contest(shape, "forward", arms)


def _in_order(settings: ForwardSettings) -> ForwardSettings:
    """That of its kernel which has been checked."""
    return settings._replace(l2_bytes=L2_BYTES)


def backward_contest(shape: Shape, wrong: Collection[tuple[str, str, int]]) -> Contest:
    arms: dict[str, Callable[[], Arm]] = {"cudnn": partial(_cudnn_backward, shape)}
    for name, settings in backward_settings(shape.head_dim).items():
        if ("backward", name, shape.head_dim) not in wrong:
            arms[OURS if settings == EACH else name] = partial(_backward, shape, settings)
    return _contest(shape, "backward", arms)


def _contest(shape: Shape, name: str, arms: dict[str, Callable[[], Arm]]) -> Contest:
    return Contest(
        operator=f"{OPERATOR} hopper settings",
        shape={
            "pass": name,
            "d": shape.head_dim,
            "seq": shape.seq_len,
            "mask": "causal" if shape.causal else "none",
        },
        arms=arms,
        flops=flops(shape, name),
    )


def _rule(shape: Shape) -> Rule:
    return Rule(shape.causal, None, shape.head_dim**-0.5)


def _forward(shape: Shape, settings: ForwardSettings) -> Arm:
    q, k, v, _ = inputs(shape)
    return lambda: forward(q, k, v, None, _rule(shape), settings=settings)[0]


def _cudnn_forward(shape: Shape) -> Arm:
    q, k, v, _ = inputs(shape)
    attention = sdpa(shape, SDPBackend.CUDNN_ATTENTION)
    return lambda: attention(q, k, v)


def _backward(shape: Shape, settings: BackwardSettings) -> Arm:
    q, k, v, dout = inputs(shape)
    out, lse = forward(q, k, v, None, _rule(shape))
    return lambda: backward(dout, None, q, k, v, out, lse, None, _rule(shape), settings=settings)


def _cudnn_backward(shape: Shape) -> Arm:
    q, k, v, dout = inputs(shape)
    for each in (q, k, v):
        each.requires_grad_()
    out = sdpa(shape, SDPBackend.CUDNN_ATTENTION)(q, k, v)
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
