"""Working sets, and the level that holds each."""

from types import SimpleNamespace

import pytest
import torch

from peakward.lab.measure.calibration import levels
from peakward.lab.measure.calibration.attempt import outcome
from peakward.lab.measure.proc import Cache
from peakward.records.rates import Absence

KIB, MIB = 2**10, 2**20
CACHES = (Cache("L1", 32 * KIB), Cache("L2", MIB), Cache("L3", 32 * MIB))


@pytest.mark.parametrize(
    ("size", "level"),
    [
        (8 * KIB, "L1"),
        (16 * KIB, "L1"),
        (32 * KIB, None),
        (33 * KIB, "L2"),
        (16 * MIB, "L3"),
        (32 * MIB, None),
        (64 * MIB, None),
        (128 * MIB, "memory"),
    ],
)
def test_a_cache_holds_what_fits_twice(size, level):
    assert levels.level_of(size, CACHES, 4) == level


def test_where_no_cache_is_known_no_level_is_named():
    assert {levels.level_of(size, (), 4) for size in (KIB, MIB, 2**40)} == {None}


def test_working_sets_reach_memory():
    sizes = levels.working_sets(8 * KIB, CACHES, 4)
    assert sizes == tuple(8 * KIB * 4**i for i in range(8))
    assert {levels.level_of(size, CACHES, 4) for size in sizes} == {
        "L1",
        "L2",
        "L3",
        "memory",
        None,
    }
    assert levels.working_sets(8 * KIB, (), 4)[-1] >= 4 * levels.UNKNOWN_BYTES


def test_a_gpu_has_its_l2_and_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(L2_cache_size=50 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert levels.sets("cuda") == (
        (4 * MIB, "L2", 50 * MIB),
        (16 * MIB, "L2", 50 * MIB),
        (64 * MIB, None, None),
        (256 * MIB, None, None),
        (1024 * MIB, "memory", None),
    )


def test_a_set_that_would_fill_the_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setattr(levels.proc, "available_bytes", lambda: 100 * KIB)
    monkeypatch.setattr(levels, "device_s", lambda call, device_type: 0.5)
    found = [outcome(each, "levels") for each in levels.attempts("cpu")]
    assert [isinstance(each, Absence) for each in found] == [False, True, True]
    assert found[1].reason == "32768 bytes are more than a quarter of the memory that is free"


@pytest.mark.parametrize("size", [8 * KIB, MIB, 128 * MIB])
def test_a_repeated_set_is_stored_once_and_read_in_full(size):
    view = levels.repeated(size, "cpu")
    assert view.untyped_storage().nbytes() == size
    read = view.numel() * view.element_size()
    assert read == max(size, levels.READ_BYTES["cpu"])
    assert view.stride()[1] == 1


def test_rates_count_every_byte_read(monkeypatch):
    monkeypatch.setattr(levels.proc, "caches", lambda: (Cache("L1", 16 * KIB),))
    monkeypatch.setitem(levels.READ_BYTES, "cpu", 64 * KIB)
    read = []

    def count(call, device_type):
        read.append(call().numel())
        return 0.5

    monkeypatch.setattr(levels, "device_s", count)
    rates = [outcome(each, "levels") for each in levels.attempts("cpu")]
    assert [(rate.working_set_bytes, rate.level, rate.capacity_bytes) for rate in rates] == [
        (8 * KIB, "L1", 16 * KIB),
        (32 * KIB, None, None),
        (128 * KIB, "memory", None),
    ]
    assert read == [8, 2, 1]
    assert [rate.bytes_per_s for rate in rates] == [128 * KIB, 128 * KIB, 256 * KIB]
