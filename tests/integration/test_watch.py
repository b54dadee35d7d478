"""`pw.watch` around a real training loop on the CPU: a planted fault is found while it runs."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import count, cycle
from pathlib import Path

import pytest
import torch

import peakward as pw
from peakward.lab.measure.live import loop
from peakward.lab.measure.live.loop import is_profiled

WAIT_S = 0.05
LONGEST_S = 600.0
"""Against a hang alone: a window is read within seconds, on a crowded machine within minutes."""


def batches(*, is_slow):
    """A slow loader takes WAIT_S, and as long as the step that it is waited for in: half of the loop's time
    and more, however much the machine's other work holds up the steps."""
    given_s = None
    for x in cycle([torch.randn(128, 512) for _ in range(8)]):
        if is_slow:
            time.sleep(WAIT_S if given_s is None else WAIT_S + time.perf_counter() - given_s)
        given_s = time.perf_counter()
        yield x


def trained(watch, *, is_slow=False, until):
    """Steps until it is so, or LONGEST_S; how many there were."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    began_s, steps = time.perf_counter(), count(1)
    for x in watch.batches(batches(is_slow=is_slow)):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        watch.step()
        n = next(steps)
        if until(n) or time.perf_counter() - began_s > LONGEST_S:
            return n
    return 0


@pytest.fixture(autouse=True)
def as_before():
    """Nothing of the watch stays."""
    callbacks, threads = list(gc.callbacks), threading.active_count()
    yield
    assert gc.callbacks == callbacks
    assert threading.active_count() == threads
    assert not is_profiled()


def test_a_slow_loader_is_found_while_the_loop_runs():
    told, during = [], []
    with pw.watch(every=25, on_findings=told.append) as watch:
        trained(watch, is_slow=True, until=lambda _: bool(told))
        during.extend(told)
        folder = Path(watch._folder.name)
    assert during, "the finding did not come while the loop ran"
    first = next(each for each in during[0].findings if each.code == "LOOP001")
    assert first.share > 0.4
    assert during[0].basis == "watched step"
    assert watch.profile.n_steps == 3
    assert watch.profile.is_of_host
    assert watch.times.waited_s > WAIT_S * watch.times.n_steps
    assert "LOOP001" in [each.code for each in watch.findings]
    assert not folder.exists()


def test_the_same_loop_without_it_gives_none(monkeypatch):
    """By the time of its own thread: what another program takes is a wait too, or a pause."""
    by_thread = partial(loop.LiveLoop, clock=time.thread_time)
    monkeypatch.setattr(loop, "LiveLoop", by_thread)
    told = []
    with pw.watch(every=25, on_findings=told.append) as watch:
        trained(watch, until=lambda n: n > 80 and watch.profile is not None)
    assert watch.profile is not None
    assert {"LOOP001", "LOOP002"} <= set(watch.diagnosis().clean)
    assert not {"LOOP001", "LOOP002"} & {each.code for found in told for each in found.findings}


INTERRUPTED = """
import itertools, torch
import peakward as pw

with pw.watch(every=10) as watch:
    for n in itertools.count(1):
        torch.ones(4).exp()
        watch.step()
        if n == 14:
            print(watch._folder.name, watch._reader.is_ready(), flush=True)
"""


def test_ctrl_c_ends_the_loop_and_the_reader(tmp_path):
    """As a terminal sends it: to the whole group, while a window is being read."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    ) as process:
        folder, ready = process.stdout.readline().split()
        assert ready == "False"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LONGEST_S)
    assert process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "peakward watch" not in said
    assert not Path(folder).exists()
