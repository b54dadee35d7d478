"""The time that a step on several GPUs of one node waits for communication.

Gradients are reduced once a step. ddp reduces them in buckets while the backward pass goes on; only
the last bucket comes after it. fsdp gathers each block's parameters ahead of its forward pass and
again ahead of its backward pass, and reduces its gradients behind it; the first block's gathering
and the last one's reduction have nothing to hide behind. That the kernels of a collective take
multiprocessors from those of the step is left out; so are latencies, and more than one node.
"""

from collections.abc import Sequence
from typing import NamedTuple

from peakward.levers.weights import QUANTISED
from peakward.prediction.parameters import n_parameters
from peakward.prediction.traffic import parameter_bytes
from peakward.records.case import ModelCase
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval, Phase
from peakward.records.plan import Communication, DeviceGroup
from peakward.records.prediction import StepTime

BUCKET_BYTES = 25 * 2**20
"""torch's DistributedDataParallel, `bucket_cap_mb`."""


class _Sent(NamedTuple):
    """Bytes that a GPU sends, and what they may hide behind."""

    n_bytes: float
    phase: Phase
    share: float
    """Share of the phase in which it can hide: a reduction hides in the last micro-batch alone."""
    bare: float
    """Share of the bytes that has nothing to hide behind."""


def model_bytes(case: ModelCase) -> int:
    """All parameters as they are stored; their gradients have as many."""
    return n_parameters(case.model) * parameter_bytes(case)


def expect_shareable(case: ModelCase, group: DeviceGroup) -> None:
    """
    Raises:
        PeakwardError: quantised weights under fsdp, whose shards and gathering nothing here knows.
    """
    weights = case.configuration.weights
    if group.parallel == "fsdp" and weights in QUANTISED:
        raise PeakwardError(
            f"expected dense weights for fsdp, which shards parameters, got {weights}: take ddp, which "
            "holds them whole"
        )


def communication(
    case: ModelCase, time: StepTime, group: DeviceGroup, device: Device
) -> Communication:
    """Communication of a step on a group of such devices; `time` is the step of one by itself.

    Raises:
        PeakwardError: no link between so many of these devices, or quantised weights under fsdp.
    """
    expect_shareable(case, group)
    link = device.link
    if link is None or group.n_gpus > link.n_devices.value:
        reach = "none" if link is None else f"{link.name} between {link.n_devices.value:.0f}"
        raise PeakwardError(
            f"expected a device with a link that joins {group.n_gpus}, got {device.name} with {reach}: "
            "rates through the host depend on its board, and more than one node is not predicted"
        )
    one_way = link.bytes_per_s.value
    parts = _ddp(case, group.n_gpus) if group.parallel == "ddp" else _fsdp(case, group.n_gpus)
    sent = sum(part.n_bytes for part in parts)
    total = time_s(sent, one_way)
    return Communication(
        group=group,
        sent_bytes=sent,
        link_bytes_per_s=one_way,
        time_s=total,
        exposed_s=_exposed(parts, time, total, sent),
    )


def update_saved_s(time: StepTime, group: DeviceGroup) -> float:
    """Seconds that fsdp saves because each GPU updates only its share of the parameters. Only the
    optimiser's time on the device counts, where it does not wait for the host."""
    if group.parallel == "ddp":
        return 0.0
    update = (each for each in time.phases if each.phase == "optimizer")
    return sum((1 - 1 / group.n_gpus) * max(0.0, each.device_s - each.host_s) for each in update)


def _ddp(case: ModelCase, n_gpus: int) -> tuple[_Sent, ...]:
    if not case.workload.trains:
        return ()
    gradients = model_bytes(case)
    sent = all_reduce_bytes(gradients, n_gpus)
    bare = min(1.0, BUCKET_BYTES / gradients)
    return (_Sent(sent, "backward", 1 / case.workload.accumulate, bare),)


def _fsdp(case: ModelCase, n_gpus: int) -> tuple[_Sent, ...]:
    gathered = all_gather_bytes(model_bytes(case), n_gpus)
    bare = 1 / (case.model.n_layers + 1)
    gathers = case.workload.accumulate * gathered
    forward = _Sent(gathers, "forward", 1.0, bare)
    if not case.workload.trains:
        return (forward,)
    reduced = _Sent(gathered, "backward", 1 / case.workload.accumulate, bare)
    return forward, _Sent(gathers, "backward", 1.0, bare), reduced


def _exposed(parts: Sequence[_Sent], time: StepTime, total: Interval, sent: float) -> Interval:
    """Low: at the low end of the time, hidden as far as it can be. High: all of it, in full sight."""
    if not sent:
        return Interval(estimate=0.0, low=0.0, high=0.0, level=total.level)
    room_s = {each.phase: max(each.device_s, each.host_s) for each in time.phases}

    def waited_s(whole_s: float) -> float:
        """Transfers of one phase share its time; the first of them takes its part first."""
        left_s, waited = dict(room_s), 0.0
        for part in parts:
            part_s = whole_s * part.n_bytes / sent
            hidden_s = min(
                (1 - part.bare) * part_s, left_s[part.phase], part.share * room_s[part.phase]
            )
            left_s[part.phase] -= hidden_s
            waited += part_s - hidden_s
        return waited

    return Interval(
        estimate=waited_s(total.estimate),
        low=waited_s(total.low),
        high=total.high,
        level=total.level,
    )


# The bytes that each GPU of a ring sends in a collective, and the time that this takes.
#
# After nccl-tests, doc/PERFORMANCE.md (NVIDIA): an all-reduce of S bytes over n GPUs sends
# 2·(n − 1)/n·S from each, a reduce-scatter or an all-gather half of it.

REACHED = Interval(estimate=0.80, low=0.66, high=1.06, level=0.9)
"""Share of a link's stated rate in one direction that large collectives of one node reach: 200 to 233
of 300 GB/s on eight A100 (nccl-tests issues 149, 175), 370 of 450 on eight H100 by a ring, for its
protocol takes a fifth (issue 212), 475 where the switch adds up all-reduces (issue 272, H200)."""


def all_reduce_bytes(n_bytes: float, n_gpus: int) -> float:
    """Sent by each GPU."""
    return 2 * all_gather_bytes(n_bytes, n_gpus)


def all_gather_bytes(n_bytes: float, n_gpus: int) -> float:
    """Sent by each GPU, where all together hold `n_bytes`; also of a reduce-scatter of as many."""
    return (n_gpus - 1) / n_gpus * n_bytes


def time_s(sent_bytes: float, link_bytes_per_s: float) -> Interval:
    """Time to send so many bytes over a link of that rate in one direction, without latencies."""
    least_s = sent_bytes / link_bytes_per_s
    return Interval(
        estimate=least_s / REACHED.estimate,
        low=least_s / REACHED.high,
        high=least_s / REACHED.low,
        level=REACHED.level,
    )
