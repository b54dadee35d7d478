"""What exceptions and deaths are called."""

import signal

import pytest
import torch

from peakward.lab.measure import failure
from peakward.lab.measure.failure import OverLimitError
from peakward.records.errors import PeakwardError, SourceError


def wrapped(cause):
    try:
        try:
            raise cause
        except Exception as error:
            raise RuntimeError("backend='inductor' raised") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "oom"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
            ),
            "oom",
        ),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "oom"),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            "oom",
        ),
        (MemoryError(), "oom"),
        (OSError(12, "Cannot allocate memory"), "oom"),
        (OverLimitError("the context alone takes 1 GiB of the limit of 0.5 GiB"), "oom"),
        (wrapped(torch.OutOfMemoryError("CUDA out of memory.")), "oom"),
        (PeakwardError("expected heads that divide d_model, got 7"), "invalid"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed"),
        (KeyError("Cannot allocate memory"), "crashed"),
        (wrapped(ValueError("bad shape")), "crashed"),
    ],
)
def test_status_of_an_exception(error, status):
    assert failure.of_exception(error).status == status


def test_the_reason_is_one_line():
    error = RuntimeError(
        "CUDA error: an illegal memory access\nCUDA kernel errors might\nCompile with"
    )
    assert (
        failure.of_exception(error).reason == "RuntimeError: CUDA error: an illegal memory access"
    )
    announced = RuntimeError(
        "backend='inductor' raised:\n\nCppCompileError: C++ compile error\n\nCommand:"
    )
    assert failure.of_exception(announced).reason == (
        "RuntimeError: backend='inductor' raised: CppCompileError: C++ compile error"
    )
    assert failure.of_exception(RuntimeError("none:")).reason == "RuntimeError: none:"
    assert failure.of_exception(PeakwardError("expected a, got b")).reason == "expected a, got b"
    assert failure.of_exception(MemoryError()).reason == "MemoryError"
    assert len(failure.of_exception(ValueError("x" * 10_000)).reason) <= failure.MAX_REASON


def test_the_reason_of_a_wrapped_oom_is_the_oom():
    assert failure.of_exception(wrapped(MemoryError("no room"))).reason == "MemoryError: no room"


def test_an_exception_that_is_its_own_cause_ends():
    error = ValueError("round")
    error.__context__ = other = KeyError("and round")
    other.__context__ = error
    assert failure.of_exception(error).status == "crashed"


FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007e (most recent call first):
  File "/site/worker.py", line 3 in _listen

Current thread 0x00007f (most recent call first):
  File "/site/torch/nn/functional.py", line 12 in linear
  File "/site/x.py", line 1 in step
"""


@pytest.mark.parametrize(
    ("code", "rose", "stderr", "status", "reason"),
    [
        (-9, True, "", "oom", "killed by the kernel's OOM killer while timing"),
        (-9, False, "", "crashed", "killed by SIGKILL while timing"),
        (
            -11,
            False,
            FAULT,
            "crashed",
            'killed by SIGSEGV while timing, in File "/site/torch/nn/functional.py", line 12 in linear',
        ),
        (-11, True, "", "crashed", "killed by SIGSEGV while timing"),
        (
            -6,
            False,
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "oom",
            "killed by SIGABRT while timing: what(): std::bad_alloc",
        ),
        (3, False, "line\nlast line\n", "crashed", "exited with code 3 while timing: last line"),
        (0, False, "", "crashed", "exited with code 0 while timing"),
        (-64, False, "", "crashed", "killed by SIGRTMAX while timing"),
        (-99, False, "", "crashed", "killed by signal 99 while timing"),
        (None, False, "", "crashed", "closed its pipe while timing"),
    ],
)
def test_status_of_a_death(code, rose, stderr, status, reason):
    found = failure.of_death(code, oom_kills_rose=rose, stderr=stderr, stage="timing", begun=True)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("code", "begun", "ended_by"),
    [
        (-signal.SIGKILL, True, "outside"),
        (-signal.SIGTERM, True, "outside"),
        (-signal.SIGHUP, True, "outside"),
        (-signal.SIGSEGV, True, "case"),
        (-signal.SIGABRT, True, "case"),
        (3, True, "case"),
        (None, True, "case"),
        (3, False, "outside"),
        (-signal.SIGSEGV, False, "outside"),
        (None, False, "outside"),
    ],
)
@pytest.mark.parametrize("rose", [False, True])
def test_who_ended_a_worker(code, begun, ended_by, rose):
    found = failure.of_death(code, oom_kills_rose=rose, stderr="", stage="timing", begun=begun)
    assert found.ended_by == ended_by


def test_a_source_that_changed_meanwhile_says_nothing_of_its_case():
    found = failure.of_exception(SourceError("expected it as it was"))
    assert (found.status, found.ended_by) == ("invalid", "outside")
    assert failure.of_exception(PeakwardError("expected heads")).ended_by == "case"


def test_signal_numbers_are_those_of_this_system():
    assert -signal.SIGSEGV == -11
