"""The time model's figures of one device: of traffic, of attention, and of all that a step needs."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple, Self

from peakward.hardware.attention_backend import ComputeCapability
from peakward.prediction.time import products
from peakward.prediction.time.products import KERNELS, ProductModel
from peakward.records.calibration import (
    AttentionPass,
    AttentionRate,
    Calibration,
    Rates,
    Traffic,
    TrafficRate,
)
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.prediction import Source

# The time of moving bytes once through the device, from a few KiB, which cost a launch, up.
#
# Small tensors stay in the last cache, so that a pass over them is faster than memory allows: on an H200
# an addition of tensors of 16 MiB moves 3.9 TB/s, a copy of them 4.9, and of 128 MiB 4.2.

N_TENSORS: dict[Traffic, int] = {"copy": 2, "add": 3}
"""The number of tensors that one call of each operation moves."""
FULL = 1.25
"""Launches from which on a kernel's time is all in what it moves, as far as a factor on it says."""


class TrafficCurve(NamedTuple):
    """Seconds of a call by the bytes that it moves, straight between what was measured."""

    moved_bytes: tuple[int, ...]
    """Ascending; at least two."""
    call_s: tuple[float, ...]

    @classmethod
    def measured(cls, rates: Iterable[TrafficRate], operation: Traffic = "add") -> Self:
        """The curve of additions, which read two tensors and write one as most operators do, or of copies."""
        points = sorted(
            (N_TENSORS[operation] * each.size_bytes, each.bytes_per_s)
            for each in rates
            if each.operation == operation
        )
        return cls(
            tuple(moved for moved, _ in points),
            tuple(moved / bytes_per_s for moved, bytes_per_s in points),
        )

    @classmethod
    def stated(cls, bytes_per_s: float, launch_s: float) -> Self:
        """A launch and then the bandwidth, whatever the size."""
        large = round(bytes_per_s)
        return cls((0, large), (launch_s, launch_s + large / bytes_per_s))

    @property
    def launch_s(self) -> float:
        """The time of a call that moves next to nothing."""
        return self.call_s[0]

    def slowed_s(self, factor: float, moved_bytes: float) -> float:
        """`factor` times `time_s`; but of what hardly takes longer than a launch, a launch remains one."""
        plain_s, full_s = self.time_s(moved_bytes), FULL * self.launch_s
        if plain_s >= full_s:
            return factor * plain_s
        share = (plain_s - self.launch_s) / (full_s - self.launch_s)
        return self.launch_s + share * (factor * full_s - self.launch_s)

    def time_s(self, moved_bytes: float) -> float:
        """Beyond the last point at its bandwidth; below the first a launch."""
        if moved_bytes <= self.moved_bytes[0]:
            return self.call_s[0]
        i = bisect_left(self.moved_bytes, moved_bytes)
        if i == len(self.moved_bytes):
            return moved_bytes * self.call_s[-1] / self.moved_bytes[-1]
        low, high = self.moved_bytes[i - 1], self.moved_bytes[i]
        share = (moved_bytes - low) / (high - low)
        return self.call_s[i - 1] + share * (self.call_s[i] - self.call_s[i - 1])


# The time of fused attention: its model FLOPs at a rate that grows with the length.
#
# A fused kernel's short rows end before its pipeline is full: seconds per FLOP are taken to be
# a + b / seq_len, and both come from two measured lengths. On an H200 in bf16, of six kernels in
# traces (lengths 512 and 1024, head_dim 64 and 80) the backward pass errs by 1% to 12% and the
# forward pass by 8% to 13%.


class AttentionModel(NamedTuple):
    """One compute type and one pass on one device."""

    flop_s: float
    """Seconds of a model FLOP of endless rows."""
    row_flop_s: float
    """Added to it, times the length."""

    def time_s(self, flops: float, seq_len: int) -> float:
        """Seconds of one call, from one launch to the next. `flops` as `records.rates.AttentionRate`."""
        return flops * (self.flop_s + self.row_flop_s / seq_len)


def fitted(
    rates: Iterable[AttentionRate], compute_type: str, pass_: AttentionPass
) -> AttentionModel | None:
    """Through the shortest and the longest measured length; None where there is only one."""
    found = sorted(
        (each.seq_len, 1 / each.flops_per_s)
        for each in rates
        if (each.compute_type, each.pass_) == (compute_type, pass_)
    )
    if len(found) < 2 or found[0][0] == found[-1][0]:
        return None
    (short, short_s), (long, long_s) = found[0], found[-1]
    row_flop_s = max(0.0, (short_s - long_s) / (1 / short - 1 / long))
    return AttentionModel(max(0.0, long_s - row_flop_s / long), row_flop_s)


# The time model's figures of one device, and their source: measured there, or stated by its maker.

