"""Predicted gains of levers, against pairs of stored measurements that differ by one lever."""

import pytest

from peakward.levers.catalogue import LEVERS, pull
from peakward.prediction.time.errors_seen import LEVEL, SPEEDUP_FACTORS, stays_bound_by_device

pytestmark = pytest.mark.full  # They predict every stored measurement again.


def ratios(now, source):
    """Of each pair the measured over the predicted gain, by whether the device bounds both under any host."""
    host_is_known = source == "calibrated"
    replayed = {each.case: each for each in now}
    for case, without in replayed.items():
        for lever in LEVERS:
            pulled = pull(lever, case)
            if pulled == case or pulled not in replayed:
                continue
            with_it = replayed[pulled]
            before, after = getattr(without, source), getattr(with_it, source)
            predicted = before.step_s.estimate / after.step_s.estimate
            measured = without.measured_s / with_it.measured_s
            bound = all(stays_bound_by_device(x.phases, host_is_known) for x in (before, after))
            yield bound, measured / predicted


@pytest.mark.parametrize("source", ["calibrated", "datasheet"])
@pytest.mark.parametrize("by_device", [True, False])
def test_nine_in_ten_gains_lie_in_their_intervals(now, source, by_device):
    low, high = SPEEDUP_FACTORS[source, by_device]
    found = [ratio for bound, ratio in ratios(now, source) if bound == by_device]
    assert len(found) >= 50
    inside = sum(low <= ratio <= high for ratio in found) / len(found)
    assert inside >= LEVEL, sorted(found)
