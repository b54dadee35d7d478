"""A model read through one kind of cache: its loss on real text, and the time of a step.

Each row is a stretch of the text. Its beginning is the prompt; the tokens behind it are then given one at a
time, whatever the model would have chosen, and the loss is that of each next token. The model is a real one,
or a decoder of bytes that is first trained on the text's beginning, from one seed for all caches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.heavy_hitters import HeavyHitterCache
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.pretrained import load
from peakward.lab.inference.quantised import round_int4
from peakward.lab.inference.sequences import (
    ContiguousCache,
    SequenceCache,
    SlidingCache,
)
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.models.torch_settings import deterministic
from peakward.lab.quality import positions
from peakward.lab.quality.score import Score, Times, Work, by_stretch, chosen, stretches
from peakward.records.case import QualityCase
from peakward.records.measurement import Losses, Quality

N_FIRST = 4
"""Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks": four are enough."""
PAGE_SIZE = 16
STRETCH = 32
"""Tokens of a row whose mean loss is one observation."""
READ_GROUP = 64
"""Inputs that share a scale of weights in int4: 64 divides all widths of SmolLM2, 128 does not."""
TYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
TRAINED = {"cpu": (2, 128, 8, 80), "cuda": (4, 256, 32, 600)}
"""Layers, width, sequences of a batch and steps of the model that is trained here."""


def _contiguous(_recent: int, **at: Any) -> SequenceCache:
    return ContiguousCache(**at)


def _paged(_recent: int, *, n_rows: int, capacity: int, **at: Any) -> SequenceCache:
    n_pages = n_rows * -(-capacity // PAGE_SIZE)
    return PagedCache(n_rows=n_rows, n_pages=n_pages, page_size=PAGE_SIZE, longest=capacity, **at)


def _stored(stored: torch.dtype) -> Callable[..., SequenceCache]:
    return lambda _recent, **at: ContiguousCache(stored=stored, **at)


def _ring(*, n_sinks: int = 0, n_global: int = 0) -> Callable[..., SequenceCache]:
    def made(recent: int, *, capacity: int, **at: Any) -> SequenceCache:
        del capacity  # A ring has room for a text of any length.
        n_recent = recent - n_sinks - n_global
        return SlidingCache(n_recent=n_recent, n_sinks=n_sinks, n_global=n_global, **at)

    return made


def _heavy(recent: int, *, capacity: int, **at: Any) -> SequenceCache:
    del capacity
    return HeavyHitterCache(n_heavy=recent // 2, n_recent=recent - recent // 2, **at)


RECIPE = f"int8, int4:{READ_GROUP} weights"
"""The numbers are those of a model that multiplies by int4 weights; its speed is not."""
WAYS: dict[str, Callable[..., SequenceCache]] = {
    "contiguous": _contiguous,
    "paged": _paged,
    "int8": _stored(torch.int8),
    "fp8": _stored(torch.float8_e4m3fn),
    "int4": _stored(torch.uint8),
    "window": _ring(),
    "sinks": _ring(n_sinks=N_FIRST),
    "global": _ring(n_global=N_FIRST),
    "heavy hitters": _heavy,
    RECIPE: _stored(torch.int8),
}


def build(case: QualityCase) -> Work:
    """Makes the model; sizes are the rows, tokens of a prompt and behind it, and tokens that a ring keeps.

    Raises:
        PeakwardError: what `pretrained.load`, `positions.tokens` and `score.stretches` raise.
    """
    rows, prompt, new, recent = chosen(case, WAYS, "rows", "prompt", "new", "recent")
    if case.model is None:
        model, ids = trained(case, rows, prompt + new)
    else:
        found = load(case.model, attention="sdpa", device=case.device, dtype=torch.float32)
        model, ids = found.model, stretches(case, found.words.encode, rows, prompt + new + 1)
    if case.way == RECIPE:
        round_int4(model, group=READ_GROUP)
    model.to(dtype := TYPES[case.device])
    cache = WAYS[case.way](
        recent,
        shape=model.shape,
        n_rows=rows,
        capacity=prompt + new,
        device=case.device,
        dtype=dtype,
    )
    n_parameters = sum(each.numel() for each in model.parameters())
    return Work(n_parameters, new, lambda told: read(model, cache, ids, prompt, told))


def trained(case: QualityCase, rows: int, length: int) -> tuple[Decoder, Tensor]:
    """A decoder trained on sequences of that length, and rows of text that it has not seen.

    Raises:
        PeakwardError: a text that is too short.
    """
    layers, width, batch, steps = TRAINED[case.device]
    model = build_decoder(
        positions.shape_of("rope", layers, width, length),
        attention=implementation("sdpa"),
        device=case.device,
        dtype=torch.float32,
        seed=case.seed,
    )
    seen, held_out = positions.tokens(case, length, n_rows=rows)
    _train_alike(model, seen, batch=batch, length=length, steps=steps, seed=case.seed)
    return model.to(TYPES[case.device]).eval(), held_out


def _train_alike(
    model: Decoder, seen: Tensor, *, batch: int, length: int, steps: int, seed: int
) -> None:
    """Trains to the same bits in each process, so that every way is read with the same model.

    By torch's fused attention for fp32 six trainings of 40 steps ended in four models, though its
    deterministic algorithms were asked for; by its math in one (H200, torch 2.11).
    """
    untold = Times(str(seen.device.type), lambda _n: None)
    with deterministic(True), sdpa_kernel(SDPBackend.MATH):
        positions.train(model, seen, untold, batch=batch, length=length, steps=steps, seed=seed)


@torch.inference_mode()
def read(
    model: nn.Module,
    cache: SequenceCache,
    ids: Tensor,
    prompt: int,
    told: Callable[[int], None],
) -> Score:
    """Reads each row of ids through the cache, one token at a time behind the prompt.

    Every step reads the slots of the last one, as a captured step does, so that what is set up for their
    sizes is set up in the first. torch's attention on Hopper is cuDNN's, planned anew for sizes and strides
    that the process has not had. While steps read what was held alone, those with a plan to make took 50 ms
    to 1.5 s, in the median 60 ms, and the others, but for first ones, 4 to 13 ms (H200).

    Raises:
        PeakwardError: the model has fewer positions than a row has tokens.
    """
    times, losses = Times(str(ids.device.type), told), []
    length = ids.shape[1] - 1
    for row, own in enumerate(ids[:, :prompt].tolist()):
        cache.fits(own, length - prompt)
        cache.prefill(model, row, own)
        cache.reserve(row, length - prompt)
    every = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    for at in range(prompt, length):
        logits = times.step(partial(cache.advance, model, ids[:, at : at + 1], every, length))
        cache.lengths = [at + 1] * len(ids)
        losses.append(F.cross_entropy(logits.float(), ids[:, at + 1], reduction="none"))
    each = Losses(where="behind the prompt", losses=by_stretch(torch.stack(losses, 1), STRETCH))
    return Score(times.run, Quality(losses=(each,), kept_bytes=cache.n_bytes // len(cache.lengths)))
