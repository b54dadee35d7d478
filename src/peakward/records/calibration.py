"""The ceilings measured on one machine; of a full calibration, the rates too."""

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
    """Measured ceilings; they hold for `environment` alone."""

    ROWS: ClassVar[tuple[str, ...]] = ("matmul",)

    environment: Environment
    started_at: str
    wall_s: float
    matmul: tuple[MatmulRate, ...]
    copy_bytes_per_s: float
    """Bytes read plus bytes written by a copy far larger than the last cache."""
    copy_size_bytes: int
    doubts: tuple[str, ...] = ()
    """What else the device or its cores were doing: the ceilings may be too low."""
    rates: Rates | None = None
    """What `peakward devices calibrate` adds; None where the ceilings alone were measured."""

    @property
    def id(self) -> str:
        """By what it says: equal for equal calibrations."""
        return hashlib.sha256(to_json(self)).hexdigest()

    def matmul_flops_per_s(self, compute_type: str) -> float | None:
        """The best measured rate of a compute type, or None where it was not measured."""
        rates = [rate.flops_per_s for rate in self.matmul if rate.compute_type == compute_type]
        return max(rates, default=None)
