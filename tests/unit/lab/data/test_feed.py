"""Batches of text for steps, and the times they took."""

import pytest
import torch

from peakward.lab.data import feed as feed_module
from peakward.lab.data import text
from peakward.lab.data.feed import Feed
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