STATED_PRODUCT_SHARE = 0.88
"""Share of the datasheet's peak at an endless product: 0.82 (fp32) to 0.92 (tf32) on an H200."""
STATED_BANDWIDTH_SHARE = 0.88
"""Share of the datasheet's bandwidth: a copy moves 4,220 of 4,800 GB/s on an H200."""
STATED_LAUNCH_S = 1.9e-6
"""From one small kernel to the next in a full queue: 1.87 µs on an H200."""
STATED_START_S = {"fp32": 7.9e-6, "tf32": 5.9e-6, "bf16": 3.4e-6, "fp16": 3.4e-6, "fp8": 3.6e-6}
"""As fitted to an H200's calibration."""
STATED_CALL_S = 7e-6
"""A recorded call on the host of an H200 (Intel Xeon, 2026) took 6.9 µs. Other hosts of such devices took 8.4
to 19.2; with their median of 9.0 stored steps that a host bounds are told 26% to 70% too long."""
STATED_ATTENTION: dict[tuple[str, AttentionPass], tuple[float, float]] = {
    ("bf16", "forward"): (0.54, 2220),
    ("bf16", "backward"): (0.43, 4040),
    ("fp16", "forward"): (0.54, 2220),
    ("fp16", "backward"): (0.43, 4040),
    ("fp32", "forward"): (0.55, 980),
    ("fp32", "backward"): (0.44, 1030),
}
"""Share of the peak that endless rows reach, and the length at whose rate a row's start costs as much
as the peak does per FLOP; on an H200, with cuDNN's kernels and in fp32 with CUTLASS's."""


class DeviceModel(NamedTuple):
    """Rates by compute type; what is absent is unknown."""

    name: str
    source: Source
    compute_capability: ComputeCapability
    n_sms: int
    products: dict[str, ProductModel]
    attention: dict[tuple[str, AttentionPass], AttentionModel]
    traffic: TrafficCurve
    call_s: float
    """The host's unit of `dispatch`."""
    backward_call_s: float | None = None
    """The same in the thread of the backward pass; None where it was not timed, and is taken to be equal."""
    host_is_known: bool = True
    """Whether these are the costs of the host in question, not another's."""

    def host_call_s(self, phase: Phase) -> float:
        """A call in the thread that issues the phase."""
        if phase != "backward" or self.backward_call_s is None:
            return self.call_s
        return self.backward_call_s

    def issued_by(self, launches: Rates) -> Self:
        """The same device under a host whose calls take so long now; as it is where none was timed."""
        call_s = launches.recorded_call_s
        if call_s is None:
            return self
        backward_s = launches.backward_call_s
        return self._replace(call_s=call_s, backward_call_s=backward_s, host_is_known=True)


def device_model(
    calibration: Calibration | None, device: Device | None, *, host_is_known: bool = True
) -> DeviceModel:
    """From a full calibration where there is one, else from the datasheet.

    Args:
        host_is_known: Whether the calibration is of the host in question. A datasheet is of none.

    Raises:
        PeakwardError: neither, or a device whose number of multiprocessors nobody states.
    """
    if device is None or device.n_sms is None:
        named = "one that the catalogue does not know" if device is None else device.name
        raise PeakwardError(
            "expected a GPU whose number of multiprocessors is known, to predict times for, "
            f"got {named}: name one that `peakward devices` lists with it"
        )
    if device.compute_capability is None:
        raise PeakwardError(
            "expected a GPU with a compute capability, whose kernels torch's are known for, got "
            f"{device.name}: name one of NVIDIA's"
        )
    if calibration is not None and calibration.rates is not None:
        model = _calibrated(calibration, calibration.rates, device)
        return model._replace(host_is_known=host_is_known)
    return _stated(device)


def _calibrated(calibration: Calibration, rates: Rates, device: Device) -> DeviceModel:
    n_sms = _n_sms(device)
    bytes_per_s = calibration.copy_bytes_per_s
    by_type = {
        kind: [each for each in rates.products if each.compute_type == kind] for kind in KERNELS
    }
    attended = {
        key: fitted(rates.attention, *key)
        for key in {(each.compute_type, each.pass_) for each in rates.attention}
    }
    call_s = rates.recorded_call_s
    traffic = TrafficCurve.measured(rates.traffic)
    if call_s is None or len(traffic.call_s) < 2:
        raise PeakwardError(
            "expected a calibration with launch costs and bandwidths, got one in which they could "
            "not be measured: run `peakward devices calibrate` again"
        )
    return DeviceModel(
        name=device.name,
        source="calibrated",
        compute_capability=_capability(device),
        n_sms=n_sms,
        products={
            kind: products.fitted(KERNELS[kind], found, n_sms=n_sms, bytes_per_s=bytes_per_s)
            for kind, found in by_type.items()
            if sum(each.kind == "square" for each in found) >= 2
        },
        attention={key: model for key, model in attended.items() if model is not None},
        traffic=traffic,
        call_s=call_s,
        backward_call_s=rates.backward_call_s,
    )


def _stated(device: Device) -> DeviceModel:
    n_sms = _n_sms(device)
    bytes_per_s = STATED_BANDWIDTH_SHARE * device.bytes_per_s.value
    peaks = {kind: figure.value for kind, figure in device.peak_flops_per_s.items()}
    return DeviceModel(
        name=device.name,
        source="datasheet",
        compute_capability=_capability(device),
        n_sms=n_sms,
        products={
            kind: ProductModel(
                KERNELS[kind],
                STATED_PRODUCT_SHARE * peaks[kind],
                STATED_START_S[kind],
                n_sms,
                bytes_per_s,
            )
            for kind in KERNELS
            if kind in peaks
        },
        attention={
            (kind, pass_): AttentionModel(1 / (share * peaks[kind]), row / peaks[kind])
            for (kind, pass_), (share, row) in STATED_ATTENTION.items()
            if kind in peaks
        },
        traffic=TrafficCurve.stated(bytes_per_s, STATED_LAUNCH_S),
        call_s=STATED_CALL_S,
        host_is_known=False,
    )


def _n_sms(device: Device) -> int:
    assert device.n_sms is not None
    return int(device.n_sms.value)


def _capability(device: Device) -> ComputeCapability:
    assert device.compute_capability is not None
    return device.compute_capability.value
