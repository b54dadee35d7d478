"""Cross-entropy of a bf16 projection onto the vocabulary: time, and the memory that it takes.

    python benchmarks/kernels/linear_cross_entropy.py

prints the peak memory of every arm at every shape, beyond its inputs: a table apart, since a contest
holds several arms' results at once.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from kernels.contest import OURS, Arm, Contest
from peakward.kernels.ops.linear_cross_entropy import chunked, recomputed, triton
from peakward.kernels.ops.linear_cross_entropy.api import linear_cross_entropy

OPERATOR = "linear_cross_entropy"
TOKENS = (2048, 8192, 16_384)
WIDTHS = (768, 2560, 4096)
VOCABULARIES = (10_000, 32_000, 128_256)
ODD = ((3001, 1000, 50_257),)
SHAPES = tuple(product(TOKENS, WIDTHS, VOCABULARIES)) + ODD
SWEPT = ((8192, 768, 32_000), (8192, 2560, 32_000), (8192, 4096, 128_256), (8192, 768, 128_256))
MIB = 1 << 20
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def contests() -> Iterator[Contest]:
    """Ours is `chunked`; `recomputed` stands beside the peers under its name."""
    for shape in SHAPES:
        yield _forward(*shape)
        yield _both(*shape)


def sweep() -> Iterator[Contest]:
    """Tiles of the kernels, and how large a chunk should be."""
    for shape in SWEPT:
        yield _swept_tiles(*shape)
        yield _swept_gradient_tiles(*shape)
        yield _swept_chunks(*shape)


def drawn(n_tokens: int, width: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits with a standard deviation of 2; one target in seventeen is ignored."""
    generator = torch.Generator("cuda").manual_seed(n_tokens + width + vocab)
    like = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    hidden = torch.randn(n_tokens, width, **like)
    weight = torch.randn(vocab, width, **like).mul_(2 / width**0.5)
    targets = torch.randint(0, vocab, (n_tokens,), generator=generator, device="cuda")
    targets[::17] = -100
    return hidden, weight, targets


def losses() -> Mapping[str, Callable[[], Loss]]:
    """Everyone who computes the loss, by name, made when first wanted."""
    everyone: dict[str, Callable[[], Loss]] = {
        OURS: lambda: partial(linear_cross_entropy, implementation="chunked"),
        "torch": lambda: _plain,
        "compiled": lambda: torch.compile(_plain, dynamic=False),
        f"{OURS} recomputed": lambda: partial(linear_cross_entropy, implementation="recomputed"),
    }
    if hasattr(F, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions(allow_retain_graph=True)
        everyone["torch chunked"] = lambda: partial(F.linear_cross_entropy, options=options)
    return everyone


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), targets)


def _shape(name: str, n_tokens: int, width: int, vocab: int) -> dict[str, int | str | bool]:
    return {"pass": name, "vocabulary": vocab, "width": width, "tokens": n_tokens, "dtype": "bf16"}


def _forward(n_tokens: int, width: int, vocab: int) -> Contest:
    inputs = drawn(n_tokens, width, vocab)

    def arm(make: Callable[[], Loss]) -> Callable[[], Arm]:
        return lambda: partial(make(), *inputs)

    return Contest(
        operator=OPERATOR,
        shape=_shape("forward", n_tokens, width, vocab),
        arms={name: arm(make) for name, make in losses().items()},
        flops=2.0 * n_tokens * width * vocab,
    )


def _both(n_tokens: int, width: int, vocab: int) -> Contest:
    hidden, weight, targets = drawn(n_tokens, width, vocab)
    leaves = hidden.requires_grad_(), weight.requires_grad_()

    def arm(make: Callable[[], Loss]) -> Callable[[], Arm]:
        def build() -> Arm:
            loss_of = make()
            return lambda: torch.autograd.grad(loss_of(*leaves, targets), leaves)

        return build

    return Contest(
        operator=OPERATOR,
        shape=_shape("forward and backward", n_tokens, width, vocab),
        arms={name: arm(make) for name, make in losses().items()},
        flops=6.0 * n_tokens * width * vocab,
    )


TILES = tuple(
    triton.Settings(
        *blocks,
        group=group,
        num_warps=warps,
        num_stages=stages,
        described=True,
        resident=resident,
    )
    for blocks, warps, stages in (
        ((128, 256, 64), 8, 3),
        ((128, 256, 64), 8, 4),
        ((256, 128, 64), 8, 3),
        ((256, 128, 64), 8, 4),
        ((128, 128, 64), 4, 3),
        ((128, 128, 64), 4, 4),
        ((128, 128, 64), 8, 3),
        ((128, 128, 128), 8, 3),
        ((64, 256, 64), 4, 3),
    )
    for group in (8, 16)
    for resident in (False, True)
)


