"""RMSNorm, alone and of x + residual."""

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
from peakward.kernels.ops.rms_norm import api
from peakward.kernels.ops.rms_norm import triton as kernel
from peakward.kernels.ops.rows.candidates import one_row_or_more
from peakward.kernels.ops.rows.norm.settings import backward_settings_for, forward_settings_for

EPS = 1e-6
DTYPE = torch.bfloat16


def ours(x: Tensor, weight: Tensor) -> Tensor:
    return api.rms_norm(x, x.shape[-1:], weight, EPS)


def theirs(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def ours_added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return api.add_rms_norm(x, residual, weight, EPS)


def theirs_added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, s.shape[-1:], weight, EPS), s


def contests() -> Iterator[Contest]:
    for n_rows, width in BF16_SHAPES:
        x, residual = (random_rows(n_rows, width, dtype=DTYPE, seed=seed) for seed in (0, 1))
        weight = random_rows(width, dtype=DTYPE, seed=2)
        shape = {"rows": n_rows, "width": width}
        for name, mine, peer, inputs, n_moved in (
            ("forward", ours, theirs, (x, weight), 2),
            ("forward added", ours_added, theirs_added, (x, residual, weight), 4),
        ):
            yield Contest(
                operator="rms_norm",
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
            ("backward", ours, theirs, (x, weight), gradients[0], 3),
            ("backward added", ours_added, theirs_added, (x, residual, weight), gradients, 4),
        ):
            yield Contest(
                operator="rms_norm",
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
        weight = random_rows(width, dtype=DTYPE, seed=2)
        yield Contest(
            operator="rms_norm",
            shape={"rows": n_rows, "width": width, "pass": "forward"},
            arms=swept(
                lambda settings, x=x, w=weight: kernel.rms_norm(x, None, w, EPS, settings).y,
                one_row_or_more(width, x.element_size()),
                forward_settings_for(width, x.element_size(), x.device),
            ),
            n_bytes=2 * x.nbytes,
        )
    for n_rows, width in BACKWARD_SHAPES:
        x, gradient = (random_rows(n_rows, width, dtype=DTYPE, seed=seed) for seed in (0, 1))
        weight = random_rows(width, dtype=DTYPE, seed=2)
        r = kernel.rms_norm(x, None, weight, EPS).r
        default = backward_settings_for(width, x.element_size(), x.device)
        yield Contest(
            operator="rms_norm",
            shape={"rows": n_rows, "width": width, "pass": "backward"},
            arms=swept(
                lambda settings, g=gradient, x=x, w=weight, r=r: kernel.rms_norm_backward(
                    g, None, x, w, r, settings
                ),
                backward_candidates(default, x.element_size()),
                default,
            ),
            n_bytes=3 * x.nbytes,
        )
