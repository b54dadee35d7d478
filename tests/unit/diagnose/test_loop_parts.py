"""Where the time of a live loop goes."""

import msgspec
import pytest

from peakward.diagnose.loop_parts import (
    COLLECTING,
    PAUSING,
    WAITING,
    WAITING_IN_PAUSES,
    host_runs_ahead,
    loop_parts,
)

from .rules.looped import loop, paused
from .rules.made import kernel, of_host, profile


def test_without_a_profile_the_loops_own_clock_tells():
    found = loop_parts(None, n_steps=None, loop=loop(waited_s=3.0, collected_s=1.0))
    assert (found.whole_s, found.basis) == (0.1, "watched step")
    assert found.parts[WAITING] == pytest.approx(0.03)
    assert found.parts[COLLECTING] == pytest.approx(0.01)


def test_operators_that_the_profiler_slowed_are_cut_to_what_is_left():
    slowed = of_host(kernel("aten::mm", 300), kernel("aten::add", 100))
    found = loop_parts(slowed, n_steps=1, loop=loop(waited_s=4.0))
    assert sum(found.parts.values()) == pytest.approx(found.whole_s)
    assert found.parts["work.forward.aten::mm"] == pytest.approx(0.045)


def test_operators_that_fit_keep_their_times():
    found = loop_parts(of_host(kernel("aten::mm", 50)), n_steps=1, loop=loop(waited_s=4.0))
    assert found.parts["work.forward.aten::mm"] == pytest.approx(0.05)


def test_pauses_and_what_they_were_add_up():
    times = msgspec.structs.replace(paused(5.0, waited_s=3.0), waited_s=4.0)
    found = loop_parts(None, n_steps=None, loop=times)
    assert found.whole_s == pytest.approx(0.15)
    assert found.parts[WAITING] == pytest.approx(0.01)
    assert found.parts[WAITING_IN_PAUSES] == pytest.approx(0.03)
    assert found.parts[PAUSING] == pytest.approx(0.02)


def test_on_a_gpu_idle_time_is_that_of_the_typical_step():
    seen = profile(kernel("mm", 60), idle={"data_loading": 100})
    found = loop_parts(seen, n_steps=1, loop=paused(5.0))
    assert found.whole_s == pytest.approx(0.15)
    assert found.parts["idle.data_loading"] == pytest.approx(0.04)
    assert found.parts[PAUSING] == pytest.approx(0.05)
    assert WAITING not in found.parts


def test_a_host_that_runs_ahead_tells_the_mean_alone():
    seen, times = profile(kernel("mm", 140), idle={"host_bound": 100}), paused(5.0)
    assert host_runs_ahead(seen, n_steps=1, loop=times)
    found = loop_parts(seen, n_steps=1, loop=times)
    assert found.whole_s == pytest.approx(0.15)
    assert found.parts["idle.host_bound"] == pytest.approx(0.01)
    assert PAUSING not in found.parts


def test_a_profile_without_work_leaves_the_pauses():
    found = loop_parts(profile(busy_ns=0), n_steps=1, loop=paused(5.0))
    assert sum(found.parts.values()) == pytest.approx(0.05)
