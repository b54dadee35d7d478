"""SwiGLU of a fused projection."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contest import OURS, Contest
from kernels.rows import (
    backward_of,
    built,
    candidates,
    compiled_backward_in_every_mode,
    compiled_in_every_mode,
    random_rows,
    swept,
)
from peakward.kernels.ops.swiglu import triton as kernel
from peakward.kernels.ops.swiglu.api import swiglu

DTYPE = torch.bfloat16
SHAPES = ((32768, 1024), (8192, 8192), (8192, 11008), (4096, 28672), (16384, 5000))
"""Rows and d_ff."""


def theirs(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def contests() -> Iterator[Contest]:
    for n_rows, d_ff in SHAPES:
        x = random_rows(n_rows, 2 * d_ff, dtype=DTYPE)
        gradient = random_rows(n_rows, d_ff, dtype=DTYPE, seed=1)
        shape = {"rows": n_rows, "d_ff": d_ff}
        yield Contest(
            operator="swiglu",
            shape={**shape, "pass": "forward"},
            arms={
                "eager": built(lambda x=x: theirs(x)),
                **compiled_in_every_mode(theirs, x),
                OURS: built(lambda x=x: swiglu(x)),
            },
            n_bytes=x.nbytes + gradient.nbytes,
        )
        yield Contest(
            operator="swiglu",
            shape={**shape, "pass": "backward"},
            arms={
                "eager": backward_of(theirs, (x,), gradient),
                **compiled_backward_in_every_mode(theirs, (x,), gradient),
                OURS: backward_of(swiglu, (x,), gradient),
            },
            n_bytes=2 * x.nbytes + gradient.nbytes,
        )


def sweep() -> Iterator[Contest]:
    """Our kernels at several settings."""
    for n_rows, d_ff in SHAPES:
        x = random_rows(n_rows, 2 * d_ff, dtype=DTYPE)
        gradient = random_rows(n_rows, d_ff, dtype=DTYPE, seed=1)
        options = tuple(each for columns in (512, 1024, 2048, 4096) for each in candidates(columns))
        yield Contest(
            operator="swiglu",
            shape={"rows": n_rows, "d_ff": d_ff, "pass": "forward"},
            arms=swept(
                lambda settings, x=x: kernel.swiglu(x, settings),
                options,
                kernel.settings_for(d_ff, x.element_size()),
            ),
            n_bytes=x.nbytes + gradient.nbytes,
        )
        yield Contest(
            operator="swiglu",
            shape={"rows": n_rows, "d_ff": d_ff, "pass": "backward"},
            arms=swept(
                lambda settings, x=x, g=gradient: kernel.swiglu_backward(g, x, settings),
                options,
                kernel.settings_for(d_ff, x.element_size(), inputs=3),
            ),
            n_bytes=2 * x.nbytes + gradient.nbytes,
        )
