"""LayerNorm, alone and of x + residual."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contest import OURS, Contest
from kernels.rows import (
    BACKWARD_SHAPES,
    BF16_SHAPES,
    FORWARD_SHAPES,
    backward_candidates,
    backward_of,
    built,
    compiled_backward_in_every_mode,
    compiled_in_every_mode,
    random_rows,
    swept,
)
from peakward.kernels.ops.layer_norm import api
from peakward.kernels.ops.layer_norm import triton as kernel
from peakward.kernels.ops.rows.candidates import one_row_or_more
from peakward.kernels.ops.rows.norm.settings import backward_settings_for, forward_settings_for

EPS = 1e-6
DTYPE = torch.bfloat16


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return api.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def ours_added(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return api.add_layer_norm(x, residual, weight, bias, EPS)


def theirs_added(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.layer_norm(s, s.shape[-1:], weight, bias, EPS), s


def contests() -> Iterator[Contest]:
    for n_rows, width in BF16_SHAPES:
        x, residual = (random_rows(n_rows, width, dtype=DTYPE, seed=seed) for seed in (0, 1))
        weight, bias = (random_rows(width, dtype=DTYPE, seed=seed) for seed in (2, 5))
        shape = {"rows": n_rows, "width": width}
        for name, mine, peer, inputs, n_moved in (
            ("forward", ours, theirs, (x, weight, bias), 2),
            ("forward added", ours_added, theirs_added, (x, residual, weight, bias), 4),
        ):
            yield Contest(
                operator="layer_norm",
                shape={**shape, "pass": name},
                arms={
                    "eager": built(lambda peer=peer, inputs=inputs: peer(*inputs)),
                    **compiled_in_every_mode(peer, *inputs),
                    OURS: built(lambda mine=mine, inputs=inputs: mine(*inputs)),
                },
                n_bytes=n_moved * x.nbytes,
            )
        gradients = tuple(random_rows(n_rows, width, dtype=DTYPE, seed=seed) for seed in (3, 4))
        for name, mine, peer, inputs, gradient, n_moved in (
            ("backward", ours, theirs, (x, weight, bias), gradients[0], 3),
            ("backward added", ours_added, theirs_added, (x, residual, weight, bias), gradients, 4),
        ):
            yield Contest(
                operator="layer_norm",
                shape={**shape, "pass": name},
                arms={
                    "eager": backward_of(peer, inputs, gradient),
                    **compiled_backward_in_every_mode(peer, inputs, gradient),
                    OURS: backward_of(mine, inputs, gradient),
                },
                n_bytes=n_moved * x.nbytes,
            )


def sweep() -> Iterator[Contest]:
    """Our kernels at several settings."""
    for n_rows, width in FORWARD_SHAPES:
        x = random_rows(n_rows, width, dtype=DTYPE)
        weight, bias = (random_rows(width, dtype=DTYPE, seed=seed) for seed in (2, 5))
        yield Contest(
            operator="layer_norm",
            shape={"rows": n_rows, "width": width, "pass": "forward"},
            arms=swept(
                lambda settings, x=x, w=weight, b=bias: (
                    kernel.layer_norm(x, None, w, b, EPS, settings).y
                ),
                one_row_or_more(width, x.element_size()),
                forward_settings_for(width, x.element_size(), x.device, centred=True),
            ),
            n_bytes=2 * x.nbytes,
        )
    for n_rows, width in BACKWARD_SHAPES:
        x, gradient = (random_rows(n_rows, width, dtype=DTYPE, seed=seed) for seed in (0, 1))
        weight, bias = (random_rows(width, dtype=DTYPE, seed=seed) for seed in (2, 5))
        _, _, mean, r = kernel.layer_norm(x, None, weight, bias, EPS)
        default = backward_settings_for(width, x.element_size(), x.device)
        yield Contest(
            operator="layer_norm",
            shape={"rows": n_rows, "width": width, "pass": "backward"},
            arms=swept(
                lambda settings, g=gradient, x=x, w=weight, b=bias, m=mean, r=r: (
                    kernel.layer_norm_backward(g, None, x, w, b, m, r, settings)
                ),
                backward_candidates(default, x.element_size()),
                default,
            ),
            n_bytes=3 * x.nbytes,
        )
