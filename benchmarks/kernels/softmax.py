"""Softmax over the last dimension."""

from collections.abc import Iterator

import torch

from kernels.contest import OURS, Contest
from kernels.rows import (
    BF16_SHAPES,
    backward_of,
    built,
    compiled_backward_in_every_mode,
    compiled_in_every_mode,
    random_rows,
    swept,
)
from peakward.kernels.ops.rows.layout import RowSettings, power_of_two
from peakward.kernels.ops.softmax.api import softmax
from peakward.kernels.ops.softmax.triton import settings_for
from peakward.kernels.ops.softmax.triton import softmax as launch
from peakward.kernels.ops.softmax.triton import softmax_backward as launch_backward

SHAPES = (
    *((*shape, torch.bfloat16) for shape in BF16_SHAPES),
    (512, 262144, torch.bfloat16),
    (8192, 8192, torch.float32),
    (4096, 50257, torch.bfloat16),
)
SWEPT = (
    (8192, 16384),
    (4096, 32768),
    (4096, 50257),
    (2048, 65536),
    (512, 262144),
)
"""Where the 16 bits of a row are held makes a difference, and rows that begin inside a vector."""


def theirs(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def contests() -> Iterator[Contest]:
    for n_rows, width, dtype in SHAPES:
        x = random_rows(n_rows, width, dtype=dtype)
        shape = {"rows": n_rows, "width": width, "dtype": str(dtype).removeprefix("torch.")}
        yield Contest(
            operator="softmax",
            shape={**shape, "pass": "forward"},
            arms={
                "eager": built(lambda x=x: theirs(x)),
                **compiled_in_every_mode(theirs, x),
                OURS: built(lambda x=x: softmax(x)),
            },
            n_bytes=2 * x.nbytes,
        )
        gradient = random_rows(n_rows, width, dtype=dtype, seed=1)
        yield Contest(
            operator="softmax",
            shape={**shape, "pass": "backward"},
            arms={
                "eager": backward_of(theirs, (x,), gradient),
                **compiled_backward_in_every_mode(theirs, (x,), gradient),
                OURS: backward_of(softmax, (x,), gradient),
            },
            n_bytes=3 * x.nbytes,
        )


def sweep() -> Iterator[Contest]:
    """Our kernels at several settings."""
    for n_rows, width in SWEPT:
        x = random_rows(n_rows, width, dtype=torch.bfloat16)
        y, gradient = theirs(x), random_rows(n_rows, width, dtype=torch.bfloat16, seed=1)
        whole = power_of_two(width)
        pieces = tuple(each for each in (8192, 16384, 32768) if width > 32768)
        options = tuple(
            RowSettings(rows=1, columns=columns, warps=warps)
            for columns in (whole, *pieces)
            for warps in (4, 8, 16, 32)
            if 16 <= columns // (32 * warps) <= 64
        )
        yield Contest(
            operator="softmax",
            shape={"rows": n_rows, "width": width, "pass": "forward"},
            arms=swept(
                lambda settings, x=x: launch(x, x.dtype, settings),
                options,
                settings_for(width, x.element_size()),
            ),
            n_bytes=2 * x.nbytes,
        )
        yield Contest(
            operator="softmax",
            shape={"rows": n_rows, "width": width, "pass": "backward"},
            arms=swept(
                lambda settings, g=gradient, y=y: launch_backward(g, y, y.dtype, settings),
                options,
                settings_for(width, x.element_size(), inputs=2),
            ),
            n_bytes=3 * x.nbytes,
        )
