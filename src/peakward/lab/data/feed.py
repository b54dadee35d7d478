"""Batches for successive steps: of text, with the time that each step waited, or drawn at random."""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from peakward.lab.data.tokens import Tokens, prepare
from peakward.records.case import ModelCase, Sampler, TextData, Workload
from peakward.records.measurement import Feeding

Events = tuple[torch.cuda.Event, torch.cuda.Event]
MicroBatches = Sequence[tuple[Tensor, ...]]
"""The batches of a step: ids, and targets where there is a loss."""


class Feed:
    """Each call returns the next step's batches on the device, read by a loader.

    On a GPU an event is recorded before the wait for a batch and one after it. The time between the
    events is the GPU's idle time, counted from the end of its earlier work.
    """

    def __init__(self, case: ModelCase) -> None:
        work, data = case.workload, case.workload.data
        assert data is not None
        self._case, self._data = case, data
        self._tokens = prepare(data, vocab_size=case.model.vocab_size, seq_len=work.seq_len)
        self._sequences = Sequences(self._tokens, work.seq_len)
        self._loaded: Iterator[list[Tensor]] | None = None
        self._held: MicroBatches = []
        self.rewind()

    def __call__(self) -> MicroBatches:
        """The next step's (ids, targets), one pair a micro-batch."""
        began = perf_counter()
        before = self._event()
        if self._loaded is None:
            self._loaded = iter(self._loader)  # This starts its workers.
        loaded = [next(self._loaded) for _ in range(self._case.workload.accumulate)]
        after = self._event()
        got = perf_counter()
        self._held = [self._on_device(batch) for batch in loaded]
        self._wait_s.append(got - began)
        self._copy_s.append(perf_counter() - got)
        if before is not None and after is not None:
            self._waits.append((before, after))
        return self._held

    def again(self) -> MicroBatches:
        """The batches of the last step; before any step, those of the first."""
        return self._held or self()

    def held(self) -> list[Tensor]:
        """The tensors that are held on the device."""
        return [tensor for batch in self._held for tensor in batch]

    def rewind(self) -> None:
        """Begins again with the same batches in the same order, and forgets the times."""
        work = self._case.workload
        self._loader, self._order = batches(self._data, self._sequences, work)
        self._loaded, self._held = None, []
        self._wait_s: list[float] = []
        self._copy_s: list[float] = []
        self._waits: list[Events] = []

    def use(self, n_steps: int) -> Feeding:
        """The times of the last `n_steps` steps. Waits for the device to reach them."""
        idle_s = None
        if self._waits:
            torch.cuda.synchronize()
            times_ms = [before.elapsed_time(after) for before, after in self._waits[-n_steps:]]
            idle_s = tuple(1e-3 * each for each in times_ms)
        data, n = self._data, len(self._sequences)
        return Feeding(
            wait_s=tuple(self._wait_s[-n_steps:]),
            copy_s=tuple(self._copy_s[-n_steps:]),
            idle_s=idle_s,
            first_wait_s=self._wait_s[0],
            text_bytes=self._tokens.text_bytes,
            text_digest=self._tokens.text_digest,
            n_tokens=self._tokens.n_tokens,
            vocab_size=self._tokens.vocab_size,
            n_sequences=n,
            n_rank_sequences=self._order.n_epoch,
            n_shared_sequences=n_shared(
                n, seed=self._case.workload.seed, n_ranks=data.n_ranks, sampler=data.sampler
            ),
        )

    def _on_device(self, batch: list[Tensor]) -> tuple[Tensor, ...]:
        device, way = self._case.device, self._data.non_blocking
        return tuple(each.to(device, non_blocking=way) for each in batch)

    def _event(self) -> torch.cuda.Event | None:
        if self._case.device == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


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


class Resident:
    """Each call returns the next step's batches; the first ones follow the last."""

    def __init__(self, steps: Sequence[MicroBatches]) -> None:
        self._steps = steps
        self._next = 0

    def __call__(self) -> MicroBatches:
        """The next step's batches."""
        found = self.again()
        self._next += 1
        return found

    def again(self) -> MicroBatches:
        """The next step's batches, without moving on to the step after it."""
        return self._steps[self._next % len(self._steps)]

    def held(self) -> list[Tensor]:
        """The tensors that are held on the device."""
        return [tensor for step in self._steps for batch in step for tensor in batch]

    def rewind(self) -> None:
        """Begins with the first batches again."""
        self._next = 0


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


def earlier_tokens(workload: Workload, vocab_size: int, device: str) -> Tensor:
    """The ids before those of a step of `decode`, (batch_size, seq_len - 1): the same in every step."""
    generator = torch.Generator(device).manual_seed(workload.seed + 1)
    size = (workload.batch_size, workload.seq_len - 1)
    return torch.randint(vocab_size, size, generator=generator, device=device)
