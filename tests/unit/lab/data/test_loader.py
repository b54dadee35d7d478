"""A DataLoader of packed sequences."""

from itertools import islice

import pytest
import torch

from peakward.lab.data import text, tokens
from peakward.lab.data.feed import Sequences, batches
from peakward.records.case import TextData, Workload


@pytest.fixture
def loaded(folder):
    """loaded(n, **data): the first batches, 3 sequences of 16."""

    def load(n=6, *, rank=0, seed=1, **changes):
        data = TextData(text=text.source(str(folder)), **changes)
        made = Sequences(tokens.prepare(data, vocab_size=300, seq_len=16), 16)
        work = Workload(batch_size=3, seq_len=16, seed=seed, data=data)
        loader, _ = batches(data, made, work, rank=rank)
        return [torch.stack(each) for each in islice(loader, n)]

    return load


def test_targets_are_the_ids_one_place_on(loaded):
    for ids, targets in loaded():
        assert ids.shape == targets.shape == (3, 16)
        assert ids.dtype == torch.int64
        assert torch.equal(ids[:, 1:], targets[:, :-1])


def test_sequences_do_not_overlap_and_cover_the_text(folder):
    data = TextData(text=text.source(str(folder)))
    stream = tokens.prepare(data, vocab_size=300, seq_len=16)
    made = Sequences(stream, 16)
    read = [
        each
        for ids, targets in map(made.__getitem__, range(len(made)))
        for each in (*ids.tolist(), targets[-1].item())
    ]
    assert read == stream.stream.read(0, len(made) * 17).tolist()
    assert stream.n_tokens - len(read) < 17


@pytest.mark.parametrize(
    "changes",
    [{"n_workers": 2}, {"tokenise": "on-the-fly"}, {"tokenise": "on-the-fly", "n_workers": 2}],
)
def test_how_they_are_made_changes_no_batch(loaded, changes):
    for mine, plain in zip(loaded(**changes), loaded(), strict=True):
        assert torch.equal(mine, plain)


def test_the_seed_and_the_rank_change_them(loaded):
    plain = loaded()
    assert all(map(torch.equal, loaded(), plain))
    assert not all(map(torch.equal, loaded(seed=2), plain))
    first, second = loaded(n_ranks=2), loaded(n_ranks=2, rank=1)
    assert not any(map(torch.equal, first, second))
