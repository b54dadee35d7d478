"""Measures a case of several ranks by a job of them, and calibrates the links between devices. Imports no
torch."""

from collections.abc import Callable
from datetime import UTC, datetime
from math import isfinite
from statistics import median
from time import monotonic

import msgspec

from peakward.lab.measure.messages import Failed, Measured
from peakward.lab.parallel.launch import RankError, StoppedError, launch
from peakward.records.case import CollectivesCase, DeviceType, LayoutCase, RanksCase
from peakward.records.errors import PeakwardError
from peakward.records.layout import Collective, expect_runnable
from peakward.records.measurement import MemoryUse, Protocol, Run
from peakward.records.parallel import (
    Arm,
    ArmRun,
    ArmsRequest,
    CollectiveTime,
    LinkCalibration,
    RanksWork,
)
from peakward.stats.link_fit import bus_bytes, fitted

PATIENCE_S = 120.0
"""Without any rank's getting on: a cold compilation of a block takes up to a minute."""
WARMUP_STEPS = 4
MB = 10**6
SIZES_MB: dict[DeviceType, tuple[float, ...]] = {
    "cuda": (1, 3, 10, 30, 100, 300, 1000),
    "cpu": (0.1, 1, 3, 10, 30, 100),
}
"""gloo moves about 1 GB/s between processes of one machine."""


def measure(
    case: RanksCase,
    protocol: Protocol,
    timeout_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> Measured | Failed:
    """The answer of a job of the case's ranks. A failure of any kind is a status.

    Args:
        stopped: whether the user has ended the case.
    """
    try:
        if isinstance(case, CollectivesCase):
            return _collectives(case, timeout_s, stopped)
        return _layout(case, protocol, timeout_s, stopped)
    except StoppedError:
        return Failed(
            status="crashed", reason="interrupted by Ctrl-C in a job of ranks", ended_by="user"
        )
    except RankError as error:
        said = str(error)
        lacks = "OutOfMemory" in said or "out of memory" in said
        status = "oom" if lacks else "timeout" if error.is_late else "crashed"
        status = "invalid" if "expected a finite loss" in said else status
        return Failed(status=status, reason=said)  # type: ignore[arg-type]
    except PeakwardError as error:
        return Failed(status="invalid", reason=str(error))


def calibrate(
    n_ranks: int,
    device: DeviceType,
    *,
    sizes_mb: tuple[float, ...] | None = None,
    timeout_s: float = 180.0,
) -> LinkCalibration:
    """As `timed`, without the repeats."""
    return timed(n_ranks, device, sizes_mb=sizes_mb, timeout_s=timeout_s)[0]


def timed(
    n_ranks: int,
    device: DeviceType,
    *,
    sizes_mb: tuple[float, ...] | None = None,
    timeout_s: float = 180.0,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[LinkCalibration, tuple[float, ...]]:
    """Collectives of every size between so many ranks, and the fitted model: NCCL between GPUs, gloo between
    processes that share a processor; and the repeats of the largest all-reduce, in seconds.

    Raises:
        PeakwardError: more ranks than GPUs.
        RankError: a rank was lost.
    """
    sizes_mb = SIZES_MB[device] if sizes_mb is None else sizes_mb
    began_s, started_at = monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    arguments = {"sizes": [round(each * MB) for each in sizes_mb]}
    found = launch(
        "peakward.lab.parallel.collectives:measure",
        arguments,
        n_ranks=n_ranks,
        device=device,
        timeout_s=timeout_s,
        stopped=stopped,
    )[0]
    times = tuple(
        CollectiveTime(
            collective=name,
            n_bytes=n_bytes,
            time_s=median(repeats_s),
            bus_bytes_per_s=bus_bytes(name, n_bytes, n_ranks) / median(repeats_s),
        )
        for name, n_bytes, repeats_s in found["times"]
    )
    largest = max(sizes_mb)
    of_largest = next(
        repeats_s
        for name, n_bytes, repeats_s in found["times"]
        if name == "all-reduce" and n_bytes == round(largest * MB)
    )
    kinds: list[Collective] = list(dict.fromkeys(each.collective for each in times))
    several = len(sizes_mb) > 1
    links = LinkCalibration(
        started_at=started_at,
        wall_s=monotonic() - began_s,
        device_name=found["device_name"],
        n_ranks=n_ranks,
        backend=found["backend"],
        torch=found["torch"],
        times=times,
        fits=tuple(
            fitted([each for each in times if each.collective == kind], n_ranks)
            for kind in (kinds if several else ())
        ),
    )
    return links, tuple(of_largest)


def _collectives(case: CollectivesCase, timeout_s: float, stopped: Callable[[], bool]) -> Measured:
    found, steps_s = timed(
        case.n_ranks,
        case.device,
        sizes_mb=tuple(each / MB for each in case.sizes_bytes),
        timeout_s=timeout_s,
        stopped=stopped,
    )
    return Measured(
        run=Run(warmup_s=(), steps_s=steps_s),
        doubts=(),
        phases=(),
        memory=None,
        telemetry=None,
        compile=None,
        n_parameters=None,
        loss=None,
        collectives=found,
    )


def _layout(
    case: LayoutCase, protocol: Protocol, timeout_s: float, stopped: Callable[[], bool]
) -> Measured | Failed:
    expect_runnable(case.layout, case.layout.n_ranks)  # Before every rank imports torch to say so.
    began_s = monotonic()
    warmup = WARMUP_STEPS if protocol.warmup_steps is None else protocol.warmup_steps
    request = ArmsRequest(
        case=case.of_one_rank,
        arms=(
            Arm(
                name=case.layout.name,
                layout=case.layout,
                compiled=case.configuration.compile != "none",
            ),
        ),
        n_warmup=warmup,
        n_solo_steps=max(protocol.min_steps, 2),
        accounts=True,
    )
    answers = launch(
        "peakward.lab.parallel.arms:measure",
        msgspec.to_builtins(request),
        n_ranks=case.layout.n_ranks,
        device=case.device,
        timeout_s=timeout_s - (monotonic() - began_s),
        patience_s=PATIENCE_S,
        stopped=stopped,
    )
    runs = [msgspec.convert(each["runs"], list[ArmRun])[0] for each in answers]
    for number, each in enumerate(runs):
        if each.failed is not None:
            lacks = "OutOfMemory" in each.failed
            place = f"rank {number}: " if len(runs) > 1 else ""
            return Failed(status="oom" if lacks else "invalid", reason=f"{place}{each.failed}")
    for number, each in enumerate(runs):
        if each.loss is not None and not isfinite(each.loss):
            n = request.n_warmup + request.n_solo_steps
            said = f"rank {number}: expected a finite loss, got {each.loss} after {n} steps"
            return Failed(status="invalid", reason=said)
    peaks = [each.use.peak_bytes for each in runs if each.use.peak_bytes is not None]
    limit = case.memory_limit_bytes
    if limit is not None and peaks and max(peaks) > limit:
        return Failed(
            status="oom",
            reason=f"needs {max(peaks)} bytes on a rank, more than the limit of {limit}",
        )
    return Measured(
        run=Run(
            warmup_s=(),
            steps_s=tuple(max(each) for each in zip(*(run.steps_s for run in runs), strict=True)),
        ),
        doubts=(),
        phases=(),
        memory=MemoryUse(peak_allocated_bytes=max(peaks)) if peaks else None,
        telemetry=None,
        compile=None,
        n_parameters=answers[0]["n_parameters"],
        loss=next((each.loss for each in runs if each.loss is not None), None),
        ranks=RanksWork(backend=answers[0]["backend"], ranks=tuple(each.use for each in runs)),
    )
