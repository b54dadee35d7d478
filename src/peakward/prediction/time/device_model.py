"""The time model's figures of one device, and their source: measured there, or stated by its maker."""

from typing import NamedTuple

from peakward.hardware.attention_backend import ComputeCapability
from peakward.prediction.time import attention, products
from peakward.prediction.time.attention import AttentionModel
from peakward.prediction.time.products import KERNELS, ProductModel
from peakward.prediction.time.traffic_curve import TrafficCurve
from peakward.records.calibration import AttentionPass, Calibration, Rates
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.prediction import Source

STATED_PRODUCT_SHARE = 0.88
"""Share of the datasheet's peak at an endless product: 0.82 (fp32) to 0.92 (tf32) on an H200."""
STATED_BANDWIDTH_SHARE = 0.88
"""Share of the datasheet's bandwidth: a copy moves 4,220 of 4,800 GB/s on an H200."""
STATED_LAUNCH_S = 1.9e-6
"""From one small kernel to the next in a full queue: 1.87 µs on an H200."""
STATED_START_S = {"fp32": 7.9e-6, "tf32": 5.9e-6, "bf16": 3.4e-6, "fp16": 3.4e-6, "fp8": 3.6e-6}
"""As fitted to an H200's calibration."""
STATED_CALL_S = 7e-6
"""A recorded call on the host of an H200 (Intel Xeon, 2026) took 6.9 µs."""
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
    host_is_known: bool = True
    """Whether that is the cost of the host in question, not another's."""


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
        key: attention.fitted(rates.attention, *key)
        for key in {(each.compute_type, each.pass_) for each in rates.attention}
    }
    calls = [
        each.call_s
        for each in rates.launches
        if (each.side, each.operation) == ("host", "autograd")
    ]
    traffic = TrafficCurve.measured(rates.traffic)
    if not calls or len(traffic.call_s) < 2:
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
        call_s=calls[0],
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
