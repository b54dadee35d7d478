"""Larger batches, measured."""

from types import SimpleNamespace

import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import Protocol
from peakward.tune.costs import Costs
from peakward.tune.larger_batches import SMALLER, grown

HERE = site(device("h100-sxm-80"))
CASE = ModelCase(model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda")


class Device:
    """Bench, ledger, workers and sweep in one; what is above `fits` is out of memory."""

    costs = Costs(start_s=1.0, arm_s=1.0, compile_s=0.0)

    def __init__(self, *, fits=10**9, time_left=True, holds=True):
        self.ledger = self.workers = self
        self.fits, self.time_left, self.sound = fits, time_left, holds
        self.measured = []
        self.costs_s = []

    def affords(self, cost_s, what):
        self.costs_s.append(cost_s)
        return self.time_left

    def obstacle(self, lever, case):
        return None

    def holds(self, lever, case):
        return self.sound

    def close(self): ...

    def measure(self, case, protocol):
        self.measured.append(case)
        status = "ok" if case.workload.batch_size <= self.fits else "oom"
        memory = SimpleNamespace(peak_allocated_bytes=case.workload.batch_size * 2**30)
        return SimpleNamespace(case=case, status=status, memory=memory)


def tried(where, max_memory_bytes=None):
    grown(CASE, where, where, Protocol(), here=HERE, max_memory_bytes=max_memory_bytes)
    return [(each.workload.batch_size, each.configuration.checkpointing) for each in where.measured]


def test_both_arms_are_measured_once():
    plain, recomputed = tried(Device())
    assert (plain[1], recomputed[1]) == ("none", "every-block")
    assert recomputed[0] > plain[0]


def test_a_batch_is_reckoned_to_take_as_many_times_as_long_as_it_is_larger():
    where = Device()
    (size, _), *_ = tried(where)
    assert where.costs_s[0] == 1.0 + size / 4 + Protocol().max_timed_s


def test_what_was_predicted_to_fit_and_does_not_is_tried_a_tenth_smaller_once():
    (first, _), (second, _), *_ = tried(Device(fits=1))
    assert second == int(SMALLER * first)
    assert len(tried(Device(fits=1))) == 4


@pytest.mark.parametrize(("fields", "n"), [({"time_left": False}, 0), ({"holds": False}, 1)])
def test_no_time_measures_nothing_and_unsound_numbers_no_recomputation(fields, n):
    assert len(tried(Device(**fields))) == n


def test_what_needs_more_than_is_allowed_is_tried_smaller_too():
    """Its memory was predicted to be within 40 GiB, and is a GiB a sequence."""
    (first, _), (second, _), *_ = tried(Device(), 40 * 2**30)
    assert first > 40
    assert second == int(SMALLER * first)
