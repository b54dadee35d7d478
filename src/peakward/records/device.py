"""What a device is said to be able to do, and who says so."""

from typing import Literal

import msgspec

from peakward.records.result import Result

Vendor = Literal["nvidia", "amd"]


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kind of GPU it is, as far as that is known: enough to say which levers exist on it."""

    vendor: Vendor | None = None
    compute_capability: tuple[int, int] | None = None
    """NVIDIA's."""


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and the document it was read in."""

    value: float
    source: str


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CUDA compute capability, major and minor, and the document it was read in."""

    value: tuple[int, int]
    source: str


class HostLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects a device to its host."""

    name: str
    """PCIe 5.0 x16."""
    bytes_per_s: Figure
    """In one direction, of all its lanes together."""


class PeerLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects a device to others of its node. Rates are in one direction."""

    name: str
    """NVLink 4."""
    bytes_per_s: Figure
    """Of one device, to all the others together."""
    pair_bytes_per_s: Figure | None = None
    """From one device to another. None where not every two are connected alike."""
    n_devices: Figure
    """How many devices it joins."""


class Device(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of accelerator with one memory size. Dense rates; a figure nobody gives is absent."""

    key: str
    """For the command line: h100-sxm-80."""
    name: str
    driver_names: tuple[str, ...]
    """The exact strings that drivers give for it."""
    memory_gb: Figure
    """10^9 bytes, as sold."""
    driver_memory_mib: Figure | None = None
    """2^20 bytes, as the driver reports it."""
    peak_flops_per_s: dict[str, Figure]
    """By compute type: fp32, tf32, fp16, bf16, fp8, int8 (operations for int8)."""
    bytes_per_s: Figure
    l2_bytes: Figure | None = None
    n_sms: Figure | None = None
    compute_capability: Capability | None = None
    """None where it is not NVIDIA's."""
    power_w: Figure | None = None
    """What the board may draw, as it is sold."""
    link: PeerLink | None = None
    """None where there is none, and devices reach one another over their host links."""
    host_link: HostLink | None = None

    @property
    def accelerator(self) -> Accelerator:
        """Its kind; what has no compute capability is AMD's."""
        if self.compute_capability is None:
            return Accelerator(vendor="amd")
        return Accelerator(vendor="nvidia", compute_capability=self.compute_capability.value)
