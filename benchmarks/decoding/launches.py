"""The kernels of one layer, each with all that a launch of it takes."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.kernels.ops.decode_step.triton import launch as kernels
from peakward.kernels.ops.decode_step.triton.launch import Held, Matrix, first_of
from peakward.kernels.ops.decode_step.triton.settings import MULTIPROCESSORS, Cut, Split
from peakward.models import presets

POSITIONS = 1024
"""The positions that a cache holds, that of the new token among them."""
FORMATS = ("dense", "int8", "int4:128")
"""The forms of weights, by `Kernel.format_`."""
CACHES: dict[str, torch.dtype | None] = {"bf16": None, "int8": torch.int8}
"""The kinds of cache by the type of their elements; None is the model's own."""
COLD_BYTES = 300 << 20
"""The bytes of distinct weights that a chain goes through: six times the L2."""


class Kernel(NamedTuple):
    """One kernel of a layer with a matrix (n, k), whose weights are in `FORMATS[format_]`."""

    name: str
    n: int
    k: int
    format_: int


def shape_kernels(name: str, format_: int) -> list[Kernel]:
    """The kernels of a model in one format. The head is dense and comes with that format alone."""
    shape = presets.model(name)
    heads = shape.n_heads + 2 * shape.n_kv_heads
    head = [Kernel("head", shape.vocab_size, shape.d_model, 0)] if format_ == 0 else []
    return [
        *head,
        Kernel("qkv", heads * shape.head_dim, shape.d_model, format_),
        Kernel("out", shape.d_model, shape.n_heads * shape.head_dim, format_),
        Kernel("up", 2 * shape.d_ff, shape.d_model, format_),
        Kernel("down", shape.d_model, shape.d_ff, format_),
    ]


def made(*size: int, dtype: torch.dtype, device: str) -> Tensor:
    """A tensor with random contents, or without any on the device `meta`."""
    if device == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, size, dtype=dtype, device=device)
    if dtype == torch.int8:
        return torch.randint(-127, 128, size, dtype=dtype, device=device)
    return torch.randn(size, device=device).mul_(0.02).to(dtype)


def matrix(kernel: Kernel, device: str) -> Matrix:
    """The stored matrix of a kernel with random contents, in int4 in groups of 128."""
    n, k = kernel.n, kernel.k
    if kernel.format_ == 0:
        return Matrix(made(n, k, dtype=torch.bfloat16, device=device), None, n, k)
    if kernel.format_ == 1:
        stored = made(n, k, dtype=torch.int8, device=device)
        return Matrix(stored, made(1, n, dtype=torch.bfloat16, device=device), n, k)
    stored = made(k // 128, n, 16, dtype=torch.int32, device=device)
    return Matrix(stored, made(k // 128, n, dtype=torch.bfloat16, device=device), n, k)


def n_bytes(kernel: Kernel) -> float:
    """The bytes of a kernel's matrix, of int4 with its scales."""
    return kernel.n * kernel.k * (2.0, 1.0, 0.5 + 2 / 128)[kernel.format_]


def copies(kernel: Kernel) -> list[Matrix]:
    """As many matrices of a kernel as have `COLD_BYTES`, but 4 at least and 96 at most."""
    n = max(4, min(96, int(COLD_BYTES / n_bytes(kernel)) + 1))
    return [matrix(kernel, "cuda") for _ in range(n)]


class Around:
    """The tensors that a layer's kernels need beside their matrix, with random contents.

    Args:
        name: the preset model whose sizes they have.
        device: `cuda`, or `meta` for compiling.
        kept: a key of `CACHES`.
    """

    def __init__(self, name: str, device: str, kept: str = "bf16") -> None:
        shape = presets.model(name)
        self.shape = shape
        of = partial(made, dtype=torch.bfloat16, device=device)
        behind = 0 if CACHES[kept] is None else 2 * shape.n_kv_heads
        self.x, self.gain = of(1, shape.d_model), of(shape.d_model)
        self.mixed, self.gated = of(1, shape.n_heads * shape.head_dim), of(1, shape.d_ff)
        self.q = of(1, shape.n_heads + behind, shape.head_dim)
        self.cos, self.sin = (of(POSITIONS, shape.head_dim // 2) for _ in range(2))
        self.position = torch.full((1,), POSITIONS - 1, device=device)
        layers = 1 if device == "meta" else 32
        size = (layers, 1, shape.n_kv_heads, POSITIONS, shape.head_dim)
        stored = CACHES[kept] or torch.bfloat16
        elements = [made(*size, dtype=stored, device=device) for _ in range(2)]
        scales = [
            made(*size[:-1], dtype=torch.float32, device=device) for _ in range(2 if behind else 0)
        ]
        self.held = [Held(*each) for each in zip(*elements, *scales, strict=True)]
        pieces = (shape.n_kv_heads, 64, shape.n_heads // shape.n_kv_heads)
        self.parts = torch.empty(*pieces, shape.head_dim, device=device)
        self.shares = torch.empty(*pieces, 2, device=device)
        self.arrived = torch.zeros(shape.n_kv_heads, dtype=torch.int32, device=device)
        self.out = of(1, shape.n_heads, shape.head_dim)
        self.nothing = first_of(Matrix(self.gain[None], None, 1, shape.d_model), 0)

    def start(self, kernel: Kernel, held: Matrix, then: Matrix, cut: Cut, then_bytes: int) -> None:
        """Launches a kernel by this cut on one matrix.

        Args:
            then: the matrix of which it brings `then_bytes` into the L2. Qkv brings none.
        """
        how = {"cut": cut, "n_programs": MULTIPROCESSORS * cut.programs}
        following = first_of(then, then_bytes, halves=kernel.name == "up")
        if kernel.name == "qkv":
            kernels.rotated(
                self.x, self.gain, 1e-5, held, None, self.cos, self.sin, self.position, self.q,
                self.held[0], **how,
            )  # fmt: skip
        elif kernel.name == "head":
            logits = self.x.new_empty(len(self.x), kernel.n)
            kernels.product(
                self.x, self.gain, 1e-5, held, logits, adds=False, then=following, **how
            )
        elif kernel.name == "up":
            kernels.gated(self.x, self.gain, 1e-5, held, self.gated, then=following, **how)
        else:
            x = self.mixed if kernel.name == "out" else self.gated
            kernels.product(x, None, 1e-5, held, self.x, adds=True, then=following, **how)

    def next_of(
        self, kernel: Kernel, held: list[Matrix], cut: Cut, then_bytes: int, each: int
    ) -> None:
        """Launches number `each` of a chain that goes through these matrices."""
        following = held[(each + 1) % len(held)]
        self.start(kernel, held[each % len(held)], following, cut, then_bytes)

    def attend(self, layer: int, split: Split) -> None:
        """Launches attention on the cache of a layer."""
        kernels.attention(
            self.q, self.held[layer % len(self.held)], self.position, self.parts, self.shares,
            self.arrived, self.out, then=self.nothing, split=split,
        )  # fmt: skip
