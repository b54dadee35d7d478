"""Whether it fits, and how much more would."""

import msgspec
import pytest

from accuracy.measured import studies
from peakward.hardware.devices import device, least_memory_bytes
from peakward.models.presets import model
from peakward.prediction.memory.fit import fits, largest_batch
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.room import (
    CAPTURED_SHARE,
    COMPILED_SHARE,
    largest_batch_size,
    room,
)
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.plan import DeviceGroup
from stored_results import FOLDER

CARD = device("rtx-4090-24")


def case(batch_size=4, seq_len=512, size="small", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=batch_size, seq_len=seq_len),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def of(asked, group=None):
    attempts = Attempts()
    memory = peak_memory(asked, group)
    return room(asked, memory, site(CARD, group=group), attempts), attempts.absent


def test_needed_is_what_is_reserved_and_the_context():
    found, absent = of(case())
    memory = peak_memory(case())
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert found.fits is True
    assert absent == ()


def test_a_group_is_looked_at_as_a_group():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    found, _ = of(case(), group)
    memory = peak_memory(case(), group)
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert found.needed_bytes > of(case())[0].needed_bytes


@pytest.mark.parametrize("limit_gib", [4.6, 4.8, 5.0, 5.4])
def test_near_the_limit_it_is_the_allocator_that_decides(limit_gib):
    limit = int(limit_gib * 2**30)
    asked = msgspec.structs.replace(case(batch_size=8), memory_limit_bytes=limit)
    found, _ = of(asked)
    assert found.fits == fits(asked, limit)


@pytest.mark.parametrize("setting", [{"compile": "reduce-overhead"}, {"cuda_graphs": True}])
@pytest.mark.parametrize(("batch_size", "fits"), [(4, True), (256, False)])
def test_where_the_range_leaves_no_doubt_it_fits_or_not(batch_size, fits, setting):
    """Needed is what the eager step needs."""
    found, absent = of(case(batch_size, **setting))
    eager, _ = of(case(batch_size))
    assert found.needed_bytes == eager.needed_bytes
    assert found.fits is fits
    assert "times what eager code does" in absent[0].reason


@pytest.mark.parametrize("setting", [{"compile": "reduce-overhead"}, {"cuda_graphs": True}])
def test_in_doubt_nothing_is_said(setting):
    """The limit lies between the least and the most that such steps have needed."""
    at_limit = largest_batch(case(), least_memory_bytes(CARD))
    found, _ = of(case(at_limit, **setting))
    assert found.fits is None


def test_compiled_blocks_are_known_to_fit_or_not():
    """They hold less than the eager step, so that a larger batch fits."""
    compiled = case(compile="default")
    found, absent = of(compiled)
    memory = peak_memory(compiled)
    assert found.needed_bytes == memory.reserved_bytes + memory.context_bytes
    assert absent == ()
    assert largest_batch_size(compiled, site(CARD)) > largest_batch_size(case(), site(CARD))


def test_the_largest_batch_leaves_room_for_what_a_group_adds():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    large = case(size="large")  # Its gradients are 3.6 GiB of the card's 23.
    alone = largest_batch_size(large, site(CARD))
    assert 0 < largest_batch_size(large, site(CARD, group=group)) < alone
    with pytest.raises(PeakwardError, match="expected an eager step"):
        largest_batch_size(case(compile="reduce-overhead"), site(CARD))


@pytest.mark.full
def test_stored_steps_lie_in_the_ranges_of_compiled_code_and_of_graphs():
    """What they reserved, over what is predicted for the eager step."""
    shares = {"default": [], "captured": []}
    for study in studies(FOLDER).values():
        for each in study.measurements:
            case, use = each.case, each.memory
            if not isinstance(case, ModelCase) or use is None or each.status != "ok":
                continue
            settings = case.configuration
            kind = "captured" if settings.cuda_graphs else settings.compile
            if kind not in shares:
                continue
            eager = msgspec.structs.replace(settings, compile="none", cuda_graphs=False)
            twin = msgspec.structs.replace(case, configuration=eager)
            shares[kind].append(use.peak_reserved_bytes / peak_memory(twin).reserved_bytes)
    for kind, (low, high), least in (
        ("default", COMPILED_SHARE, 60),
        ("captured", CAPTURED_SHARE, 4),
    ):
        assert len(shares[kind]) >= least
        assert low <= min(shares[kind])
        assert max(shares[kind]) <= high
