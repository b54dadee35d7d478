"""Batches of uniform random token ids, resident on the device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from peakward.records.case import Workload

IGNORED = -100
"""A target that does not count in the loss."""


def micro_batches(
    workload: Workload, vocab_size: int, device: str, *, n_steps: int
) -> list[list[tuple[Tensor, Tensor]]]:
    """The batches of each of `n_steps` steps: (ids, targets), both (batch_size, length) of int64.

    The targets are the ids one place on. Varying lengths take turns from step to step. Under padding
    the same tokens stand in batches of `seq_len`, and the targets past their own length are ignored.
    """
    generator = torch.Generator(device).manual_seed(workload.seed)
    lengths = workload.varying_seq_lens or (workload.seq_len,)
    n_steps = max(n_steps, len(lengths)) // len(lengths) * len(lengths)
    steps = []
    for step in range(n_steps):
        length = lengths[step % len(lengths)]
        shape = (workload.accumulate, workload.batch_size, length + 1)
        tokens = torch.randint(vocab_size, shape, generator=generator, device=device)
        padding = workload.seq_len - length if workload.padding == "to-seq-len" else 0
        ids = F.pad(tokens[:, :, :-1], (0, padding))
        targets = F.pad(tokens[:, :, 1:], (0, padding), value=IGNORED)
        steps.append(list(zip(ids.unbind(0), targets.unbind(0), strict=True)))
    return steps


def new_tokens(
    workload: Workload, vocab_size: int, device: str, *, n_steps: int
) -> list[list[tuple[Tensor]]]:
    """The ids of each of `n_steps` steps of `prefill` or `decode`, one batch a step, of int64: prompts
    (batch_size, seq_len), or tokens (batch_size, 1) that follow those in the cache."""
    generator = torch.Generator(device).manual_seed(workload.seed)
    length = 1 if workload.pass_ == "decode" else workload.seq_len
    shape = (n_steps, workload.batch_size, length)
    drawn = torch.randint(vocab_size, shape, generator=generator, device=device)
    return [[(ids,)] for ids in drawn.unbind(0)]
