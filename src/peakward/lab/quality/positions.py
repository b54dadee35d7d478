"""A small decoder trained on real text with one kind of positions, then read beyond the length it saw.

All kinds begin from one seed, and see the same sequences in the same order.
"""

from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.data import text
from peakward.lab.data.tokenizer import ByteTokenizer
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.quality.score import Score, Times, Work, by_stretch, chosen
from peakward.records.case import QualityCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Losses, Quality
from peakward.records.model_shape import ModelShape, Positions

SCALED = "sinusoidal, scaled"
"""Losses from before tokens were multiplied by √width beside sinusoids are stored by the kind's own name."""
WAYS: dict[str, Positions] = {
    SCALED if each == "sinusoidal" else each: each for each in get_args(Positions)
}
HEAD_DIM = 32
HELD_OUT = 0.1
"""The last share of the text, of which no token is trained on."""
MOST_ROWS = 64
"""Sequences of the held-out text that are read."""
RATE = 2e-3
"""AdamW's rate after a tenth of the steps; it falls to 0 by a straight line. Of a width of 128 to 384."""


def build(case: QualityCase) -> Work:
    """Makes the model and its data; sizes say what is trained and how far beyond it is read.

    Raises:
        PeakwardError: a width that is no multiple of the head's, or what `text.read` raises.
    """
    names = ("layers", "width", "length", "factor", "batch", "steps")
    layers, width, length, factor, batch, steps = chosen(case, WAYS, *names)
    if width % HEAD_DIM:
        raise PeakwardError(f"expected a width that divides by {HEAD_DIM}, got {width}: round it")
    shape = shape_of(WAYS[case.way], layers, width, length * factor)
    model = build_decoder(
        shape,
        attention=implementation("sdpa"),
        device=case.device,
        dtype=torch.float32,
        seed=case.seed,
    )
    seen, held_out = tokens(case, length * factor)
    n_parameters = sum(each.numel() for each in model.parameters())

    def run(told: Callable[[int], None]) -> Score:
        times = Times(case.device, told)
        train(model, seen, times, batch=batch, length=length, steps=steps, seed=case.seed)
        return Score(times.run, Quality(losses=read(model, held_out, length, factor)))

    return Work(n_parameters, steps, run)


def shape_of(positions: Positions, layers: int, width: int, longest: int) -> ModelShape:
    """A decoder that reads bytes, with heads of `HEAD_DIM`."""
    return ModelShape(
        name="trained",
        vocab_size=ByteTokenizer.vocab_size,
        n_layers=layers,
        d_model=width,
        d_ff=3 * width,
        n_heads=width // HEAD_DIM,
        n_kv_heads=width // HEAD_DIM,
        head_dim=HEAD_DIM,
        max_seq_len=longest,
        positions=positions,
    )


def tokens(case: QualityCase, longest: int, *, n_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """The bytes to train on, (tokens,), and those held out, (rows, longest + 1): `n_rows`, else as many as
    there are up to `MOST_ROWS`, each from its own place in the last tenth of the text.

    Raises:
        PeakwardError: the text is too short, or what `text.read` raises.
    """
    encode = ByteTokenizer().encode
    found = [encode(document) for document in text.read(case.text).documents]
    every = torch.from_numpy(np.concatenate(found)).to(case.device)
    n_seen = int(len(every) * (1 - HELD_OUT))
    most = (len(every) - n_seen) // (longest + 1)
    rows = min(MOST_ROWS, most) if n_rows is None else n_rows
    if not 1 <= rows <= most or n_seen <= longest:
        raise PeakwardError(
            f"expected a text whose last tenth has {max(1, rows):,} sequences of {longest + 1:,} bytes, got "
            f"{len(every):,} bytes in {case.text.name}: name a longer one"
        )
    apart = most // rows * (longest + 1)
    held_out = [every[n_seen + at * apart :][: longest + 1] for at in range(rows)]
    return every[:n_seen], torch.stack(held_out)


def train(
    model: Decoder, seen: Tensor, times: Times, *, batch: int, length: int, steps: int, seed: int
) -> None:
    """Steps of AdamW on sequences that begin anywhere in the text."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=seen.is_cuda)
    rising = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min((at + 1) / rising, (steps - at) / max(1, steps - rising))
    )
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(length + 1)
    starts = torch.randint(len(seen) - length, (steps, batch), generator=generator)

    def step(at: int) -> None:
        ids = seen[(starts[at][:, None] + within).to(seen.device)]
        optimizer.zero_grad(set_to_none=True)
        model(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    for at in range(steps):
        times.step(partial(step, at))


@torch.inference_mode()
def read(model: Decoder, held_out: Tensor, length: int, factor: int) -> tuple[Losses, ...]:
    """The mean loss of each row over the trained length, then over each doubling of it."""
    model.eval()
    losses = []
    for ids in held_out.split(8):
        logits = model(ids[:, :-1]).float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    every = torch.cat(losses)
    ends = [length]
    while ends[-1] < length * factor:
        ends.append(min(2 * ends[-1], length * factor))
    return tuple(
        Losses(where=f"{start:,} to {end:,}", losses=by_stretch(every[:, start:end], end - start))
        for start, end in zip([0, *ends], ends, strict=False)
    )
