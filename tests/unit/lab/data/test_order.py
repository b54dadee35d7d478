"""Who reads which sequences, and when."""

from itertools import chain, islice

import pytest

from peakward.lab.data.order import EndlessBatches, epoch_order, n_shared


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
