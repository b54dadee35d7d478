"""Every measured peak predicted, and every verdict, or the reason why it is not."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from accuracy.measured import Stored, device_key, is_of_former_kernels
from accuracy.records import Refusal
from accuracy.replay import FORMER_KERNELS
from peaks.records import Peak, Verdict
from peakward.hardware.devices import device
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.planning.forecast import room
from peakward.prediction.planning.site import Attempts, site
from peakward.records.case import ModelCase
from peakward.records.case_key import case_key
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement
from peakward.records.memory import MemoryPrediction
from peakward.report.cases import label


class Replay(NamedTuple):
    """Of all stored measurements."""

    peaks: list[Peak]
    verdicts: list[Verdict]
    refused: list[Refusal]


class _Once(NamedTuple):
    file: str
    case: ModelCase
    measurement: Measurement
    device: str


def replay(stored: Iterable[Stored]) -> Replay:
    """Each case once a device: its first measurement, for memory does not vary as time does."""
    peaks, verdicts, refused = [], [], Counter[str]()
    for each in _once(stored):
        if is_of_former_kernels(each.case, each.measurement.started_at):
            refused[FORMER_KERNELS] += 1
            continue
        try:
            predicted = peak_memory(each.case)
        except PeakwardError as error:
            refused[str(error).partition(":")[0]] += 1
            continue
        if each.measurement.memory is not None:
            peaks.append(_peak(each, predicted))
        verdicts.append(_verdict(each, predicted))
    return Replay(peaks, verdicts, [Refusal(reason=r, n=n) for r, n in refused.most_common()])


def _once(stored: Iterable[Stored]) -> list[_Once]:
    found: dict[tuple[ModelCase, str], _Once] = {}
    for file, each in stored:
        key = device_key(each.environment)
        if isinstance(each.case, ModelCase) and each.status in ("ok", "oom") and key is not None:
            found.setdefault((each.case, key), _Once(file, each.case, each, key))
    return list(found.values())


def _peak(each: _Once, predicted: MemoryPrediction) -> Peak:
    memory = each.measurement.memory
    assert memory is not None
    return Peak(
        key=case_key(each.case),
        label=label(each.case),
        case=each.case,
        device=each.device,
        file=each.file,
        measured_bytes=memory.peak_allocated_bytes,
        measured_reserved_bytes=memory.peak_reserved_bytes,
        predicted=predicted.peak,
        predicted_reserved_bytes=predicted.reserved_bytes,
        phase=predicted.phase,
        basis=predicted.basis,
    )


def _verdict(each: _Once, predicted: MemoryPrediction) -> Verdict:
    on = site(device(each.device))
    found = room(each.case, predicted, on, Attempts())
    return Verdict(
        key=case_key(each.case),
        label=label(each.case),
        device=each.device,
        limit_bytes=on.limit_bytes(each.case.memory_limit_bytes),
        own_limit=each.case.memory_limit_bytes is not None,
        needed_bytes=found.needed_bytes,
        fits=found.fits,
        ended="ok" if each.measurement.status == "ok" else "oom",
    )
