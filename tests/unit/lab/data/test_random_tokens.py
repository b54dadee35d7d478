"""Random tokens: their shapes, that targets are the next ids, and what padding leaves alone."""

import pytest
import torch

from peakward.lab.data.random_tokens import IGNORED, micro_batches
from peakward.records.case import Workload


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
