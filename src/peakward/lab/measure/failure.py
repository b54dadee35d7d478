"""Turns an exception in the worker, or the worker's death, into a status with a reason. Pure, without
torch."""

import signal
import traceback
from collections.abc import Iterator
from itertools import pairwise

from peakward.lab.measure.messages import Failed
from peakward.records.errors import PeakwardError, SourceError, printable
from peakward.records.measurement import EndedBy, Status

OUT_OF_MEMORY_TEXTS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)
"""The words of torch, its libraries and the C++ runtime for lack of memory. torch.OutOfMemoryError is
the first."""
MAX_REASON = 300
SENT = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
"""The signals by which another process, or the kernel for lack of memory, ends a process. A fault of
its own raises none of these."""


class OverLimitError(Exception):
    """A memory limit is exceeded before the case has taken anything, or was exceeded by the case."""


def of_exception(error: BaseException) -> Failed:
    """The failure of a case whose step raised `error`.

    The compiler wraps the errors of its backend, so causes are looked at too.
    """
    if isinstance(error, PeakwardError):
        is_there = not isinstance(error, SourceError)
        return Failed(
            status="invalid", reason=str(error), ended_by="case" if is_there else "outside"
        )
    for each in _chain(error):
        if _is_out_of_memory(each):
            return Failed(status="oom", reason=_line(each))
    return Failed(status="crashed", reason=_line(error))


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | OverLimitError):
        return True
    return isinstance(error, RuntimeError | OSError) and _names_out_of_memory(str(error))


def _names_out_of_memory(text: str) -> bool:
    return any(each in text for each in OUT_OF_MEMORY_TEXTS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__ or error


def _line(error: BaseException) -> str:
    """The last line of the traceback. For a message over several lines it is the first one, with the
    next where the first only announces it."""
    if isinstance(error, OverLimitError):
        return str(error)
    said = "".join(traceback.format_exception_only(error)).splitlines()
    first, *rest = [line for line in said if line.strip()]
    return shorten(" ".join((first, *rest[:1])) if first.endswith(":") else first)


def shorten(text: str) -> str:
    """At most `MAX_REASON` characters of one printable line."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def of_death(
    return_code: int | None, *, oom_kills_rose: bool, stderr: str, stage: str, begun: bool
) -> Failed:
    """The failure of a case whose worker died by itself.

    Args:
        return_code: as subprocess gives it, negative for a signal; None where the worker lived on
        without an answer.
        oom_kills_rose: whether the kernel killed for memory since the case began.
        stderr: the end of the worker's output.
        stage: the stage that the worker last reported.
        begun: whether the worker reported the case at all: an earlier death is not caused by the case.
    """
    ended_by: EndedBy = "case" if begun and return_code not in SENT else "outside"
    if return_code == -signal.SIGKILL and oom_kills_rose:
        reason = f"killed by the kernel's OOM killer while {stage}"
        return Failed(status="oom", reason=reason, ended_by=ended_by)
    last = _last_words(stderr)
    if return_code is None:
        how = f"closed its pipe while {stage}{last}"
    elif return_code < 0:
        how = f"killed by {_signal_name(-return_code)} while {stage}{last}"
    else:
        how = f"exited with code {return_code} while {stage}{last}"
    status: Status = "oom" if _names_out_of_memory(stderr[-4000:]) else "crashed"
    return Failed(status=status, reason=how, ended_by=ended_by)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(stderr: str) -> str:
    """The innermost Python frame of the thread that faulthandler blames, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return ""
    for before, line in pairwise(lines):
        if before.startswith("Current thread") and line.startswith("File "):
            return f", in {shorten(line)}"
    return f": {shorten(lines[-1])}"
