"""A torch DataLoader of packed sequences."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from peakward.lab.data.order import EndlessBatches
from peakward.lab.data.tokens import Tokens
from peakward.records.case import Workload
from peakward.records.data import TextData


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Cuts a stream into sequences of `seq_len` that do not overlap: (ids, targets), (seq_len,) of
    int64 each; the targets are the ids one place on. A remainder shorter than a sequence is not read.

    A sequence may hold the end of one document and the beginning of the next, and attention crosses
    from one to the other.
    """

    def __init__(self, tokens: Tokens, seq_len: int) -> None:
        self._stream, self._seq_len = tokens.stream, seq_len
        self._n = tokens.n_tokens // (seq_len + 1)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        found = torch.from_numpy(self._stream.read(place * (self._seq_len + 1), self._seq_len + 1))
        return found[:-1], found[1:]


def batches(
    data: TextData, sequences: Sequences, workload: Workload, *, rank: int = 0
) -> tuple[DataLoader[tuple[Tensor, Tensor]], EndlessBatches]:
    """An endless loader of (ids, targets), each (batch_size, seq_len) of int64, and its order.

    The numbers of workers, tokenising on the fly, pinning and copies change neither the batches nor
    their order.
    """
    order = EndlessBatches(
        len(sequences),
        workload.batch_size,
        seed=workload.seed,
        rank=rank,
        n_ranks=data.n_ranks,
        sampler=data.sampler,
    )
    loader = DataLoader(
        sequences,
        batch_sampler=order,
        num_workers=data.n_workers,
        pin_memory=data.pin_memory,
        # Each worker's generators, also those of NumPy and Python, are seeded from a draw of this one.
        generator=torch.Generator().manual_seed(workload.seed),
    )
    return loader, order
