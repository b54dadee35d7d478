"""Batches of text for steps, and the times they took."""

from itertools import chain, islice

import pytest
import torch

from peakward.lab.data import feed as feed_module
from peakward.lab.data import text
from peakward.lab.data.feed import (
    IGNORED,
    EndlessBatches,
    Feed,
    Resident,
    epoch_order,
    micro_batches,
    n_shared,
)
from peakward.records.case import ModelCase, TextData, Workload
from peakward.studies.scope import micro


@pytest.fixture
def make(folder):
    def make_(accumulate=1, **changes):
        data = TextData(text=text.source(str(folder)), **changes)
        work = Workload(batch_size=2, seq_len=16, accumulate=accumulate, data=data)
        return Feed(ModelCase(model=micro(), workload=work, device="cpu"))

    return make_


def test_a_step_has_a_batch_for_each_micro_batch(make):
    feed, apart = make(accumulate=3), make()
    batches = feed()
    assert len(batches) == 3
    for (ids, targets), wanted in zip(batches, [apart()[0] for _ in range(3)], strict=True):
        assert torch.equal(ids, wanted[0])
        assert torch.equal(targets, wanted[1])
    assert len(feed.held()) == 6


def test_rewound_it_begins_again(make):
    feed = make()
    first = [each[0] for each in feed()]
    feed()
    feed.rewind()
    assert feed.held() == []
    assert torch.equal(first[0], feed.again()[0][0])
    assert feed.again() is feed.again()


def test_the_times_of_the_last_steps_are_told_apart_from_the_first(make, monkeypatch):
    feed = make()
    clock = iter([0.0, 7.0, 7.5, 10.0, 11.0, 11.25, 20.0, 22.0, 22.125])
    monkeypatch.setattr(feed_module, "perf_counter", lambda: next(clock))
    for _ in range(3):
        feed()
    use = feed.use(2)
    assert use.first_wait_s == 7.0
    assert use.wait_s == (1.0, 2.0)
    assert use.copy_s == (0.25, 0.125)
    assert use.idle_s is None


def test_what_was_read(make, folder):
    feed = make(n_ranks=4)
    feed()
    use = feed.use(1)
    found = text.read(text.source(str(folder)))
    assert (use.text_bytes, use.text_digest) == (found.n_bytes, found.digest)
    assert use.n_tokens == found.n_bytes + 3
    assert (use.vocab_size, use.n_sequences) == (257, use.n_tokens // 17)
    assert (use.n_rank_sequences, use.n_shared_sequences) == (use.n_sequences // 4, 0)


def order(rank=0, *, epoch=0, n_ranks=1, sampler="per-rank", n=23, seed=5):
    return epoch_order(
        n, seed=seed, epoch=epoch, rank=rank, n_ranks=n_ranks, sampler=sampler
    ).tolist()


def test_an_epoch_is_a_permutation_of_its_own():
    assert sorted(order()) == list(range(23))
    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=6)


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 23])
def test_ranks_read_as_many_and_share_none(n_ranks):
    read = [order(rank, n_ranks=n_ranks) for rank in range(n_ranks)]
    assert {len(each) for each in read} == {23 // n_ranks}
    together = list(chain.from_iterable(read))
    assert len(set(together)) == len(together) == 23 // n_ranks * n_ranks
    assert n_shared(23, seed=5, n_ranks=n_ranks, sampler="per-rank") == 0


def test_without_a_sampler_each_rank_reads_all():
    assert order(1, n_ranks=4, sampler="same") == order(0, n_ranks=4, sampler="same")
    assert n_shared(23, seed=5, n_ranks=4, sampler="same") == 23


def test_fewer_sequences_than_ranks_are_read_by_each():
    assert sorted(order(3, n=2, n_ranks=4)) == [0, 1]
    assert n_shared(2, seed=5, n_ranks=4, sampler="per-rank") == 2


def test_one_rank_shares_nothing():
    assert n_shared(23, seed=5, n_ranks=1, sampler="same") == 0


def test_batches_go_on_from_epoch_to_epoch():
    batches = EndlessBatches(23, 4, seed=5)
    read = list(chain.from_iterable(islice(batches, 12)))
    assert read == (order() + order(epoch=1) + order(epoch=2))[:48]
    assert batches.n_epoch == 23
    assert EndlessBatches(23, 4, seed=5, rank=1, n_ranks=4).n_epoch == 5


def test_a_batch_may_be_larger_than_the_text():
    assert len(next(iter(EndlessBatches(2, 5, seed=0)))) == 5


def test_batches_come_in_turn():
    steps = [[(torch.tensor(i), torch.tensor(-i))] for i in range(3)]
    resident = Resident(steps)
    assert resident.again() is steps[0]
    assert [resident() is steps[i % 3] for i in range(5)] == [True] * 5
    assert resident.again() is steps[2]
    resident.rewind()
    assert resident() is steps[0]
    assert [each.item() for each in resident.held()] == [0, 0, 1, -1, 2, -2]


def flat(workload, n_steps=4):
    steps = micro_batches(workload, 61, "cpu", n_steps=n_steps)
    return [batch for step in steps for batch in step]


def test_targets_are_the_ids_one_place_on():
    for ids, targets in flat(Workload(batch_size=3, seq_len=16, accumulate=2)):
        assert ids.shape == targets.shape == (3, 16)
        assert ids.dtype == targets.dtype == torch.int64
        assert torch.equal(ids[:, 1:], targets[:, :-1])
        assert ids.is_contiguous() and targets.is_contiguous()
        assert targets.min() >= 0 and targets.max() < 61


def test_every_step_has_its_micro_batches_and_tokens_of_its_own():
    steps = micro_batches(Workload(batch_size=3, seq_len=16, accumulate=2), 61, "cpu", n_steps=5)
    assert [len(step) for step in steps] == [2] * 5
    assert len({tuple(ids.flatten().tolist()) for step in steps for ids, _ in step}) == 10


def test_the_seed_decides():
    def first(seed):
        return flat(Workload(batch_size=2, seq_len=8, seed=seed))[0][0]

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))


@pytest.mark.parametrize(("n_steps", "expected"), [(1, 3), (8, 6), (9, 9)])
def test_varying_lengths_go_round_in_whole_cycles(n_steps, expected):
    workload = Workload(batch_size=2, seq_len=16, varying_seq_lens=(4, 16, 9))
    lengths = [ids.shape[1] for ids, _ in flat(workload, n_steps)]
    assert lengths == ([4, 16, 9] * 3)[:expected]


def test_padding_changes_no_token_that_counts():
    lengths = (4, 16, 9)
    free, padded = (
        flat(Workload(batch_size=2, seq_len=16, varying_seq_lens=lengths, padding=padding))
        for padding in ("none", "to-seq-len")
    )
    for (ids, targets), (long_ids, long_targets) in zip(free, padded, strict=True):
        length = ids.shape[1]
        assert long_ids.shape == long_targets.shape == (2, 16)
        assert torch.equal(long_ids[:, :length], ids)
        assert torch.equal(long_targets[:, :length], targets)
        assert (long_targets[:, length:] == IGNORED).all()
        assert ((long_ids >= 0) & (long_ids < 61)).all()


def test_accumulation_cuts_one_large_batch_into_micro_batches():
    whole = flat(Workload(batch_size=6, seq_len=8))[0]
    parts = micro_batches(Workload(batch_size=2, seq_len=8, accumulate=3), 61, "cpu", n_steps=1)[0]
    for each, expected in zip(zip(*parts, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(each), expected)
