"""A user's loader, as it was after it was iterated over."""

import pytest
import torch
from torch.utils.data import DataLoader

from peakward.lab.data.loader_state import expect_repeatable, kept_loader
from peakward.records.errors import PeakwardError


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
