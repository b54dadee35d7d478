"""A training step on many GPUs, planned: the layouts that fit, their costs, and the interconnect assumed."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Checkpointing, ModelCase
from peakward.records.layout import Collective, DataStrategy, Layout
from peakward.records.result import Result

MeshAxis = Literal["dp", "cp", "ep", "tp", "pp"]
ReduceType = Literal["bf16", "fp32"]
"""In which gradients are added up over the ranks by `zero2` and `fsdp`."""
LayoutBound = Literal["compute", "data", "tensor", "context", "expert", "pipeline", "update"]
"""The largest part of a step: arithmetic; waiting for gradients and parameters of the data axis, for sums of
the tensor axis, for keys and values of the context axis, for tokens on their way to experts and back, or for
other stages; or the update of the parameters."""


STRATEGIES: tuple[DataStrategy, ...] = ("ddp", "overlapped", "zero1", "zero2", "fsdp")
"""Those that a plan chooses between: the naive ones are left to the study."""


class AskedLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of a layout that are fixed; None leaves one to the plan."""

    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    pp: int | None = None
    data: DataStrategy | None = None
    micro_batch_size: int | None = None
    checkpointing: Checkpointing | None = None
    reduce_type: ReduceType = "bf16"


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster beyond its devices; None is as such devices are sold."""

    gpus_per_node: int | None = None
    bytes_per_s: float | None = None
    """Between nodes, of one GPU in one direction."""
    oversubscription: float = 1.0


class Interconnect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links that a plan assumes. Rates are of one GPU in one direction, as makers state them."""

    gpus_per_node: int
    link_name: str
    """NVLink 4."""
    link_bytes_per_s: float
    """To all others of the node together."""
    network_name: str | None
    """InfiniBand NDR. None where all ranks are in one node."""
    network_bytes_per_s: float | None
    oversubscription: float
    """The factor by which there are fewer links above a node's switch; 1 is non-blocking."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of collective of one axis in a step of the slowest rank."""

    axis: MeshAxis
    collective: Collective
    n_calls: int
    sent_bytes: float
    """Bytes that the rank sends; as in `CollectiveTime` for the collective's bus."""
    time_s: float
    """The time of all calls, without other work."""
    algorithm: str
    """NCCL's choice for the largest call: ring or tree, with the protocol."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of the rank that needs most, at the peak of its step."""

    parameters_bytes: int
    """Its own part, and what is gathered of the others' at one time."""
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    """All micro-batches that are under way at once."""
    logits_bytes: int
    temporaries_bytes: int
    """Weights in another type, inputs, workspaces, and what a block needs beside what it keeps."""
    context_bytes: int
    """CUDA's, outside of the allocator."""

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


class LayoutForecast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout that fits, and what a step of it takes on its slowest rank. The parts add up to `step_s`."""

    layout: Layout
    micro_batch_size: int
    """Sequences of a micro-batch."""
    checkpointing: Checkpointing
    step_s: float
    tokens_per_s: float
    """All GPUs together."""
    mfu: float | None
    """Model FLOPs over the dense peak of all GPUs."""
    compute_s: float
    """Forward, backward and recomputed passes of the slowest stage."""
    data_s: float
    """Waited for collectives of the axis `dp`, and what those that are hidden slow the arithmetic. Ranks of
    `cp` take part in them."""
    tensor_s: float
    """Waited for collectives of the axis `tp`."""
    context_s: float = 0.0
    """Waited for keys and values of the axis `cp`, and for sums of their gradients."""
    expert_s: float = 0.0
    """Waited for tokens on their way to the experts of the axis `ep` and back."""
    pipeline_s: float
    """Waited for other stages: the bubble, with the transfers between stages."""
    update_s: float
    bound: LayoutBound
    traffic: tuple[Traffic, ...]
    memory: RankMemory

    @property
    def bubble(self) -> float:
        """The share of the step that the slowest rank waits for other stages."""
        return self.pipeline_s / self.step_s


class LayoutPlan(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training step on so many GPUs of one kind: its layouts that fit, the fastest first."""

    ROWS: ClassVar[tuple[str, ...]] = ("layouts",)

    case: ModelCase
    """Its batch is that of one GPU: a rank of the data axis has that of all ranks behind it."""
    command: str
    device: str
    """The device's key in the catalogue."""
    device_name: str
    n_gpus: int
    n_parameters: int
    limit_bytes: int
    """Available memory of one GPU."""
    interconnect: Interconnect
    reduce_type: ReduceType
    layouts: tuple[LayoutForecast, ...]
    n_fitting: int
    """Layouts that fit; `layouts` has the fastest of them."""
    n_too_large: int
    """Layouts that need more memory."""
    smallest_bytes: int | None
    """The need of the smallest layout, where none fits."""
    refused: tuple[str, ...] = ()
    """Axes that were left out, and why."""
    notes: tuple[str, ...] = ()
