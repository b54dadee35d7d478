"""Batches from a user's loader, and what waiting for them took."""

import multiprocessing

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
)

from peakward.lab.data.given_loader import (
    GivenLoader,
    Rebuilt,
    expect_repeatable,
    kept_loader,
    rebuild_obstacle,
    rebuilt,
)
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


class Squares(torch.utils.data.Dataset):
    """Read by index."""

    def __len__(self):
        return 11

    def __getitem__(self, place):
        return torch.tensor([place, place**2])


def stacked(samples):
    return torch.stack(samples).sum(0)


def shuffled(**settings):
    return DataLoader(Squares(), shuffle=True, **settings)


def seeded():
    return torch.Generator().manual_seed(5)


def drawn():
    """A sampler with a generator of its own, which draws as it goes."""
    return WeightedRandomSampler(torch.arange(1.0, 12.0), 9, generator=seeded())


@pytest.mark.parametrize(
    "make",
    [
        lambda: shuffled(batch_size=2, generator=seeded(), drop_last=True),
        lambda: shuffled(batch_size=4, generator=seeded(), collate_fn=stacked),
        lambda: shuffled(batch_size=3),  # It draws from torch's own generator.
        lambda: DataLoader(Squares(), batch_size=2, sampler=drawn(), generator=seeded()),
        lambda: DataLoader(
            Squares(), batch_sampler=BatchSampler(SequentialSampler(range(11)), 4, drop_last=True)
        ),
        lambda: DataLoader(Squares(), batch_size=None, shuffle=True, generator=seeded()),
    ],
)
def test_a_loader_with_workers_gives_the_same_batches_in_the_same_order(make):
    """Over three epochs, each with an order of its own."""

    def batches(loader):
        torch.manual_seed(7)
        return [batch for _ in range(3) for batch in loader]

    expected = batches(make())
    made = rebuilt(make(), n_workers=2)
    feed = GivenLoader(made, "cpu")
    try:
        got = batches(made)
    finally:
        feed.close()
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    assert made._iterator is None, "its workers have ended"


def test_what_a_loader_was_made_with_goes_to_the_other():
    given = shuffled(batch_size=2, drop_last=True, collate_fn=stacked, worker_init_fn=print)
    made = rebuilt(given, n_workers=3)
    for name in ("dataset", "sampler", "collate_fn", "worker_init_fn", "batch_size", "drop_last"):
        assert getattr(made, name) == getattr(given, name)
    assert (made.num_workers, len(made)) == (3, len(given))
    feed = GivenLoader(made, "cpu")
    assert feed.n_ahead == 6
    assert GivenLoader(given, "cpu").n_ahead == GivenLoader([1], "cpu").n_ahead == 0


class Watched(DataLoader):
    """One with something of its own."""


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: [torch.ones(1)], "is a list: make a torch DataLoader of it"),
        (lambda: Watched(Squares()), "is a Watched, which may do more than torch's"),
        (lambda: DataLoader(Once()), "reads an IterableDataset, Once, all of which each worker"),
        (
            lambda: DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn",
                               collate_fn=lambda samples: samples),
            r"has a collate_fn that cannot go to a worker \(.*lambda.*\): make it a function",
        ),
    ],
)  # fmt: skip
def test_a_loader_that_cannot_be_made_anew_is_told_in_a_line(make, line):
    with pytest.raises(PeakwardError, match=line) as caught:
        rebuilt(make(), n_workers=2)
    assert "\n" not in str(caught.value)


def test_a_lambda_goes_to_workers_that_are_forked():
    context = multiprocessing.get_context("fork")
    settings = {"num_workers": 1, "multiprocessing_context": context}
    assert rebuild_obstacle(DataLoader(Squares(), collate_fn=lambda x: x, **settings)) is None
    assert isinstance(rebuilt(shuffled(), n_workers=1), Rebuilt)
