"""`pw.watch` around a real training loop on the CPU: a planted fault is found while it runs."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count, cycle
from pathlib import Path

import pytest
import torch

import peakward as pw
from peakward.lab.measure.live.others import is_profiled

WAIT_S = 0.05
LONGEST_S = 120.0
"""Within which a window is read even on a crowded machine."""
OF_THE_MACHINE = {"LOOP003"}
"""Steps that another program held up are pauses too, and no fault of the loop."""


def batches(wait_s):
    made = [torch.randn(128, 512) for _ in range(8)]
    for x in cycle(made):
        if wait_s:
            time.sleep(wait_s)
        yield x


def trained(watch, *, wait_s=0.0, until):
    """Steps until it is so, or LONGEST_S; how many there were. Nearly all of one is products, so that
    what another program takes from it is seldom 3% of anything else."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    began_s, steps = time.perf_counter(), count(1)
    for x in watch.batches(batches(wait_s)):
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
        trained(watch, wait_s=WAIT_S, until=lambda _: bool(told))
        during.extend(told)
        folder = Path(watch._folder.name)
    assert during, "the finding did not come while the loop ran"
    first = next(each for each in during[0].findings if each.code == "LOOP001")
    assert first.share > 0.2
    assert during[0].basis == "watched step"
    assert watch.profile.n_steps == 3
    assert watch.profile.is_of_host
    assert watch.times.waited_s > WAIT_S * watch.times.n_steps
    assert "LOOP001" in [each.code for each in watch.findings]
    assert not folder.exists()


def test_the_same_loop_without_it_gives_none():
    told = []
    with pw.watch(every=25, on_findings=told.append) as watch:
        trained(watch, until=lambda n: n > 80 and watch.profile is not None)
    assert watch.profile is not None
    assert {"LOOP001", "LOOP002"} <= set(watch.diagnosis().clean)
    assert {each.code for found in told for each in found.findings} <= OF_THE_MACHINE


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