def _tile_arms(call: Callable[[triton.Settings], Tensor]) -> dict[str, Callable[[], Arm]]:
    return {
        f"{each.block_tokens}×{each.block_vocab}×{each.block_width} group {each.group} "
        f"{each.num_warps} warps {each.num_stages} stages{' resident' * each.resident}": (
            lambda each=each: partial(call, each)
        )
        for each in TILES
    }


def _swept_tiles(n_tokens: int, width: int, vocab: int) -> Contest:
    inputs = drawn(n_tokens, width, vocab)

    def call(tiles: triton.Settings) -> Tensor:
        return triton.losses(*inputs, ignore_index=-100, settings=tiles)[0]

    return Contest(
        operator=OPERATOR,
        shape=_shape("forward, tiles", n_tokens, width, vocab),
        arms=_tile_arms(call),
        flops=2.0 * n_tokens * width * vocab,
    )


def _swept_gradient_tiles(n_tokens: int, width: int, vocab: int) -> Contest:
    hidden, weight, targets = drawn(n_tokens, width, vocab)
    _, sums = triton.losses(hidden, weight, targets, ignore_index=-100)
    one = torch.ones((), device="cuda")
    out = hidden.new_empty(n_tokens, 8192)

    def call(tiles: triton.Settings) -> Tensor:
        triton.gradient(
            hidden,
            weight,
            targets,
            sums,
            one,
            one,
            out,
            first_column=0,
            ignore_index=-100,
            settings=tiles,
        )
        return out

    return Contest(
        operator=OPERATOR,
        shape=_shape("gradient of 8,192 columns, tiles", n_tokens, width, vocab),
        arms=_tile_arms(call),
        flops=2.0 * n_tokens * width * 8192,
    )


def _swept_chunks(n_tokens: int, width: int, vocab: int) -> Contest:
    hidden, weight, targets = drawn(n_tokens, width, vocab)
    one = torch.ones((), device="cuda")
    options = {"ignore_index": -100, "loss_dtype": torch.float32}

    def by_tokens(n_bytes: int) -> Tensor:
        return chunked.loss_and_gradients(
            hidden, weight, targets, n_bytes=n_bytes, of_hidden=True, of_weight=True, **options
        )[0]

    def by_columns(n_bytes: int) -> Tensor:
        loss, sums, count = recomputed.loss(hidden, weight, targets, **options)
        recomputed.gradients(
            hidden,
            weight,
            targets,
            sums,
            count,
            one,
            ignore_index=-100,
            n_bytes=n_bytes,
            of_hidden=True,
            of_weight=True,
        )
        return loss

    return Contest(
        operator=OPERATOR,
        shape=_shape("forward and backward, chunks", n_tokens, width, vocab),
        arms={
            f"{call.__name__} of {mib} MiB": (lambda call=call, mib=mib: partial(call, mib * MIB))
            for call in (by_tokens, by_columns)
            for mib in (32, 64, 128, 256, 512, 1024, 2048)
        },
        flops=6.0 * n_tokens * width * vocab,
    )


def peak_bytes(loss_of: Loss, n_tokens: int, width: int, vocab: int) -> int:
    """The most that a loss and its gradients hold at once, the gradients and not the inputs counted."""
    hidden, weight, targets = drawn(n_tokens, width, vocab)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    for _ in range(2):  # The first call may tune, and makes cuBLAS's workspace.
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients = torch.autograd.grad(loss_of(*leaves, targets), leaves)
        peak = torch.cuda.max_memory_allocated() - before
        del gradients
    return peak


def main() -> None:
    """The table of peak memory."""
    arms = {name: make() for name, make in losses().items()}
    print("| " + " | ".join(["tokens", "width", "vocabulary", *(f"{each}, MiB" for each in arms)]))
    print("| ---: " * (3 + len(arms)) + "|")
    for shape in SHAPES:
        cells = []
        for loss_of in arms.values():
            try:
                cells.append(f"{peak_bytes(loss_of, *shape) / MIB:,.0f}")
            except torch.OutOfMemoryError:
                cells.append("out of memory")
            torch.cuda.empty_cache()
        print("| " + " | ".join([*map(str, shape), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
