"""Cross-entropy of bf16 logits, forward and backward apart."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contest import OURS, Arm, Contest
from peakward.kernels.ops.cross_entropy import api, triton

OPERATOR = "cross_entropy"
TOKENS = (2048, 8192, 16_384)
VOCABULARIES = (10_000, 32_000, 50_257, 128_256, 151_936)
SWEPT = ((8192, 10_000), (8192, 32_000), (8192, 50_257), (4096, 128_256))
CUTS = tuple(
    triton.Settings(block=num_warps * per_warp, num_warps=num_warps)
    for num_warps in (4, 8, 16, 32)
    for per_warp in (512, 1024)
)
OPTIONS = {"ignore_index": -100, "label_smoothing": 0.0}


def contests() -> Iterator[Contest]:
    for vocab in VOCABULARIES:
        for n_tokens in TOKENS:
            if 4 * n_tokens * vocab < 12e9:
                yield _forward(n_tokens, vocab)
                yield _backward(n_tokens, vocab)


def sweep() -> Iterator[Contest]:
    """The cuts of a row, of each of the three kernels."""
    for n_tokens, vocab in SWEPT:
        yield _swept_forward(n_tokens, vocab)
        yield _swept_backward(n_tokens, vocab)
        yield _swept_both(n_tokens, vocab)


def drawn(n_tokens: int, vocab: int) -> tuple[Tensor, Tensor]:
    """Logits and targets, one in seventeen of them ignored."""
    generator = torch.Generator("cuda").manual_seed(n_tokens + vocab)
    logits = torch.empty(n_tokens, vocab, dtype=torch.bfloat16, device="cuda")
    logits.normal_(0, 2, generator=generator)
    targets = torch.randint(0, vocab, (n_tokens,), generator=generator, device="cuda")
    targets[::17] = -100
    return logits, targets


def _forward(n_tokens: int, vocab: int) -> Contest:
    logits, targets = drawn(n_tokens, vocab)

    def arm(call: Callable[..., Tensor]) -> Callable[[], Arm]:
        return lambda: lambda: call(logits, targets)

    return Contest(
        operator=OPERATOR,
        shape={"pass": "forward", "vocabulary": vocab, "tokens": n_tokens, "dtype": "bf16"},
        arms={
            OURS: arm(api.cross_entropy),
            "torch": arm(F.cross_entropy),
            "compiled": arm(torch.compile(_plain, dynamic=False)),
            "max-autotune": arm(
                torch.compile(_plain, dynamic=False, mode="max-autotune-no-cudagraphs")
            ),
        },
        n_bytes=_bytes(logits),
        reads=True,
    )


def _backward(n_tokens: int, vocab: int) -> Contest:
    logits, targets = drawn(n_tokens, vocab)
    leaf = logits.requires_grad_()

    def arm(call: Callable[..., Tensor]) -> Callable[[], Arm]:
        def build() -> Arm:
            loss = call(leaf, targets)
            return lambda: torch.autograd.grad(loss, leaf, retain_graph=True)[0]

        return build

    return Contest(
        operator=OPERATOR,
        shape={"pass": "backward", "vocabulary": vocab, "tokens": n_tokens, "dtype": "bf16"},
        arms={
            OURS: arm(api.cross_entropy),
            "torch": arm(F.cross_entropy),
            "compiled": arm(torch.compile(_plain, dynamic=False)),
        },
        n_bytes=2 * _bytes(logits),
    )


def _plain(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def _bytes(logits: Tensor) -> int:
    return logits.numel() * logits.element_size()


def _swept(
    kernel: str, logits: Tensor, passes: int, arm: Callable[[triton.Settings], Arm]
) -> Contest:
    n_tokens, vocab = logits.shape
    return Contest(
        operator=OPERATOR,
        shape={
            "pass": f"{kernel}, swept",
            "vocabulary": vocab,
            "tokens": n_tokens,
            "dtype": "bf16",
        },
        arms={f"{cut.block} by {cut.num_warps} warps": (lambda cut=cut: arm(cut)) for cut in CUTS},
        n_bytes=passes * _bytes(logits),
    )


def _swept_forward(n_tokens: int, vocab: int) -> Contest:
    logits, targets = drawn(n_tokens, vocab)

    def arm(cut: triton.Settings) -> Arm:
        return lambda: triton.forward(
            logits, targets, loss_dtype=torch.float32, settings=cut, **OPTIONS
        )

    return _swept("forward", logits, 1, arm)


def _swept_backward(n_tokens: int, vocab: int) -> Contest:
    logits, targets = drawn(n_tokens, vocab)
    out, one = torch.empty_like(logits), torch.ones((), device="cuda")
    _, _, sums, count = triton.forward(logits, targets, loss_dtype=torch.float32, **OPTIONS)

    def arm(cut: triton.Settings) -> Arm:
        def call() -> Tensor:
            triton.gradient(
                logits, targets, sums, count, one, out, grad_lse=None, settings=cut, **OPTIONS
            )
            return out

        return call

    return _swept("backward", logits, 2, arm)


def _swept_both(n_tokens: int, vocab: int) -> Contest:
    """Over its own results, call after call: the time is the same, and the losses are not looked at."""
    logits, targets = drawn(n_tokens, vocab)
    losses, lse = torch.empty(2, n_tokens, device="cuda").unbind()
    done = torch.zeros((), device="cuda")

    def arm(cut: triton.Settings) -> Arm:
        def call() -> Tensor:
            triton.losses_and_gradient(logits, targets, losses, lse, settings=cut, **OPTIONS)
            return done

        return call

    return _swept("both, in place", logits, 2, arm)
