"""Recorded memory on a real GPU: marks by the allocator's counters, and categories that add up."""

from pathlib import Path

import pytest

from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.messages import MemoryRecorded
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.parameters import n_parameters
from peakward.records.measurement import Protocol
from peakward.traces.memory.case_memory import recorded
from peakward.traces.memory.memory import memory
from peakward.traces.memory.step_clock import step_clock
from peakward.traces.readers import torch_allocations
from peakward.traces.trace import Trace

pytestmark = pytest.mark.gpu

BLOCK_BYTES = 512
N_TENSORS = 6 * 3 + 3
STATE_TENSORS = 2 * N_TENSORS


@pytest.fixture
def record(tmp_path):
    """record(case): its record and its worker's marks."""

    def make(case):
        path = tmp_path / "m.pickle.gz"
        for each in tmp_path.glob("m.pickle.gz*"):
            each.unlink()
        with Workers() as workers:
            answer = workers.record_memory(case, path)
        assert isinstance(answer, MemoryRecorded), answer
        snapshot = memory(path)
        assert snapshot.report().devices[0].check.n_contradicting_events == 0
        return recorded(snapshot, answer.marks, "cuda"), answer.marks

    return make


def purposes(found, phase):
    (peak,) = [each for each in found.phases if each.phase == phase]
    shares = {each.name: each.n_bytes for each in peak.purposes}
    assert sum(shares.values()) == peak.allocated_bytes
    return shares


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_what_is_held_adds_up_to_what_torch_counts(make_case, record, precision):
    case = make_case(precision=precision)
    found, marks = record(case)
    assert found.peak_bytes == marks.peak_allocated_bytes
    assert max(sum(each.n_bytes) for each in found.timeline) == max(
        each.allocated_bytes for each in found.phases
    )
    shares = purposes(found, "optimizer")
    width = 2 if precision == "bf16" else 4
    exact = width * n_parameters(case.model)
    # Each tensor's block is at most 511 bytes longer; a large one may keep up to 1 MiB uncut.
    assert 0 <= shares["parameters"] - exact < N_TENSORS * BLOCK_BYTES
    assert 0 <= shares["gradients"] - exact < N_TENSORS * BLOCK_BYTES
    assert 0 <= shares["optimizer_state"] - 2 * exact < STATE_TENSORS * BLOCK_BYTES
    assert shares["workspace"] > 0


def test_it_is_what_was_predicted(make_case, record):
    case = make_case(workload={"batch_size": 8})
    found, _ = record(case)
    predicted = peak_memory(case).peak
    shares = purposes(found, peak_memory(case).phase)
    assert shares["workspace"] == predicted.workspace_bytes
    assert found.peak_bytes == pytest.approx(predicted.total_bytes, rel=0.01)


def test_recording_changes_no_peak(make_case, record):
    case = make_case(workload={"batch_size": 8})
    protocol = Protocol(warmup_steps=1, min_steps=1, max_steps=1, phases=False)
    with Workers() as workers:
        measured = workers.measure(case, protocol)
    assert record(case)[0].peak_bytes == measured.memory.peak_allocated_bytes


def test_modules_and_lines_are_told(make_case, record):
    case = make_case(workload={"batch_size": 8})
    found, _ = record(case)
    by_module = {each.module: each.n_bytes for each in found.modules}
    scores = 8 * case.model.n_heads * 64 * 64 * 4
    assert by_module["blocks.1.attention.softmax"] == scores
    assert any(each.source and "reference.py" in each.source for each in found.largest)


def test_recomputed_activations_are_told(make_case, record):
    plain, _ = record(make_case(workload={"batch_size": 8}))
    again, _ = record(make_case(workload={"batch_size": 8}, checkpointing="every-block"))
    kept = purposes(again, "forward")["activations"]
    assert kept < purposes(plain, "forward")["activations"] / 2
    assert {each.module for each in again.modules} >= {"blocks.0.ff", "blocks.2.ff"}


@pytest.fixture
def clock(tmp_path):
    """clock(case): the record of its step, and that on the clock of its kernels."""

    def make(case):
        path = tmp_path / "c.pickle.gz"
        for each in tmp_path.glob("c.pickle.gz*"):
            each.unlink()
        with Workers() as workers:
            answer = workers.record_memory(case, path)
        assert isinstance(answer, MemoryRecorded), answer
        snapshot, trace = memory(path), Path(answer.trace)
        step = recorded(snapshot, answer.marks, "cuda")
        seen = torch_allocations.read(trace)
        return step, step_clock(snapshot, answer.marks, step, Trace.open(trace), seen)

    return make


@pytest.mark.parametrize("checkpointing", ["none", "every-block"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_step_is_joined_to_its_kernels(make_case, clock, precision, checkpointing):
    """The profiler tells of every allocation and free that the allocator's history has, in its order,
    on autograd's thread too: else this raises."""
    case = make_case(workload={"batch_size": 8}, precision=precision, checkpointing=checkpointing)
    step, found = clock(case)
    assert [each.phase for each in found.peaks] == ["forward", "backward", "optimizer"]
    times = [each.at_s for each in found.peaks]
    assert times == sorted(times)
    assert times[0] > 0
    assert len(found.times_s) == len(step.timeline)
    assert list(found.times_s) == sorted(found.times_s)
    begins = [each.begin_s for each in found.kernels]
    assert [each.phase for each in found.kernels] == ["forward", "backward", "optimizer"]
    assert begins == sorted(begins)
    for peak, work in zip(found.peaks, found.kernels, strict=True):
        assert peak.operator is None or peak.operator.startswith(("aten::", "peakward::"))
        assert peak.host_ahead_s >= 0
        # The device does a phase's work after the host has asked for it.
        assert work.end_s > peak.at_s or peak.kernel is None
        assert (peak.kernel is None) == (peak.category is None)


def test_a_forward_pass_is_joined_too(make_case, clock):
    _, found = clock(make_case(workload={"batch_size": 8}, pass_="forward"))
    assert [each.phase for each in found.kernels] == ["forward"]


def test_compiled_steps_are_joined_too(make_case, clock):
    step, found = clock(make_case(workload={"batch_size": 8}, compile="default"))
    assert len(found.peaks) == len(step.phases) == 3
