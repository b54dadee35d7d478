"""Batches of text on a GPU: equal however they come there, and the wait for them seen."""

import time

import msgspec
import pytest
import torch

from peakward.lab.data.feed import Feed
from peakward.lab.data.tokens import CachedStream
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.isolated import Workers
from peakward.records.case import Source, TextData
from peakward.records.measurement import Protocol

pytestmark = pytest.mark.gpu
TEXT = TextData(text=Source("python-topics"))
DELAY_S = 0.02
"""Of a sequence: the steps here take the GPU far less."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def fed(make_case):
    """fed(settings of the case, **of its data) on CUDA."""

    def make(settings=None, **data):
        changed = msgspec.structs.replace(TEXT, **data)
        return make_case(workload={"data": changed}, **(settings or {}))

    return make


def first_batches(case, n=6):
    feed = Feed(case)
    return [tensor.clone() for _ in range(n) for batch in feed() for tensor in batch]


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("tokenise", ["cached", "on-the-fly"])
@pytest.mark.parametrize(
    ("pin_memory", "non_blocking"), [(False, True), (True, False), (True, True)]
)
def test_copies_change_no_batch(fed, pin_memory, non_blocking, tokenise, n_workers):
    mine = first_batches(
        fed(
            pin_memory=pin_memory,
            non_blocking=non_blocking,
            tokenise=tokenise,
            n_workers=n_workers,
        )
    )
    plain = first_batches(fed())
    assert all(each.is_cuda for each in mine)
    assert all(map(torch.equal, mine, plain))


def losses(case, n=5):
    """Of steps that change nothing, so that each depends on its batch alone."""
    found = []
    with prepare(case) as step:
        for _ in range(n):
            step.step()
            found.append(step.loss())
    return found


@pytest.mark.parametrize("settings", [{}, {"cuda_graphs": True}])
def test_each_step_gets_its_batch(fed, settings):
    plain = losses(fed({"pass_": "forward_backward"}))
    data = {"pin_memory": True, "non_blocking": True, "n_workers": 2}
    mine = losses(fed({"pass_": "forward_backward", **settings}, **data))
    assert mine == pytest.approx(plain, rel=2.0**-20)
    assert len(set(plain)) == 5


def test_a_slow_loader_leaves_the_gpu_idle(fed, monkeypatch):
    real = CachedStream.read

    def slow(self, start, length):
        time.sleep(DELAY_S)
        return real(self, start, length)

    monkeypatch.setattr(CachedStream, "read", slow)
    with prepare(fed()) as step:
        for _ in range(8):
            step.step()
        use = step.feeding(5)
    assert len(use.idle_s) == len(use.wait_s) == 5
    for idle_s, wait_s in zip(use.idle_s, use.wait_s, strict=True):
        assert wait_s >= 2 * DELAY_S, "two sequences a batch"
        assert 0.9 * 2 * DELAY_S <= idle_s <= wait_s + 1e-3


def test_a_gpu_with_work_left_does_not_idle(fed):
    with prepare(fed()) as step:
        step.step()
        torch.cuda._sleep(200_000_000)  # cycles: some tenth of a second
        step.step()
        use = step.feeding(1)
    assert use.wait_s[0] < 0.05
    assert use.idle_s[0] < 1e-3


def test_a_worker_process_measures_it(fed):
    protocol = Protocol(warmup_steps=20, min_steps=30, max_timed_s=0.5, phases=False)
    with Workers() as workers:
        measured = workers.measure(fed(n_workers=2, pin_memory=True, non_blocking=True), protocol)
    assert measured.status == "ok", measured.reason
    assert len(measured.feeding.idle_s) == len(measured.runs[0].steps_s)
    assert sum(measured.feeding.idle_s) <= sum(measured.runs[0].steps_s)
