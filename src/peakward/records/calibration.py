"""The ceilings measured on one machine, and its rates where the calibration was a full one.

Each rate is the median of repeated calls on random data, back to back. Operands stay in whichever cache
holds them.
"""

import hashlib
from pathlib import Path
from typing import ClassVar, Literal, get_args

import msgspec

from peakward.records.codec import from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment
from peakward.records.parallel import LinkCalibration
from peakward.records.result import Result

Subject = Literal[
    "products", "traffic", "launches", "attention", "levels", "latency", "link", "disk"
]
"""Groups of figures that are measured together. Each is a field of `Rates`."""
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
Kind = Literal["square", "small m", "small n", "small k", "whole waves", "partial wave"]
"""The kind of a product. Whole waves fill every multiprocessor equally often; a partial wave leaves a few
tiles over, which take one more round."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Traffic = Literal["copy", "add"]
Launch = Literal["elementwise", "matmul", "autograd", "autograd in a backward pass"]
"""`autograd` is the elementwise operation, recorded for a backward pass. `autograd in a backward pass` is the
same call, recorded too, made by the thread that carries a backward pass out: on a GPU one of autograd's own,
on a CPU the caller's."""
AttentionPass = Literal["forward", "backward"]
Memory = Literal["pinned", "pageable"]
Direction = Literal["to device", "to host"]
Source = Literal["disk", "page cache"]
"""`disk` bypasses the kernel's page cache, but not a cache in the drive or in a virtual machine's host. `page
cache` reads the same file from memory."""


class ProductRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of one matrix product [m, k] × [k, n]."""

    kind: Kind
    compute_type: str
    """fp32, tf32, bf16, fp16 or fp8: the type of the multiplication."""
    m: int
    n: int
    k: int
    flops_per_s: float
    """2·m·n·k over the time of a call."""


class TrafficRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of one pass over fp32 tensors of a size: a copy (out = a) or an addition (out = a + b)."""

    operation: Traffic
    size_bytes: int
    """The size of each tensor. A copy moves two of them, an addition three."""
    bytes_per_s: float
    """Bytes read plus bytes written, over the time of a call."""


class LaunchCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of an operator, however little it does."""

    side: Literal["device", "host"]
    """`device`: the time from one tiny kernel to the next in a full queue. `host`: the time until an eager
    call returns; on a CPU it includes the operator's own work on 16 × 16 elements."""
    operation: Launch
    call_s: float


class AttentionRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of torch's causal scaled_dot_product_attention with the backend that torch chooses."""

    compute_type: str
    pass_: AttentionPass
    batch_size: int
    n_heads: int
    seq_len: int
    head_dim: int
    flops_per_s: float
    """Model FLOPs over the time of a pass: 2·batch·heads·seq²·head_dim forward, with causal attention counted
    as half of the score matrix, and twice that backward. Recomputation is never counted."""


class LevelRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of reading a working set again and again. A GPU sweeps over it as a whole; on a CPU every core
    reads all of it."""

    level: str | None
    """L1, L2, L3 or memory. None where the machine does not say, or where the set lies across two levels."""
    working_set_bytes: int
    capacity_bytes: int | None = None
    """The level's capacity as the machine states it; for a CPU's cache, that of one core. None for memory,
    and in records older than this field."""
    bytes_per_s: float
    """Bytes read by all cores together, over the time of a sum of fp32 values. A first-level cache may be
    faster than a core can add."""


class LoadLatency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency of a load that waits for the one before it, on a random cycle through a working set."""

    level: str | None
    """As in `LevelRate`."""
    working_set_bytes: int
    load_s: float


class LinkRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of a copy between the host's memory and the GPU's."""

    memory: Memory
    direction: Direction
    size_bytes: int
    bytes_per_s: float
    """Bytes copied over the time of a copy."""


class DiskRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of reading a scratch file in the working directory block by block. Page-sized blocks are
    scattered over the file."""

    source: Source
    size_bytes: int
    block_bytes: int
    bytes_per_s: float


