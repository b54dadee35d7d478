"""Trains a small decoder on real text, and reads its loss on text that it has not seen."""

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from loss_curves.arms import Arm, begin, model_for
from peakward.lab.data import text
from peakward.lab.data.tokenizer import ByteTokenizer
from peakward.lab.levers.precision import autocast
from peakward.lab.models.decoder import Decoder
from peakward.levers.precision import fp32_matmuls
from peakward.models.presets import model as preset
from peakward.records.case import Source
from peakward.records.model_shape import ModelShape

HELD_OUT = 0.1
MOST_ROWS = 64
N_READINGS = 8
"""Points of a loss curve."""
MOST_GRAPHS = 64
"""Compiled forms of a block: of each precision, with and without gradients. Beyond them torch would go on
without compiling, and say so in a warning alone."""
Run = dict[str, Any]
"""A seed, its curve and the seconds that it took."""


def tokens(name: str, length: int, device: str) -> tuple[Tensor, Tensor]:
    """The bytes to train on, and the sequences (rows, length + 1) of the last tenth of the text."""
    encode = ByteTokenizer().encode
    documents = text.read(Source(name)).documents
    every = torch.from_numpy(np.concatenate([encode(each) for each in documents])).to(device)
    n_seen = int(len(every) * (1 - HELD_OUT))
    most = (len(every) - n_seen) // (length + 1)
    rows = min(MOST_ROWS, most)
    apart = most // rows * (length + 1)
    held_out = [every[n_seen + at * apart :][: length + 1] for at in range(rows)]
    return every[:n_seen], torch.stack(held_out)


@torch.inference_mode()
def read(model: Decoder, held_out: Tensor) -> float:
    """The mean loss of the held-out bytes."""
    losses = []
    for ids in held_out.split(16):
        logits = model(ids[:, :-1]).float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def trained(
    model: Decoder, arm: Arm, data: tuple[Tensor, Tensor], given: argparse.Namespace, *, seed: int
) -> Run:
    """The held-out loss at some steps of one run, and the training loss between them. A curve ends where the
    held-out loss is not finite, which is None."""
    seen, held_out = data
    begin(model, seed)
    optimizer = arm.make(given.device)(model.parameters(), lr=given.lr, seed=seed)
    scaler = arm.scaler(given.device)
    rising = max(1, given.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda at: min((at + 1) / rising, (given.steps - at) / max(1, given.steps - rising)),
    )
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(given.length + 1)
    starts = torch.randint(
        len(seen) - given.length, (given.steps, given.batch), generator=generator
    )
    every = math.ceil(given.steps / N_READINGS)
    curve: list[dict[str, Any]] = []
    since: list[Tensor] = []
    began = time.perf_counter()
    for at in range(given.steps):
        ids = seen[(starts[at][:, None] + within).to(seen.device)]
        optimizer.zero_grad(set_to_none=True)
        with autocast(arm.computes_in, given.device):
            loss = model(ids[:, :-1], ids[:, 1:])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        since.append(loss.detach())
        if (at + 1) % every == 0 or at + 1 == given.steps:
            with autocast(arm.computes_in, given.device):
                held = read(model, held_out)
            mean = float(torch.stack(since).mean())
            curve.append({"step": at + 1, "train": _finite(mean), "held_out": _finite(held)})
            since.clear()
            if curve[-1]["held_out"] is None:
                break
    return {"seed": seed, "curve": curve, "wall_s": time.perf_counter() - began}


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def shape_of(given: argparse.Namespace) -> ModelShape:
    """The decoder that is trained: a preset with bytes as vocabulary, or on a CPU a tiny one."""
    if given.device == "cuda":
        return msgspec.structs.replace(
            preset(given.model), vocab_size=ByteTokenizer.vocab_size, max_seq_len=given.length
        )
    return ModelShape(
        name="tiny",
        vocab_size=ByteTokenizer.vocab_size,
        n_layers=2,
        d_model=64,
        d_ff=192,
        n_heads=2,
        n_kv_heads=2,
        head_dim=32,
        max_seq_len=given.length,
    )


class Trainer:
    """The models of all precisions, and the text."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._shape = given, shape_of(given)
        self._data = tokens(given.text, given.length, given.device)
        self._models: dict[str, Decoder] = {}

    def setting(self) -> dict[str, Any]:
        """All that curves must share to be compared."""
        given = self._given
        return {
            "model": self._shape.name,
            "text": given.text,
            "n_bytes_of_text": len(self._data[0]),
            "steps": given.steps,
            "batch": given.batch,
            "length": given.length,
            "lr": given.lr,
        }

    def runs(self, known: Mapping[str, list[Run]]) -> Iterator[tuple[Arm, Run]]:
        """The runs that are not known yet, seed by seed, so that what is cut off can be compared."""
        for seed in range(self._given.seeds):
            for arm in self._given.arms:
                if all(each["seed"] != seed for each in known.get(arm.name, ())):
                    yield arm, self._run(arm, seed)

    def _run(self, arm: Arm, seed: int) -> Run:
        with fp32_matmuls(arm.computes_in):
            return trained(self._model(arm), arm, self._data, self._given, seed=seed)

    def _model(self, arm: Arm) -> Decoder:
        if arm.computes_in not in self._models:
            model = model_for(arm.computes_in, self._shape, self._given.device)
            if self._given.device == "cuda":
                torch._dynamo.config.recompile_limit = MOST_GRAPHS
                torch._dynamo.config.fail_on_recompile_limit_hit = True
                for block in model.blocks:
                    block.compile(dynamic=False)
            self._models[arm.computes_in] = model
        return self._models[arm.computes_in]
