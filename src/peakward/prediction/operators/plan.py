"""The sizes, types and attention kernel that a case fixes for all of its operators.

Cases that the closed form does not cover are refused.
"""

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from peakward.hardware.attention_backend import (
    HOPPER,
    Backend,
    ComputeCapability,
    Inputs,
    first_backend,
    named_backend,
)
from peakward.hardware.devices import CAPABILITIES
from peakward.levers import decode_step, kv_cache, optimizer
from peakward.levers.axis import Work
from peakward.levers.catalogue import setting_obstacle, together_obstacle, work
from peakward.levers.registry import at_work, axes_of
from peakward.levers.weights import QUANTISED, Quantised
from peakward.prediction.operators.tape import BFLOAT, FLOAT, HALF, tensor
from peakward.prediction.traffic import held_positions
from peakward.records.case import (
    Attention,
    DeviceType,
    Loss,
    ModelCase,
    ModulePass,
    Optimizer,
    Precision,
)
from peakward.records.device import spell
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import Operand

_TYPES: dict[Precision, tuple[str, str]] = {
    "fp32": (FLOAT, FLOAT),
    "tf32": (FLOAT, FLOAT),
    "bf16": (BFLOAT, BFLOAT),
    "bf16-mixed": (FLOAT, BFLOAT),
    "fp16-mixed": (FLOAT, HALF),
    "fp8": (FLOAT, BFLOAT),
}
"""The types of parameters and of products. Products in fp8 have numbers in bf16 that are quantised for each
product."""
OwnKernel = Literal["own-triton", "own-hopper", "own-decode"]
OWN_KERNELS: tuple[OwnKernel, ...] = get_args(OwnKernel)
Kernel = Literal["naive", "flash-for-cpu"] | Backend | OwnKernel
_BACKENDS: dict[Attention, Backend] = {
    "sdpa-cudnn": "cudnn",
    "sdpa-flash": "flash",
    "sdpa-efficient": "efficient",
    "sdpa-math": "math",
}
_OWN: dict[Attention, OwnKernel] = {
    "flash": "own-triton",
    "flash-hopper": "own-hopper",
    "flash-decode": "own-decode",
}


class NarrowCache(NamedTuple):
    """Keys and values of one byte an element, with a scale in fp32 for each key and each value of a head."""

    dtype: str
    capacity: int
    """Positions."""


class Plan(NamedTuple):
    """The plan of one micro-batch of a case."""

    shape: ModelShape
    batch: int
    seq: int
    """Tokens of each sequence that go through the model."""
    keys: int
    """Positions that attention reads of each sequence: as many as `seq`, or those of a cache."""
    cached: bool
    """Keys and values are written to a cache, and the readout is of the last positions alone."""
    has_targets: bool
    """A batch is ids and targets, whether or not a loss is asked for."""
    stored: str
    """Type of the parameters, the residual stream and the gradients of both."""
    compute: str
    """Type of the matrix products."""
    precision: Precision
    attention: Kernel
    device: DeviceType
    differentiated: bool
    """A backward pass follows."""
    loss: Loss
    loss_over_logits: Work | None
    norm: Work | None
    rotation: Work | None
    gating: Work | None
    """The operators of the gate's product that a lever chose; None: torch's. So of the parts below."""
    gating_in_fp8: bool
    """The network is one function, whose SwiGLU writes what its fp8 products read."""
    quantised: Quantised | None
    """How the blocks' matrices are kept; None: in the parameters' type."""
    narrow_cache: NarrowCache | None
    """How the cache that a token attends to is kept; None: in the compute type."""
    fused_step: bool
    """The step runs in the few kernels of `fused_step`."""
    groups_in_one_kernel: bool
    """torch multiplies all experts in one kernel, where their widths allow it."""

    @property
    def autocast(self) -> bool:
        """Products are computed in another type than the parameters'."""
        return self.stored != self.compute

    @property
    def loss_scaled(self) -> bool:
        """The loss is scaled before the backward pass."""
        return self.precision == "fp16-mixed"

    @property
    def from_cache(self) -> bool:
        """Keys and values that attention reads are views of the cache."""
        return self.cached and self.seq == 1

    @property
    def masked(self) -> bool:
        """Not each query attends to each key: of one over several keys, all are in its reach."""
        return self.keys == self.seq

    @property
    def turned_apart(self) -> bool:
        """RoPE makes queries and keys anew, head by head; else they lie as the projection laid them."""
        return self.shape.positions == "rope" and self.rotation is None

    @property
    def sums_in_norm(self) -> bool:
        """The sum with attention's result is made by the norm behind it."""
        return self.norm is not None and not self.autocast

    @property
    def loss_has_head(self) -> bool:
        """The product with the output layer is the loss's own, and no logits come out of it."""
        return self.loss in ("chunked", "recomputed")

    @property
    def of_readout(self) -> "Plan":
        """As it is behind the blocks."""
        return self._replace(seq=1) if self.cached else self

    @property
    def hidden(self) -> Operand:
        """The residual stream: (batch, seq, d_model)."""
        return tensor(self.stored, self.batch, self.seq, self.shape.d_model)

    @property
    def tokens(self) -> int:
        """Rows of the linear layers."""
        return self.batch * self.seq


