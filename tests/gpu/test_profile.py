"""Profiles on a real GPU: kernels and ranges in the trace, NVTX in step with them, graphs."""

import gzip
import json
import threading
from collections import defaultdict
from contextlib import nullcontext

import msgspec
import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import jobs
from peakward.lab.measure import profile as profiling
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.messages import Profiled, ProfileRequest
from peakward.lab.measure.site import Site
from peakward.records.case import OperatorCase
from peakward.traces.trace import Trace

pytestmark = pytest.mark.gpu

N_LAYERS, N_STEPS = 3, 2
PARTS = ("attention.scores", "attention.softmax", "attention.values")


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.fixture
def traced(tmp_path):
    """traced(case, prepare=): the events of a trace of its steps, taken in this process."""
    path = tmp_path / "t.json.gz"

    def trace(case, prepare=prepare):
        bench = jobs.Bench(Site(), prepare, lambda _event: None)
        request = ProfileRequest(case=case, path=str(path), n_steps=N_STEPS, with_stack=False)
        assert profiling.profile(request, bench).profiled_step_s > 0
        return read(path)

    return trace


def of(events, category):
    return [each for each in events if each.get("cat") == category]


def names(events, category="user_annotation"):
    """The ranges, without what they all begin with."""
    found = (each["name"] for each in of(events, category))
    return [each.removeprefix("peakward::") for each in found if each.startswith("peakward::")]


def launched_in(events, name):
    """The kernels whose launch lies in a range of that name, on the range's thread."""
    ranges = [each for each in of(events, "user_annotation") if each["name"] == f"peakward::{name}"]
    calls = {
        each["args"]["correlation"]
        for each in [*of(events, "cuda_runtime"), *of(events, "cuda_driver")]
        if "correlation" in each["args"]
        and any(
            outer["tid"] == each["tid"]
            and outer["ts"] <= each["ts"]
            and each["ts"] + each["dur"] <= outer["ts"] + outer["dur"]
            for outer in ranges
        )
    }
    return [each for each in of(events, "kernel") if each["args"]["correlation"] in calls]


def test_kernels_lie_in_the_ranges_that_launched_them(make_case, traced):
    events = traced(make_case())
    found = names(events)
    assert found.count("step") == found.count("forward") == found.count("backward") == N_STEPS
    for n in range(N_LAYERS):
        assert found.count(f"block {n}") == N_STEPS
        assert launched_in(events, f"block {n}")
    for part in ("attention", *PARTS):
        assert found.count(part) == N_LAYERS * N_STEPS
        assert len(launched_in(events, part)) >= N_LAYERS * N_STEPS
    softmax = launched_in(events, "attention.softmax")
    assert len(softmax) == N_LAYERS * N_STEPS
    assert all("softmax" in each["name"].lower() for each in softmax)
    assert launched_in(events, "optimizer")
    assert "attention.softmax" in names(events, "gpu_user_annotation")


class Unranged:
    """A prepared case that opens no ranges inside its model."""

    def __init__(self, prepared):
        self.step, self.uncaptured = prepared.step, prepared.uncaptured

    def ranged(self):
        return nullcontext()


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_ranges_add_no_kernel_and_change_no_bit(checkpointing, make_case, traced):
    case = make_case(pass_="forward_backward", checkpointing=checkpointing)

    def kernels(events):
        return sorted(each["name"] for each in of(events, "kernel"))

    with prepare(case) as step:
        plain = kernels(traced(case, lambda _case: nullcontext(Unranged(step))))
        ranged = kernels(traced(case, lambda _case: nullcontext(step)))
        assert plain == ranged
        step.rewind()
        step.step()
        loss = step.loss()
        step.rewind()
        with step.ranged():
            step.step()
        assert step.loss() == loss


