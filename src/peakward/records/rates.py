"""What a time model needs of one machine beyond its ceilings: rates by shape and size, and costs.

Each figure is the median of repeated calls on random data, back to back, with operands that stay
in whichever cache holds them.
"""

from typing import Literal, get_args

import msgspec

Subject = Literal[
    "products", "traffic", "launches", "attention", "levels", "latency", "link", "disk"
]
"""What is measured together: a field of `Rates` each."""
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
Kind = Literal["square", "small m", "small n", "small k", "whole waves", "partial wave"]
"""Of a product. Whole waves fill every multiprocessor equally often; a partial wave leaves a few
tiles over, which take one more round."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Traffic = Literal["copy", "add"]
Launch = Literal["elementwise", "matmul", "autograd"]
"""autograd: the elementwise operation, recorded for a backward pass."""
AttentionPass = Literal["forward", "backward"]
Memory = Literal["pinned", "pageable"]
Direction = Literal["to device", "to host"]
Source = Literal["disk", "page cache"]
"""disk: past the kernel's page cache; not past a cache of the drive's own, nor past the host's below
a virtual machine. page cache: the same file from memory."""


class ProductRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one matrix product [m, k] × [k, n]."""

    kind: Kind
    compute_type: str
    """fp32, tf32, bf16, fp16 or fp8: the type of the multiplication."""
    m: int
    n: int
    k: int
    flops_per_s: float
    """2·m·n·k over the time of a call."""


class TrafficRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one pass over fp32 tensors of a size: a copy (out = a) or an addition (out = a + b)."""

    operation: Traffic
    size_bytes: int
    """Of each tensor. A copy moves two of them, an addition three."""
    bytes_per_s: float
    """Bytes read plus bytes written, over the time of a call."""


class LaunchCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator costs however little it does."""

    side: Literal["device", "host"]
    """device: from one tiny kernel to the next in a full queue. host: until an eager call returns;
    on a CPU that holds the operator's own work, on 16 × 16 elements."""
    operation: Launch
    call_s: float


class AttentionRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of torch's scaled_dot_product_attention, causal, by the backend that torch chooses."""

    compute_type: str
    pass_: AttentionPass
    batch_size: int
    n_heads: int
    seq_len: int
    head_dim: int
    flops_per_s: float
    """Model FLOPs over the time of a pass: 2·batch·heads·seq²·head_dim forward, causal counted as
    half of the score matrix, and twice that backward; recomputation is never counted."""


class LevelRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of reading a working set again and again: on a GPU all of it together reads one sweep after
    another, on a CPU every core reads all of it."""

    level: str | None
    """L1, L2, L3 or memory; None where the machine does not say, or the set lies across two."""
    working_set_bytes: int
    capacity_bytes: int | None = None
    """What the level holds, as the machine says: of a CPU's cache, one core's. None of memory, where
    there is no level, and in records from before it was kept."""
    bytes_per_s: float
    """Bytes read, by all cores together, over the time of a sum of fp32 values; a first-level cache
    may be faster than a core adds."""


class LoadLatency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a load that waits for the one before it, on a random cycle through a working set."""

    level: str | None
    """As of `LevelRate`."""
    working_set_bytes: int
    load_s: float


class LinkRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a copy between the host's memory and the GPU's."""

    memory: Memory
    direction: Direction
    size_bytes: int
    bytes_per_s: float
    """Bytes copied over the time of a copy."""


class DiskRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of reading a scratch file in the working directory block by block, one after another; blocks of
    a page are scattered over the file."""

    source: Source
    size_bytes: int
    block_bytes: int
    bytes_per_s: float


class Absence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What could not be measured here, and why."""

    subject: Subject
    figure: str | None = None
    """Which of the subject's figures; None for what was still to come of it."""
    reason: str


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All subjects, or as many as were asked for."""

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
    """What else the cores were doing, by subject: its figures may be too low, its costs too high."""

    def __add__(self, other: "Rates") -> "Rates":
        """The figures of both."""
        fields = self.__struct_fields__
        both = {name: getattr(self, name) + getattr(other, name) for name in fields}
        return msgspec.structs.replace(self, **both)

    def tell_of(self, subject: Subject) -> bool:
        """Whether it has a figure of the subject, or why it has none."""
        return bool(getattr(self, subject)) or any(each.subject == subject for each in self.absent)
