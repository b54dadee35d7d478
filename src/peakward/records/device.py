"""The published capabilities of a device, and their sources."""

from typing import Literal

import msgspec

from peakward.records.result import Result

Vendor = Literal["nvidia", "amd"]


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The known kind of a GPU: enough to say which levers exist on it."""

    vendor: Vendor | None = None
    compute_capability: tuple[int, int] | None = None
    """Known for NVIDIA's GPUs only."""


class SourcedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and the document it was read in."""

    value: float
    source: str


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CUDA compute capability, major and minor, and the document it was read in."""

    value: tuple[int, int]
    source: str


class HostLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link between a device and its host."""

    name: str
    """PCIe 5.0 x16."""
    bytes_per_s: SourcedFigure
    """The rate of all lanes together, in one direction."""


class PeerLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link between a device and the others of its node. Rates are in one direction."""

    name: str
    """NVLink 4."""
    bytes_per_s: SourcedFigure
    """The rate from one device to all others together."""
    pair_bytes_per_s: SourcedFigure | None = None
    """The rate from one device to one other. None where some pairs are connected differently from others."""
    n_devices: SourcedFigure
    """The number of devices that it joins."""


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between nodes, as systems with such a device are sold."""

    name: str
    """InfiniBand NDR, 400 Gb/s."""
    bytes_per_s: SourcedFigure
    """The rate of one device in one direction: that of the adapters of its node over its devices."""


class Device(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator model with one memory size. Rates are dense. A figure that no source gives is
    absent."""

    key: str
    """The name for the command line, such as h100-sxm-80."""
    name: str
    driver_names: tuple[str, ...]
    """The exact names that drivers give it."""
    memory_gb: SourcedFigure
    """10^9 bytes, as sold."""
    driver_memory_mib: SourcedFigure | None = None
    """2^20 bytes, as the driver reports it."""
    peak_flops_per_s: dict[str, SourcedFigure]
    """By compute type: fp32, tf32, fp16, bf16, fp8, int8 (operations for int8)."""
    bytes_per_s: SourcedFigure
    l2_bytes: SourcedFigure | None = None
    n_sms: SourcedFigure | None = None
    compute_capability: Capability | None = None
    """None for devices that are not NVIDIA's."""
    power_w: SourcedFigure | None = None
    """The power limit of the board as it is sold."""
    link: PeerLink | None = None
    """None where devices reach one another only over their host links."""
    network: NetworkLink | None = None
    host_link: HostLink | None = None

    @property
    def accelerator(self) -> Accelerator:
        """Its kind. A device without a compute capability is AMD's."""
        if self.compute_capability is None:
            return Accelerator(vendor="amd")
        return Accelerator(vendor="nvidia", compute_capability=self.compute_capability.value)


def spell(capability: tuple[int, int] | None) -> str:
    """A compute capability as NVIDIA writes it: 8.9."""
    return "unknown" if capability is None else ".".join(map(str, capability))
