"""`pw.watch` around a training loop on a GPU: no step between windows waits, and faults are found."""

import time
from itertools import count, cycle

import pytest
import torch

import peakward as pw

pytestmark = pytest.mark.gpu
LONGEST_S = 60.0
WAIT_S = 0.02


def batches(wait_s):
    for x in cycle([torch.randn(256, 1024, device="cuda") for _ in range(4)]):
        if wait_s:
            time.sleep(wait_s)
        yield x


def trained(watch, *, until, wait_s=0.0, read_every=None):
    """Steps of some 3 ms on an H100 until it is so, or LONGEST_S."""
    model = torch.nn.Sequential(
        *[torch.nn.Linear(1024, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 1024)] * 4
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    began_s, steps = time.perf_counter(), count(1)
    for x in watch.batches(batches(wait_s)):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        n = next(steps)
        if read_every and n % read_every == 0:
            assert loss.item() >= 0
        watch.step()
        if until(n) or time.perf_counter() - began_s > LONGEST_S:
            return n
    return 0


def codes(diagnoses):
    return {each.code for found in diagnoses for each in found.findings}


def test_nothing_is_synchronised_outside_of_windows(monkeypatch):
    waits = []
    real = torch.cuda.synchronize

    def counted(*given):
        waits.append(given)
        real(*given)

    monkeypatch.setattr(torch.cuda, "synchronize", counted)
    with pw.watch(every=1000, on_findings=[].append) as watch:
        trained(watch, until=lambda n: n == 50)
        assert waits == []
        trained(watch, until=lambda n: n == 953)
        assert watch.times.n_windows == 0
        trained(watch, until=lambda n: watch.times.n_windows == 1)
    # One where recording begins, one where it ends: torch's profiler's own.
    assert len(waits) == 2


def test_a_slow_loader_leaves_the_gpu_idle():
    told = []
    with pw.watch(every=30, on_findings=told.append) as watch:
        trained(watch, wait_s=WAIT_S, until=lambda _: bool(told))
        assert told, "while the loop runs"
    assert not watch.profile.is_of_host
    assert watch.profile.n_steps == 3
    first = {each.code: each for each in told[0].findings}
    assert first["HOST001"].share > 0.3
    assert "LOOP001" in {each.code for each in told[0].abstentions}, "HOST001 says what it cost"
    assert told[0].basis == "watched step"
    assert told[0].whole_s > WAIT_S


def test_the_same_loop_without_it():
    told = []
    with pw.watch(every=30, on_findings=told.append) as watch:
        trained(watch, until=lambda n: n > 300 and watch.profile is not None)
    assert watch.profile is not None
    assert not {"HOST001", "LOOP001", "LOOP002"} & codes(told)


def test_reading_the_loss_now_and_then_is_no_pause():
    """Nine steps are launched, and the tenth waits for all of them: by the host's clock a pause."""
    told = []
    with pw.watch(every=30, on_findings=told.append) as watch:
        trained(watch, read_every=10, until=lambda n: n > 300 and watch.profile is not None)
    assert watch.profile is not None
    assert "LOOP003" not in codes(told)


def test_all_work_of_a_window_was_launched_in_it():
    with pw.watch(every=30, on_findings=[].append) as watch:
        trained(watch, until=lambda n: watch.profile is not None)
    idle = watch.profile.idle.together
    assert idle.by_cause_ns["unknown"] == 0
    assert {"forward", "backward", "optimizer"} <= {each.phase for each in watch.profile.phases}


def test_an_exception_leaves_no_profiler():
    with pytest.raises(ZeroDivisionError), pw.watch(every=10, on_findings=[].append) as watch:
        trained(watch, until=lambda n: n == 12)
        _ = 1 / 0
    with torch.profiler.profile() as mine:
        torch.ones(3, device="cuda").exp()
    assert any(each.name == "aten::exp" for each in mine.events())