@pytest.mark.parametrize("checkpointing", ["none", "every-block", "selective"])
def test_nvtx_is_pushed_and_popped_on_each_thread(checkpointing, make_case, traced, monkeypatch):
    """A recomputed block opens its ranges on autograd's thread, and torch stops it early."""
    open_ranges, pushed = defaultdict(list), []
    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop

    def pushing(name):
        pushed.append(name)
        open_ranges[threading.get_ident()].append(name)
        return push(name)

    def popping():
        open_ranges[threading.get_ident()].pop()
        return pop()

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", pushing)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", popping)
    events = traced(make_case(checkpointing=checkpointing))
    assert not any(open_ranges.values())
    in_trace = names(events)
    assert len(pushed) * N_STEPS == len(in_trace) * (N_STEPS + 1)  # One step precedes the trace.
    assert {each.removeprefix("peakward::") for each in pushed} == set(in_trace)
    times = 1 if checkpointing == "none" else 2
    assert in_trace.count("block 0") == times * N_STEPS


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_of_a_captured_step_the_step_remains_and_its_rehearsal(pass_, make_case, traced):
    events = traced(make_case(cuda_graphs=True, pass_=pass_))
    assert names(events).count("step") == N_STEPS
    assert names(events).count("rehearsal") == names(events).count("forward") == 1
    assert names(events)[-N_STEPS:] == ["step"] * N_STEPS
    launches = [
        each for each in of(events, "cuda_runtime") if each["name"].startswith("cudaGraphLaunch")
    ]
    assert len(launches) == N_STEPS
    assert len(launched_in(events, "step")) > N_STEPS


@pytest.mark.parametrize("compile_", ["none", "default"])
def test_a_captured_step_s_kernels_have_the_phases_of_an_eager_one(compile_, make_case, tmp_path):
    """Every kernel tied, and as many of both passes as where nothing is captured; a capturable AdamW
    has kernels of its own."""

    def phases(**configuration):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json.gz"
        case = make_case(compile=compile_, attention="sdpa", precision="bf16", **configuration)
        with Workers() as workers:
            found = workers.profile(case, path, n_steps=N_STEPS)
        assert isinstance(found, Profiled), found
        trace = Trace.open(path)
        assert not trace.phases.undivided.any()
        return {each.phase: each.n for each in trace.profile().phases}

    captured, eager = phases(cuda_graphs=True), phases()
    assert captured["optimizer"] > 0
    for phase in ("forward", "backward"):
        assert captured[phase] == eager[phase]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_blocks_keep_their_own_range_alone(mode, make_case, traced):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    events = traced(make_case(compile=mode, pass_="forward_backward"))
    assert set(names(events)) == {
        "step",
        "forward",
        "backward",
        *(f"block {n}" for n in range(N_LAYERS)),
    }
    assert launched_in(events, "block 1")
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    torch._dynamo.reset()


def test_an_operator_has_its_parts(traced):
    case = OperatorCase(
        batch_size=2, n_heads=4, seq_len=256, head_dim=64, precision="bf16", device="cuda"
    )
    events = traced(case)
    for part in PARTS:
        assert names(events).count(part) == N_STEPS
        assert len(launched_in(events, part)) >= N_STEPS
    flash = traced(msgspec.structs.replace(case, attention="sdpa-flash"))
    assert set(names(flash)) == {"step", "forward", "attention"}
    assert launched_in(flash, "attention")


def test_a_worker_writes_it_in_silence(make_case, tmp_path, capfd):
    path = tmp_path / "t.json.gz"
    with Workers() as workers:
        found = workers.profile(make_case(attention="sdpa"), path, n_steps=N_STEPS)
        assert isinstance(found, Profiled), found
    assert found.profiled_step_s > 0
    assert of(read(path), "kernel")
    assert capfd.readouterr() == ("", "")


def test_profiles_of_one_worker_tell_what_those_of_two_do(make_case, tmp_path):
    """Twice a captured step after an eager one: a profiler that attaches itself again misses nothing."""
    cases = [make_case(attention="sdpa"), *[make_case(attention="sdpa", cuda_graphs=True)] * 2]

    def kernels(workers, case):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json.gz"
        found = workers.profile(case, path, n_steps=N_STEPS)
        assert isinstance(found, Profiled), found
        return sorted(each["name"] for each in of(read(path), "kernel"))

    with Workers() as workers:
        together = [kernels(workers, case) for case in cases]
    for case, found in zip(cases, together, strict=True):
        with Workers() as workers:
            assert kernels(workers, case) == found


def test_a_case_that_does_not_fit_is_an_oom(make_case, tmp_path):
    case = msgspec.structs.replace(
        make_case(workload={"batch_size": 4096}), memory_limit_bytes=2**30
    )
    with Workers() as workers:
        found = workers.profile(case, tmp_path / "t.json.gz")
    assert found.status == "oom"
    assert list(tmp_path.iterdir()) == []
