"""Who waits for whom, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.prediction.time.queue import DEPTH, Stretch, step_s


def test_a_slow_device_is_waited_for():
    assert step_s([Stretch(10, 0.1, 1.0)]) == pytest.approx(1.0)


def test_a_slow_host_is_waited_for():
    assert step_s([Stretch(10, 1.0, 0.1)]) == pytest.approx(1.0)


def test_one_may_be_slow_in_one_phase_and_the_other_in_another():
    """While the device is busy with b the host is already in the next step's a."""
    a, b = Stretch(100, 1.0, 0.2), Stretch(10, 0.1, 0.9)
    assert step_s([a, b]) == pytest.approx(1.1, rel=0.01)


def test_the_host_runs_no_further_ahead_than_the_queue_is_deep():
    """a takes the host 3 ms a launch and the device next to nothing, b the device 6 s.

    When b is issued the device is idle. For 6 s it is busy with b, and the host issues DEPTH
    launches of the next a, 3.06 s, then waits: of 9 s it has done so many less in the end.
    """
    a, b = Stretch(3000, 9.0, 0.003), Stretch(1, 0.0, 6.0)
    assert DEPTH == 1021
    assert step_s([a, b]) == pytest.approx(9.0 + 6.0 - 3.063, rel=0.002)


def test_within_the_queue_only_the_longer_counts():
    a, b = Stretch(900, 9.0, 0.003), Stretch(1, 0.0, 6.0)
    assert step_s([a, b]) == pytest.approx(9.0, rel=0.002)


def test_a_host_that_waits_for_a_value_lets_the_device_wait_for_it():
    """Without waits the host's 1 s lies behind the device's 3 s. After each of 3 waits the device
    has nothing to do until the host has issued a launch."""
    free, waiting = Stretch(400, 1.0, 3.0), Stretch(400, 1.0, 3.0, n_waits=3)
    assert step_s([free]) == pytest.approx(3.0)
    assert step_s([waiting]) == pytest.approx(3.0 + 3 * 1.0 / 400, rel=1e-3)


def test_waits_cost_a_slow_host_what_the_device_then_does_alone():
    """Each time the last launch, 0.01 s of the device's, is not overlapped."""
    assert step_s([Stretch(100, 2.0, 1.0, n_waits=9)]) == pytest.approx(2.0 + 9 * 0.01)


def test_a_wait_lies_in_the_middle_of_its_launches():
    """The host waits after half of a, when the device still has 0.3 s of the last step's b: it ends b and
    that half, 0.1 s, alone, then the host's other half and b's 0.1 s follow."""
    a, b = Stretch(100, 1.0, 0.2, n_waits=1), Stretch(10, 0.1, 0.9)
    assert step_s([a, b]) == pytest.approx(0.9 + 0.1 + 0.5, rel=0.02)


def test_a_full_queue_is_what_the_device_still_has_to_do():
    """The device is behind by DEPTH launches of 3 ms when the host goes on to b, which takes it 4 s."""
    a, b = Stretch(3000, 0.003, 9.0), Stretch(1, 4.0, 0.0)
    assert step_s([a, b]) == pytest.approx(9.0 - 3.063 + 4.0, rel=1e-3)


STRETCHES = st.lists(
    st.builds(Stretch, st.integers(1, 300), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5)),
    min_size=1,
    max_size=3,
)


@given(STRETCHES)
def test_a_step_takes_the_longer_of_both_at_least_and_their_sum_at_most(stretches):
    host_s, device_s = (sum(each[i] for each in stretches) for i in (1, 2))
    found = step_s(stretches)
    assert found >= max(host_s, device_s) * (1 - 1e-9) - 1e-9
    assert found <= (host_s + device_s) * (1 + 1e-9) + 1e-9
