"""Idle time by cause, for each device and together."""

import pytest

from peakward.traces.breakdown import breakdown
from peakward.traces.idle import idle
from peakward.traces.idle_causes import IdleCause
from peakward.traces.launches import launch_rows

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, communication, real


def causes(of) -> dict[str, int]:
    return {cause: ns for cause, ns in of.by_cause_ns.items() if ns}


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_BERT, MI300_BERT, H100_NSYS])
def test_causes_sum_to_the_idle_time_of_a_real_trace(name):
    trace = real(name)
    found = idle(trace, launch_rows(trace))
    times = breakdown(trace, communication(trace))
    for each, time in zip(
        (*found.devices, found.together), (*times.devices, times.together), strict=True
    ):
        assert each.device == time.device
        assert each.idle_ns == time.idle_ns == sum(each.by_cause_ns.values())


def test_an_a100_that_trains_is_idle_for_the_hosts_sake():
    trace = real(A100)
    found = idle(trace, launch_rows(trace)).together
    assert (found.n_gaps, found.longest_ns) == (3480, 15718606)
    assert found.by_cause_ns["host_bound"] / found.idle_ns > 0.98
    assert found.by_cause_ns["unseen"] == found.by_cause_ns["unknown"] == 0


def test_an_inference_that_fetches_its_answer_has_synchronised():
    trace = real(H100_BERT)
    found = idle(trace, launch_rows(trace)).together
    assert found.by_cause_ns["synchronisation"] > 0
    assert found.by_cause_ns["after_synchronisation"] > found.by_cause_ns["synchronisation"]


def test_a_thinned_trace_owns_up_to_what_it_does_not_show():
    trace = real(RANK_0)
    found = idle(trace, launch_rows(trace)).together
    assert found.by_cause_ns["unseen"] / found.idle_ns > 0.5


def test_each_device_and_together():
    trace = table(
        [
            Gpu(0, 10),
            Gpu(30, 40, correlation=1),
            Gpu(0, 10, device=1),
            Gpu(15, 20, device=1),
        ],
        [Host(20, 25, correlation=1)],
    )
    found = idle(trace, launch_rows(trace))
    assert [(d.device, d.n_gaps, d.idle_ns, d.longest_ns) for d in found.devices] == [
        (0, 1, 20, 20),
        (1, 1, 5, 5),
    ]
    assert causes(found.devices[0]) == {"host_bound": 15, "launch_latency": 5}
    assert causes(found.devices[1]) == {"unknown": 5}
    assert (found.together.device, found.together.n_gaps, found.together.longest_ns) == (
        None,
        2,
        20,
    )
    assert causes(found.together) == {"host_bound": 15, "launch_latency": 5, "unknown": 5}
    assert list(found.together.by_cause_ns) == [cause.name.lower() for cause in IdleCause]


def test_no_gpu_work_is_no_idle_time():
    found = idle(table(host=[Host(0, 1)]), launch_rows(table(host=[Host(0, 1)])))
    assert found.devices == ()
    assert found.together.idle_ns == found.together.longest_ns == 0