@lru_cache(maxsize=256)
def plan(case: ModelCase, compute_capability: ComputeCapability = HOPPER) -> Plan:
    """The case's plan, on a GPU of that compute capability.

    Raises:
        PeakwardError: a setting whose operators this room does not know, or that torch refuses.
    """
    expect_covered(case, compute_capability)
    stored, compute = _TYPES[case.configuration.precision]
    workload = case.workload
    decodes, keeps = workload.pass_ == "decode", not kv_cache.recomputes(case)
    alone = decodes and keeps
    return Plan(
        shape=case.model,
        batch=workload.batch_size,
        seq=1 if alone else workload.seq_len,
        keys=held_positions(case.model, workload.seq_len) if alone else workload.seq_len,
        cached=workload.caches and keeps,
        has_targets=not workload.caches,
        stored=stored,
        compute=compute,
        precision=case.configuration.precision,
        attention=_kernel(case, compute, compute_capability),
        device=case.device,
        differentiated=workload.trains,
        loss=case.configuration.loss,
        loss_over_logits=work("loss", case.configuration),
        norm=work("norm", case.configuration),
        rotation=work("rotation", case.configuration),
        gating=work("gating", case.configuration),
        gating_in_fp8=_gates_in_fp8(case),
        quantised=QUANTISED.get(case.configuration.weights),
        narrow_cache=_narrow_cache(case),
        fused_step=decode_step.is_fused(case),
        groups_in_one_kernel=compute == BFLOAT
        and (case.device == "cpu" or compute_capability[0] in CAPABILITIES),
    )


def _narrow_cache(case: ModelCase) -> NarrowCache | None:
    dtype = kv_cache.STORED.get(case.configuration.kv_cache)
    return None if dtype is None else NarrowCache(dtype, case.workload.seq_len)


def _gates_in_fp8(case: ModelCase) -> bool:
    shape = case.model
    is_swiglu = shape.gated and shape.activation == "silu" and not shape.bias
    is_one = shape.n_experts == 1
    return case.configuration.precision == "fp8" and case.workload.trains and is_swiglu and is_one


def _kernel(case: ModelCase, compute: str, compute_capability: ComputeCapability) -> Kernel:
    # The fused step reads the cache by a kernel, whatever the setting says.
    wanted = "flash-decode" if decode_step.is_fused(case) else case.configuration.attention
    if wanted == "naive":
        return "naive"
    if case.device == "cpu":
        return "flash-for-cpu"
    if wanted in _OWN:
        return _OWN[wanted]
    given = attention_inputs(case, compute, compute_capability)
    if wanted == "sdpa":
        return first_backend(given)
    return named_backend(_BACKENDS[wanted], given)


def attention_inputs(case: ModelCase, dtype: str, compute_capability: ComputeCapability) -> Inputs:
    """The inputs of a case's attention, which computes in `dtype`."""
    shape, workload = case.model, case.workload
    decodes = workload.pass_ == "decode" and not kv_cache.recomputes(case)
    reach = held_positions(shape, workload.seq_len)
    windowed = reach < workload.seq_len and not decodes
    return Inputs(
        dtype=dtype,
        head_dim=shape.head_dim,
        masked=windowed or shape.positions == "alibi",
        grouped=shape.n_heads != shape.n_kv_heads,
        differentiated=workload.trains,
        n_keys=reach if decodes else workload.seq_len,
        compute_capability=compute_capability,
    )


# Which cases the closed form covers; it refuses the rest.

_CAPTURABLE = tuple(each for each in get_args(Precision) if each != "fp16-mixed")
"""Loss scaling decides on the host."""


