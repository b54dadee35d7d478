"""Batches from a user's loader, and what waiting for them took."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from peakward.lab.data.given_loader import GivenLoader, expect_repeatable, kept_loader
from peakward.records.errors import PeakwardError


def test_batches_come_as_the_loader_gives_them_and_begin_again():
    batches = [torch.zeros(2), torch.ones(2)]
    feed = GivenLoader(batches, "cpu")
    assert [feed() is batches[i % 2] for i in range(5)] == [True] * 5


def test_each_wait_is_timed_and_rewinding_forgets_them():
    feed = GivenLoader([1, 2, 3], "cpu")
    for _ in range(4):
        feed()
    waits = feed.waited(2)
    assert len(waits.wait_s) == 2
    assert waits.idle_s is None
    assert min(*waits.wait_s, waits.first_wait_s) > 0
    feed.rewind()
    assert feed() == 1
    assert len(feed.waited(9).wait_s) == 1


class Once(IterableDataset):
    """A stream that is at its end after one pass."""

    def __init__(self):
        self.left = iter(torch.ones(3, 2))

    def __iter__(self):
        return self.left


@pytest.mark.parametrize(("loader", "n"), [([], 0), (DataLoader(Once(), batch_size=1), 3)])
def test_a_loader_that_ends(loader, n):
    feed = GivenLoader(loader, "cpu")
    for _ in range(n):
        feed()
    with pytest.raises(
        PeakwardError, match=f"a batch for every step, got one that ended after {n}"
    ):
        feed()


def test_a_batch_of_another_shape():
    feed = GivenLoader(DataLoader(torch.zeros(5, 3), batch_size=2), "cpu")
    feed(), feed()
    with pytest.raises(
        PeakwardError, match=r"same shapes, got \(1, 3\) after \(2, 3\): .*drop_last"
    ):
        feed()


def test_generators_are_put_back():
    loader = DataLoader(
        torch.arange(8), shuffle=True, batch_size=2, generator=torch.Generator().manual_seed(1)
    )
    before = loader.generator.get_state()
    with kept_loader(loader):
        inside = [each.tolist() for each in loader]
        assert not torch.equal(before, loader.generator.get_state())
    assert torch.equal(before, loader.generator.get_state())
    assert [each.tolist() for each in loader] == inside


def test_kept_workers_are_ended():
    loader = DataLoader(torch.arange(4), num_workers=1, persistent_workers=True)
    with kept_loader(loader):
        next(iter(loader))
        workers = loader._iterator._workers
        with pytest.raises(PeakwardError, match="persistent workers are in an epoch"):
            expect_repeatable(loader)
    assert loader._iterator is None
    assert not any(each.is_alive() for each in workers)


@pytest.mark.parametrize(
    ("loader", "line"), [(iter([1]), "iterator list_iterator"), (7, "got int"), (None, "NoneType")]
)
def test_what_cannot_be_begun_again(loader, line):
    with pytest.raises(PeakwardError, match=line):
        expect_repeatable(loader)


def test_a_list_is_a_loader():
    expect_repeatable([1, 2])
    with kept_loader([1, 2]), kept_loader(None):
        pass
