"""The ceilings measured on one machine, and its rates where the calibration was a full one."""

import hashlib
from typing import ClassVar

import msgspec

from peakward.records.codec import to_json
from peakward.records.environment import Environment
from peakward.records.rates import Rates
from peakward.records.result import Result


class MatmulRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best rate of a square matrix product in one compute type, on random data."""

    compute_type: str
    """fp32, tf32, bf16, fp16 or fp8: the type of the multiplication."""
    size: int
    """m = n = k of the product that gave the rate."""
    flops_per_s: float


class Calibration(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured ceilings. They hold only for `environment`."""

    ROWS: ClassVar[tuple[str, ...]] = ("matmul",)

    environment: Environment
    started_at: str
    wall_s: float
    matmul: tuple[MatmulRate, ...]
    copy_bytes_per_s: float
    """Bytes read plus bytes written by a copy far larger than the last cache."""
    copy_size_bytes: int
    doubts: tuple[str, ...] = ()
    """Load on the device or its cores during the calibration, which may make the ceilings too low."""
    rates: Rates | None = None
    """The rates that `peakward devices calibrate` adds; None where only the ceilings were measured."""

    @property
    def id(self) -> str:
        """A hash of the content: equal calibrations have equal ids."""
        return hashlib.sha256(to_json(self)).hexdigest()

    def matmul_flops_per_s(self, compute_type: str) -> float | None:
        """The best measured rate of a compute type, or None where it was not measured."""
        rates = [rate.flops_per_s for rate in self.matmul if rate.compute_type == compute_type]
        return max(rates, default=None)