def expect_covered(case: ModelCase, compute_capability: ComputeCapability) -> None:
    """Nothing where the closed form gives the case's operators.

    Raises:
        PeakwardError: where it does not.
    """
    configuration = case.configuration
    for axis in axes_of(configuration):
        value, covered = axis.value(configuration), axis.predicted.get(case.device, ())
        if not axis.is_field and not axis.describes(value, case.device):
            raise PeakwardError(
                "expected levers whose work is described, got "
                f"{axis.name} {value}: measure the case instead"
            )
        expect(axis.name, value, *dict.fromkeys((axis.default, *covered)))
    if configuration.kv_cache in kv_cache.STORED:
        expect("pass of a cache in bytes", case.workload.pass_, "decode")
        if not decode_step.is_fused(case):
            # Any other attention widens the whole cache first, by operators that nothing here writes.
            expect("attention to a cache in bytes", configuration.attention, "flash-decode")
    if configuration.cuda_graphs:
        _expect_capturable(case)
    if case.model.n_experts > 1:
        expect("pass of a mixture of experts", case.workload.pass_, *get_args(ModulePass))
        # What Inductor makes of routing and grouped products is not known here.
        expect("compile of a mixture of experts", configuration.compile, "none")
    expect("varying_seq_lens", case.workload.varying_seq_lens, ())
    # What a step waits for a loader is not known beforehand.
    expect("data", None if case.workload.data is None else "a loader of text", None)
    _expect_sizes(case)
    if case.device == "cuda":
        _expect_gpu(configuration.precision, compute_capability)
        _expect_together(case, compute_capability)
    if configuration.precision == "fp8":
        _expect_multiples(case)


_CAPTURABLE_OPTIMIZERS: tuple[Optimizer, ...] = ("adamw-foreach", "adamw-fused", *optimizer.OWN)


def _expect_capturable(case: ModelCase) -> None:
    """The lever takes no others."""
    configuration = case.configuration
    if case.workload.trains:
        expect("precision in a CUDA graph", configuration.precision, *_CAPTURABLE)
    if case.workload.pass_ == "train_step":
        expect("optimizer in a CUDA graph", configuration.optimizer, *_CAPTURABLE_OPTIMIZERS)


def _expect_gpu(precision: Precision, compute_capability: ComputeCapability) -> None:
    least = (8, 9) if precision == "fp8" else (8, 0)
    if compute_capability < least:
        raise PeakwardError(
            f"expected a compute capability of {spell(least)} or more for {precision} operators in "
            f"closed form, got {spell(compute_capability)}: name a younger GPU, or measure the case instead"
        )


def _expect_together(case: ModelCase, compute_capability: ComputeCapability) -> None:
    """Peakward's own kernels run where their levers apply."""
    for axis, value in at_work(case.configuration):
        if value in axis.own_kernels:
            reason = setting_obstacle(axis.name, case, compute_capability=compute_capability)
            if reason is not None:
                raise PeakwardError(f"expected settings that go with Peakward's kernels: {reason}")
    if (reason := together_obstacle(case, compute_capability=compute_capability)) is not None:
        raise PeakwardError(f"expected settings that go together: {reason}")


def _expect_multiples(case: ModelCase) -> None:
    """Refuses sides of fp8 matrices that cuBLAS does not take."""
    shape = case.model
    heads = shape.n_heads + 2 * shape.n_kv_heads
    sides = {
        **_tokens(case),
        "d_model": shape.d_model,
        "d_ff": shape.d_ff,
        "n_heads · head_dim": shape.n_heads * shape.head_dim,
        "(n_heads + 2 · n_kv_heads) · head_dim": heads * shape.head_dim,
    }
    for name, side in sides.items():
        if side % 16:
            raise PeakwardError(
                f"expected {name} in multiples of 16 for fp8, got {side}: change it, "
                "or use bf16-mixed"
            )


def _tokens(case: ModelCase) -> dict[str, int]:
    """The token counts of one micro-batch, by their name."""
    workload = case.workload
    if workload.pass_ == "decode" and not kv_cache.recomputes(case):
        return {"batch_size": workload.batch_size}
    return {"batch_size · seq_len": workload.batch_size * workload.seq_len}


def _expect_sizes(case: ModelCase) -> None:
    """Refuses smaller sizes, where torch sees other layouts in the same strides and some sums vanish."""
    shape, seq_len = case.model, case.workload.seq_len
    smallest = {
        "seq_len": (2, seq_len),
        "d_model": (2, shape.d_model),
        "head_dim": (3, shape.head_dim),
    }
    for size, (least, got) in smallest.items():
        if got < least:
            raise PeakwardError(
                f"expected {size} of {least} or more for operators in closed form, got {got}: "
                "measure the case instead, or change it"
            )
    if shape.positions == "rope" and shape.head_dim % 2:
        raise PeakwardError(
            f"expected an even head_dim, whose halves RoPE turns, got {shape.head_dim}: change it"
        )
    if shape.positions == "learned" and seq_len > shape.max_seq_len:
        raise PeakwardError(
            f"expected a seq_len up to the {shape.max_seq_len} learned positions, got {seq_len}: "
            "shorten it"
        )


def expect(setting: str, got: object, *covered: object) -> None:
    """Nothing where the setting has a covered value.

    Raises:
        PeakwardError: where it has another.
    """
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for operators in closed form, "
            f"got {got}: measure the case instead, or change it"
        )
