"""Batches of uniform random token ids, resident on the device."""

import torch
from torch import Tensor

from peakward.records.case import Workload

IGNORED = -100
"""A target that does not count in the loss."""


def micro_batches(
    workload: Workload, vocab_size: int, device: str, *, n_steps: int
) -> list[list[tuple[Tensor, Tensor]]]:
    """For each of `n_steps` steps its (ids, targets), both (batch_size, length) of int64.

    Targets are the ids one place on. Varying lengths go round from step to step; under padding
    every batch is `seq_len` long and the targets past its own length are ignored.
    """
    generator = torch.Generator(device).manual_seed(workload.seed)
    lengths = workload.varying_seq_lens or (workload.seq_len,)
    n_steps = max(n_steps, len(lengths)) // len(lengths) * len(lengths)
    steps = []
    for step in range(n_steps):
        length = lengths[step % len(lengths)]
        width = workload.seq_len if workload.padding == "to-seq-len" else length
        shape = (workload.accumulate, workload.batch_size, width + 1)
        tokens = torch.randint(vocab_size, shape, generator=generator, device=device)
        tokens[:, :, length + 1 :] = 0
        ids, targets = tokens[:, :, :-1].contiguous(), tokens[:, :, 1:].contiguous()
        targets[:, :, length:] = IGNORED
        steps.append(list(zip(ids.unbind(0), targets.unbind(0), strict=True)))
    return steps
