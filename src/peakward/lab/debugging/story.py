"""A small decoder that trains well on real text, until one channel of a network is zero for a whole batch.

Its activations are rounded to int8 as quantisation-aware training does it, with one scale a channel: the
largest magnitude over the batch over 127. Nothing is added to the scale, so that a channel without any value
but 0 is divided by 0. A ReLU's channel dies where the rate is so large that its bias falls below what any
token brings.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.diagnose import nonfinite
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.data.tokenizer import ByteTokenizer
from peakward.lab.debugging.hunt import Asked, hunt
from peakward.lab.debugging.snapshot import TrainingState
from peakward.lab.models.decoder import Decoder, FeedForward
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.quality.positions import HEAD_DIM, tokens
from peakward.records.case import NumericsCase, QualityCase
from peakward.records.debugging import Hunt
from peakward.records.environment import Environment
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from peakward.records.numerics import Numerics

RATE = 6e-3
"""AdamW's after the warm-up, ten times what a decoder of this width trains well with."""
WARM_UP_STEPS = 300
FIRST_BIAS = 0.5
"""The bias that a network's channels begin with: all of them are at work."""
MENDED = 1e-5
AS_WRITTEN, TENTH, WITH_EPSILON = "as written", "a tenth of the rate", "with an epsilon"
WAYS: dict[str, tuple[float, float]] = {
    AS_WRITTEN: (RATE, 0.0),
    TENTH: (RATE / 10, 0.0),
    WITH_EPSILON: (RATE, MENDED),
}
"""The rate, and what is added to a scale."""
LARGEST_INT8 = 127
SNAPSHOT_EVERY, CHECK_EVERY = 50, 10


class RoundedToInt8(nn.Module):
    """Rounds each channel to int8 and back over its largest magnitude; gradients pass as if it did not."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, seq, channels), in its own type."""
        scale = x.detach().abs().amax((0, 1)) / LARGEST_INT8 + self.eps
        return x + ((x / scale).round() * scale - x).detach()


class RoundedReLU(nn.Module):
    """A ReLU whose result is rounded; counts the zeros of each channel."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.rounded = RoundedToInt8(eps)
        self.zero_shares: list[Tensor] = []
        """One tensor of each call, (channels)."""

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, seq, channels)."""
        x = F.relu(x)
        self.zero_shares.append((x.detach() == 0).float().mean((0, 1)))
        return self.rounded(x)


def look(case: NumericsCase, environment: Environment) -> Numerics:
    """Trains under watch; sizes are layers, width, length, sequences of a batch and steps.

    Raises:
        PeakwardError: another way, other sizes, or no text.
    """
    if case.way not in WAYS or len(case.sizes) != 5 or min(case.sizes) < 1 or case.text is None:
        raise PeakwardError(
            f"expected a way of {', '.join(WAYS)}, five positive sizes (layers, width, length, batch, steps) "
            f"and a text, got {case.way!r}, {case.sizes}, {case.text}"
        )
    layers, width, length, batch, steps = case.sizes
    rate, eps = WAYS[case.way]
    model, networks = _model(case, layers, width, length, eps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min(1.0, (at + 1) / WARM_UP_STEPS)
    )
    losses: list[Tensor] = []

    def step(ids: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        return losses[-1]

    found = hunt(
        Asked(
            name=f"the decoder {case.way}",
            step=step,
            batches=_batches(case, length, batch),
            n_steps=steps,
            snapshot_every=SNAPSHOT_EVERY,
            check_every=CHECK_EVERY,
            folder=None,
            state=TrainingState(model, optimizer, (schedule,)),
            cause=nonfinite.cause,
        ),
        environment,
    )
    seen = torch.stack(losses[: found.n_steps]).tolist()
    return Numerics(
        hunt=found,
        losses=tuple(each if math.isfinite(each) else None for each in seen),
        zero_share=_zero_share(found, networks),
    )


def _model(
    case: NumericsCase, layers: int, width: int, length: int, eps: float
) -> tuple[Decoder, dict[str, RoundedReLU]]:
    """The decoder, and the activations of its networks by their paths."""
    shape = ModelShape(
        name="story",
        vocab_size=ByteTokenizer.vocab_size,
        n_layers=layers,
        d_model=width,
        d_ff=width,
        n_heads=width // HEAD_DIM,
        n_kv_heads=width // HEAD_DIM,
        head_dim=HEAD_DIM,
        max_seq_len=length,
        gated=False,
        activation="relu",
        bias=True,
    )
    model = build_decoder(
        shape,
        attention=implementation("naive"),  # Its backward pass adds in one order on a GPU too.
        device=case.device,
        dtype=torch.float32,
        seed=case.seed,
    )
    networks = {}
    for name, each in model.named_modules():
        if isinstance(each, FeedForward):
            nn.init.constant_(each.up.bias, FIRST_BIAS)
            networks[f"{name}.activation"] = RoundedReLU(eps)
            each.activation = networks[f"{name}.activation"]
    return model, networks


def _batches(case: NumericsCase, length: int, batch: int) -> Iterator[Tensor]:
    """Sequences (batch, length + 1) of int64 that begin anywhere in the text, without end."""
    assert case.text is not None
    read = QualityCase(
        subject="positions", way="rope", sizes=(), text=case.text, device=case.device
    )
    seen, _ = tokens(read, length)
    generator = torch.Generator().manual_seed(case.seed)
    within = torch.arange(length + 1)
    while True:
        starts = torch.randint(len(seen) - length, (batch, 1), generator=generator)
        yield seen[(starts + within).to(seen.device)]


def _zero_share(found: Hunt, networks: dict[str, RoundedReLU]) -> tuple[float, ...]:
    """The share of zeros in the channel at which the fault lies, at each step up to it; empty without one."""
    fault = found.fault
    network = None if fault is None else networks.get(fault.module.rpartition(".")[0])
    if fault is None or fault.channel is None or network is None or fault.channel.axis != 2:
        return ()
    # The run comes first; what follows are its replays.
    every = torch.stack(network.zero_shares[: fault.step + 1])
    return tuple(every[:, fault.channel.index].tolist())
