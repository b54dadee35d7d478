"""What a device is said to be able to do, and who says so."""

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and the document it was read in."""

    value: float
    source: str


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of accelerator with one memory size. Dense rates; a figure nobody gives is absent."""

    key: str
    """For the command line: h100-sxm-80."""
    name: str
    driver_names: tuple[str, ...]
    """The exact strings that drivers give for it."""
    memory_gb: Figure
    """10^9 bytes, as sold."""
    peak_flops_per_s: dict[str, Figure]
    """By compute type: fp32, tf32, fp16, bf16, fp8, int8 (operations for int8)."""
    bytes_per_s: Figure
    l2_bytes: Figure | None = None
    n_sms: Figure | None = None
    link_bytes_per_s: Figure | None = None
    """Total of both directions between accelerators."""
