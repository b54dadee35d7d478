"""Where a step's time goes."""

import msgspec
import pytest

from peakward.diagnose.time_parts import (
    COLLECTING,
    PAUSING,
    WAITING,
    WAITING_IN_PAUSES,
    host_runs_ahead,
    loop_parts,
    time_parts,
)

from .rules.looped import loop, paused
from .rules.made import MS, kernel, of_host, profile

TWO = (kernel("a", 30), kernel("b", 10, phase="backward"))


def test_idle_and_work_add_up_to_the_whole():
    found = time_parts(profile(*TWO, idle={"host_bound": 60}), n_steps=None, step_s=None)
    assert found.whole_s == pytest.approx(0.1)
    assert found.parts["work.backward.b"] == pytest.approx(0.01)
    assert sum(found.parts.values()) == pytest.approx(found.whole_s)
    assert found.basis == "profiled span"


def test_of_several_steps_one():
    found = time_parts(profile(*TWO, idle={"host_bound": 60}), n_steps=4, step_s=None)
    assert found.whole_s == pytest.approx(0.025)
    assert found.basis == "profiled step"


def test_of_several_devices_the_mean_one():
    one = profile(*TWO, idle={"host_bound": 60})
    each = one.breakdown.together
    two = msgspec.structs.replace(one.breakdown, devices=(each, each))
    found = time_parts(msgspec.structs.replace(one, breakdown=two), n_steps=1, step_s=None)
    assert found.whole_s == pytest.approx(0.05)
    assert found.parts["work.backward.b"] == pytest.approx(0.005)
    assert sum(found.parts.values()) == pytest.approx(found.whole_s)


def test_what_the_profiler_took_is_no_part_of_it():
    idle = {"host_bound": 60, "profiler": 100}
    found = time_parts(profile(*TWO, idle=idle), n_steps=1, step_s=None)
    assert found.whole_s == pytest.approx(0.1)
    assert "idle.profiler" not in found.parts


def test_a_measured_step_leaves_its_own_idle_time():
    idle = {"host_bound": 60, "data_loading": 20}
    found = time_parts(profile(*TWO, idle=idle), n_steps=1, step_s=0.06)
    assert found.whole_s == 0.06
    assert found.parts["idle.host_bound"] == pytest.approx(0.015)
    assert found.parts["idle.data_loading"] == pytest.approx(0.005)


def test_a_step_shorter_than_its_kernels_has_no_idle_time_and_says_so():
    found = time_parts(profile(*TWO, idle={"host_bound": 60}), n_steps=1, step_s=0.03)
    assert found.whole_s == pytest.approx(0.04)
    assert found.parts["idle.host_bound"] == 0
    assert found.basis == "profiled work"


def test_work_at_once_on_two_streams_counts_once():
    both = profile(*TWO, busy_ns=20 * MS, span_ns=20 * MS)
    found = time_parts(both, n_steps=1, step_s=None)
    assert sum(found.parts.values()) == pytest.approx(0.02)
    assert found.parts["work.forward.a"] == pytest.approx(0.015)


def test_what_runs_beside_compute_takes_no_time():
    """20 of 30 ms of communication hidden under 40 of compute, and 4 of 5 ms of copies."""
    found = time_parts(
        profile(
            kernel("a", 40),
            kernel("all_reduce", 30, "communication", phase="backward"),
            kernel("Memcpy HtoD", 5, "memory"),
            busy_ns=51 * MS,
            span_ns=60 * MS,
            communication_ns=30 * MS,
            communication_under_compute_ns=20 * MS,
            memory_ns=5 * MS,
            exposed_memory_ns=MS,
            idle={"host_bound": 9},
        ),
        n_steps=1,
        step_s=None,
    )
    assert found.parts["work.forward.a"] == pytest.approx(0.040)
    assert found.parts["work.backward.all_reduce"] == pytest.approx(0.010)
    assert found.parts["work.forward.Memcpy HtoD"] == pytest.approx(0.001)
    assert sum(found.parts.values()) == pytest.approx(found.whole_s)


def test_of_the_host_nothing_is_hidden():
    copies = kernel("aten::copy_", 30, "memory")
    found = time_parts(of_host(kernel("a", 10), copies), n_steps=1, step_s=None)
    assert found.parts["work.forward.aten::copy_"] == pytest.approx(0.030)


def test_without_work_there_is_nothing():
    assert time_parts(None, n_steps=None, step_s=None) is None
    assert time_parts(profile(busy_ns=0), n_steps=1, step_s=None) is None


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
