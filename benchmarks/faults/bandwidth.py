"""Work that goes through memory more often than it must."""

import msgspec
import torch
from torch import Tensor, nn

from faults.decoder import SIZES, Parts, decoder, fused_attention, optimizer, tokens, training
from faults.lab import Lab, Step
from faults.records import Fault, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


class NormByFormulas(nn.Module):
    """LayerNorm in six operators."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d_model))
        self.shift = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred * centred).mean(-1, keepdim=True).add(1e-5).sqrt()
        return centred / deviation * self.scale + self.shift


def gelu_by_formulas(x: Tensor) -> Tensor:
    """tanh's approximation, operator by operator."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def gelu_then_dropout(x: Tensor) -> Tensor:
    """The same, and a dropout written out."""
    x = gelu_by_formulas(x)
    return x * (torch.rand_like(x) > 0.1) / 0.9


WRITTEN_OUT = {
    1: Parts(norm=NormByFormulas),
    2: Parts(norm=NormByFormulas, activate=gelu_by_formulas),
    3: Parts(norm=NormByFormulas, activate=gelu_then_dropout),
}


def _formulas(lab: Lab, strength: float) -> Seen:
    sizes = SIZES[lab.device]
    if lab.device == "cpu":  # Narrow: products grow with the square of the width.
        sizes = sizes._replace(d_model=128, n_heads=2, batch_size=16, seq_len=64)

    def build() -> Step:
        parts = (WRITTEN_OUT.get(int(strength), Parts()),) * sizes.n_layers
        return training(decoder(sizes, lab.device, *parts), tokens(sizes, lab.device))

    return lab.traced(build, name=f"formulas-{strength:g}")


def _copies(lab: Lab, n: float) -> Seen:
    sizes = SIZES[lab.device]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for _ in range(int(n)):
            q = q.transpose(-2, -1).contiguous().transpose(-2, -1).contiguous()
        return fused_attention(q, k, v)

    def build() -> Step:
        parts = (Parts(attend=attend),) * sizes.n_layers
        return training(decoder(sizes, lab.device, *parts), tokens(sizes, lab.device))

    return lab.traced(build, name=f"copies-{n:g}")


UPDATES = ({"fused": True}, {"foreach": True}, {"foreach": False})


def _optimizer(lab: Lab, strength: float) -> Seen:
    sizes = SIZES[lab.device]._replace(batch_size=1)
    if lab.device == "cpu":
        sizes = sizes._replace(seq_len=64)

    def build() -> Step:
        made = decoder(sizes, lab.device)
        update = optimizer(made, **UPDATES[int(strength)])
        return training(made, tokens(sizes, lab.device), update)

    return lab.traced(build, name=f"optimizer-{strength:g}")


def _padding(lab: Lab, share: float) -> Seen:
    """Half of the batches are full; the mean length leaves so much padding."""
    size, length = ("small", 1024) if lab.device == "cuda" else ("tiny", 128)
    short = round(length * (1 - 2 * share))
    work = Workload(
        batch_size=4,
        seq_len=length,
        varying_seq_lens=(length, short) if share else (length, length),
        padding="to-seq-len",
    )
    good = Configuration(
        attention="sdpa",
        optimizer="adamw-fused",
        precision="bf16" if lab.device == "cuda" else "fp32",
        compile="default",
    )
    case = ModelCase(model=model(size), workload=work, configuration=good, device=lab.device)
    # What padding costs its lengths say; steps of other lengths are no measure of it.
    return msgspec.structs.replace(lab.case(case), step_s=None)


FAULTS = (
    Fault(
        "BW001",
        "formulas written out",
        "of norm, activation, dropout",
        (1, 2, 3),
        _formulas,
        "any",
    ),
    Fault("BW002", "heads made contiguous", "round trips a block", (2, 4, 8), _copies),
    Fault("BW003", "an unfused optimiser", "(1: foreach, 2: a loop)", (1, 2), _optimizer, "any"),
    # Told by the workload, whatever the device; on a GPU four processes that compile take two minutes.
    Fault("BW004", "padded batches", "of the tokens", (0.15, 0.3, 0.45), _padding, "cpu"),
)
