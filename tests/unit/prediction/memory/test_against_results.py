"""The stored measurements of an H200 and an H100, predicted: the errors may shrink, never grow."""

from functools import cache
from statistics import median

import pytest

from accuracy.measured import is_of_former_kernels, studies
from peakward.levers.kv_cache import STORED
from peakward.prediction.memory.fit import fits, largest_batch
from peakward.prediction.memory.peak import CONTEXT_BYTES, peak_memory
from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from stored_results import FOLDER


def is_eager(case):
    configuration = case.configuration
    return configuration.compile == "none" and not configuration.cuda_graphs


@cache
def measured() -> list[tuple[ModelCase, Measurement]]:
    """The first measurement of each case on each GPU, whatever became of it.

    What a loader feeds is not predicted, nor a cache in fewer bits, nor kernels that the code no longer has.
    """
    found: dict[tuple[ModelCase, str | None], tuple[ModelCase, Measurement]] = {}
    for study in studies(FOLDER).values():
        for each in study.measurements:
            if not isinstance(each.case, ModelCase) or each.case.workload.data is not None:
                continue
            if each.case.configuration.kv_cache in STORED:
                continue
            former = is_of_former_kernels(each.case, each.started_at)
            if each.case.device == "cuda" and not former:
                found.setdefault((each.case, each.environment.device_name), (each.case, each))
    return list(found.values())


def memories(wanted):
    """Cases and what they held."""
    return [(k, m.memory) for k, m in measured() if m.memory is not None and wanted(k)]


def errors(pairs):
    return [abs(predicted / got - 1) for predicted, got in pairs]


@pytest.mark.full
def test_the_peak_of_eager_cases():
    found = errors(
        (peak_memory(case).peak_bytes, use.peak_allocated_bytes) for case, use in memories(is_eager)
    )
    assert len(found) >= 220
    assert median(found) < 0.0001
    assert max(found) < 0.014


@pytest.mark.full
def test_what_eager_cases_reserve():
    """Where nothing limits it: near a limit the allocator returns what it does not need."""
    unlimited = memories(lambda case: is_eager(case) and case.memory_limit_bytes is None)
    found = errors(
        (peak_memory(case).reserved_bytes, use.peak_reserved_bytes) for case, use in unlimited
    )
    assert len(found) >= 220
    assert median(found) < 0.0027
    assert max(found) < 0.106


@pytest.mark.full
def test_compiled_cases():
    """Their blocks and readout by the buffers that Inductor gives them."""
    compiled = [
        (told.peak_bytes, use.peak_allocated_bytes)
        for case, use in memories(lambda case: case.configuration.compile == "default")
        if (told := peak_memory(case)).basis == "step"
    ]
    found = errors(compiled)
    assert len(found) >= 77
    assert median(found) < 0.0002
    assert max(found) < 0.0055


@pytest.mark.full
def test_what_is_told_by_the_eager_step_says_so_and_is_as_far_off_as_is_said():
    """Compiled prefill, so far: 1.4% less than told."""
    held = [
        use.peak_allocated_bytes / told.peak_bytes
        for case, use in memories(lambda case: case.configuration.compile == "default")
        if (told := peak_memory(case)).basis == "eager step"
    ]
    assert held
    assert 1 - 0.17 <= min(held) <= max(held) <= 1 + 0.08


@pytest.mark.full
def test_what_compiled_cases_reserve():
    """Of lengths that vary, and in a CUDA graph, it is not predicted."""
    compiled = memories(lambda case: case.configuration.compile == "default")
    pairs = [(peak_memory(case).reserved_bytes, use.peak_reserved_bytes) for case, use in compiled]
    found = errors(pair for pair in pairs if pair[0] is not None)
    assert len(found) >= 73
    assert median(found) < 0.006
    assert max(found) < 0.075


def test_a_captured_step_holds_a_workspace_more():
    captured = memories(
        lambda case: case.configuration.cuda_graphs and case.configuration.compile == "none"
    )
    found = errors(
        (peak_memory(case).peak_bytes, use.peak_allocated_bytes) for case, use in captured
    )
    assert len(found) >= 2
    assert max(found) < 0.015


def test_which_cases_fit_their_limit():
    limited = [(k, m) for k, m in measured() if k.memory_limit_bytes and is_eager(k)]
    wrong = [m.reason for k, m in limited if fits(k, k.memory_limit_bytes) != (m.status == "ok")]
    assert len(limited) >= 40
    # The allocator was given the limit less the context before kernels were loaded, and so returned
    # nothing; with the final context it was 0.22 GiB over.
    assert wrong == ["reserved 39.47 GiB and a context of 0.75 GiB exceed the limit of 40.00 GiB"]


@pytest.mark.parametrize(
    ("mode", "fitting", "failing"), [("none", 31, 33), ("every-block", 111, 119)]
)
def test_the_largest_batch_lies_in_the_measured_bracket(mode, fitting, failing):
    tried = [
        case
        for case, _ in measured()
        if case.memory_limit_bytes == 24 * 2**30
        and case.configuration.checkpointing == mode
        and case.workload.seq_len == 1024
    ]
    assert {fitting, failing} <= {case.workload.batch_size for case in tried}
    assert fitting <= largest_batch(tried[0], 24 * 2**30) < failing


def test_the_context_is_the_largest_measured_of_eager_cases():
    contexts = [use.context_bytes for _, use in memories(is_eager)]
    assert CONTEXT_BYTES - 2**20 < max(contexts) <= CONTEXT_BYTES
