"""Batches of text for successive steps, and the time that each step waited for its own."""

from collections.abc import Iterator
from time import perf_counter

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from peakward.lab.data import order
from peakward.lab.data.order import EndlessBatches
from peakward.lab.data.resident import MicroBatches
from peakward.lab.data.tokens import Tokens, prepare
from peakward.records.case import ModelCase, TextData, Workload
from peakward.records.measurement import Feeding

Events = tuple[torch.cuda.Event, torch.cuda.Event]


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
            n_shared_sequences=order.n_shared(
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
