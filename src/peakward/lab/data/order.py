"""The order in which each rank reads sequences. Imports no torch."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from peakward.records.case import Sampler


def epoch_order(
    n_sequences: int, *, seed: int, epoch: int, rank: int, n_ranks: int, sampler: Sampler
) -> NDArray[np.int64]:
    """The sequences that a rank reads in an epoch: a permutation by seed and epoch alone.

    `per-rank` deals the permutation out in turn, the same number to each rank. A remainder of fewer
    than `n_ranks` is read by no rank in that epoch. If a text has fewer sequences than ranks, every
    rank reads all of it.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_sequences)
    if sampler == "same" or n_sequences < n_ranks:
        return order
    return order[rank : n_sequences - n_sequences % n_ranks : n_ranks]


def n_shared(n_sequences: int, *, seed: int, n_ranks: int, sampler: Sampler) -> int:
    """The number of rank 0's sequences in the first epoch that another rank reads in it too."""
    orders = [
        epoch_order(n_sequences, seed=seed, epoch=0, rank=rank, n_ranks=n_ranks, sampler=sampler)
        for rank in range(n_ranks)
    ]
    others = np.concatenate(orders[1:]) if n_ranks > 1 else np.empty(0, dtype=np.int64)
    return int(np.isin(orders[0], others).sum())


class EndlessBatches:
    """Batches of sequences, epoch after epoch without an end: a batch may span two epochs.

    A loader that started again in every epoch would lose the batches that its workers have made ahead.
    """

    def __init__(
        self,
        n_sequences: int,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        n_ranks: int = 1,
        sampler: Sampler = "per-rank",
    ) -> None:
        self._n_sequences, self._batch_size = n_sequences, batch_size
        self._seed, self._rank, self._n_ranks, self._sampler = seed, rank, n_ranks, sampler

    @property
    def n_epoch(self) -> int:
        """The number of sequences that this rank reads in an epoch."""
        return len(self._order(0))

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        epoch = 0
        while True:
            for place in self._order(epoch).tolist():
                batch.append(place)
                if len(batch) == self._batch_size:
                    yield batch
                    batch = []
            epoch += 1

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return epoch_order(
            self._n_sequences,
            seed=self._seed,
            epoch=epoch,
            rank=self._rank,
            n_ranks=self._n_ranks,
            sampler=self._sampler,
        )