class Absence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that could not be measured here, and the reason."""

    subject: Subject
    figure: str | None = None
    """The subject's figure; None for all of its remaining figures."""
    reason: str


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates of all subjects, or of the requested ones."""

    products: tuple[ProductRate, ...] = ()
    traffic: tuple[TrafficRate, ...] = ()
    launches: tuple[LaunchCost, ...] = ()
    attention: tuple[AttentionRate, ...] = ()
    levels: tuple[LevelRate, ...] = ()
    latency: tuple[LoadLatency, ...] = ()
    link: tuple[LinkRate, ...] = ()
    disk: tuple[DiskRate, ...] = ()
    absent: tuple[Absence, ...] = ()
    doubts: tuple[str, ...] = ()
    """Other work on the cores, by subject. It may make rates too low and costs too high."""

    def __add__(self, other: "Rates") -> "Rates":
        """The figures of both."""
        fields = self.__struct_fields__
        both = {name: getattr(self, name) + getattr(other, name) for name in fields}
        return msgspec.structs.replace(self, **both)

    @property
    def recorded_call_s(self) -> float | None:
        """The host's seconds of an operation that autograd records, or None where it was not measured."""
        return self._on_host_s("autograd")

    @property
    def backward_call_s(self) -> float | None:
        """The same in the thread that carries a backward pass out; None also in records that are older."""
        return self._on_host_s("autograd in a backward pass")

    def _on_host_s(self, operation: Launch) -> float | None:
        found = (each for each in self.launches if each.operation == operation)
        return next((each.call_s for each in found if each.side == "host"), None)

    def tell_of(self, subject: Subject) -> bool:
        """Whether it has a figure of the subject, or a reason for having none."""
        return bool(getattr(self, subject)) or any(each.subject == subject for each in self.absent)


class MatmulRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best rate of a square matrix product in one compute type, on random data."""

    compute_type: str
    """fp32, tf32, bf16, fp16 or fp8: the type of the multiplication."""
    size: int
    """m = n = k of the product that gave the rate."""
    flops_per_s: float


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine whose processor issues a device's work, and the software that does."""

    cpu_name: str
    name_hash: str
    """Sixteen hexadecimal digits of the SHA-256 of the machine's name, which tells machines apart."""
    python: str
    torch: str | None


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
    host: Host | None = None
    """The host whose costs of a call it has. None in records that are older than this field."""
    collectives: tuple[LinkCalibration, ...] = ()
    """Collectives between several devices of this machine, which `--gpus` adds: one a number of ranks."""

    def with_collectives(self, measured: LinkCalibration) -> "Calibration":
        """With these in the place of older ones between as many ranks."""
        kept = (each for each in self.collectives if each.n_ranks != measured.n_ranks)
        ordered = sorted((*kept, measured), key=lambda each: each.n_ranks)
        return msgspec.structs.replace(self, collectives=tuple(ordered))

    def collectives_of(self, n_ranks: int) -> LinkCalibration | None:
        """Those between so many ranks, or None where they were not measured."""
        return next((each for each in self.collectives if each.n_ranks == n_ranks), None)

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """The calibration that a file holds, from `.save(path)` or `peakward devices calibrate --json`.

        Raises:
            PeakwardError: The file cannot be read, or holds something else.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise PeakwardError(
                f"expected a calibration to read in {path}, got nothing ({error.strerror}): write one with "
                "`peakward devices calibrate --json`"
            ) from None
        return from_json(data, cls)

    @property
    def id(self) -> str:
        """A hash of the content: equal calibrations have equal ids."""
        return hashlib.sha256(to_json(self)).hexdigest()

    def matmul_flops_per_s(self, compute_type: str) -> float | None:
        """The best measured rate of a compute type, or None where it was not measured."""
        rates = [rate.flops_per_s for rate in self.matmul if rate.compute_type == compute_type]
        return max(rates, default=None)
