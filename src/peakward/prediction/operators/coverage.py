"""Which cases the closed form covers; it refuses the rest."""

from typing import get_args

from peakward.hardware.compute_capability import spell
from peakward.levers.catalogue import setting_obstacle
from peakward.levers.experts import experts_obstacle
from peakward.levers.flash import flash_obstacle
from peakward.levers.fused import fused_obstacle
from peakward.prediction.operators.attention_backend import ComputeCapability
from peakward.records.case import (
    Attention,
    Checkpointing,
    DecoderAttention,
    Loss,
    ModelCase,
    ModulePass,
    Optimizer,
    Precision,
    StoredWeights,
    Workload,
    Written,
)
from peakward.records.errors import PeakwardError

OWN_ATTENTION: tuple[Attention, ...] = ("flash", "flash-hopper", "flash-decode")
_TORCH_ADAMW = ("adamw-foreach", "adamw-fused", "adamw-loop")
_ON_CPU: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "tf32", "bf16", "bf16-mixed"),
    "attention": ("naive", "sdpa", "sdpa-flash"),
    "checkpointing": ("none", "sqrt", "every-block"),
    "compile": ("none",),
    "optimizer": _TORCH_ADAMW,
    **dict.fromkeys(("loss", "norm", "rope", "swiglu"), ("torch",)),
    "weights": ("dense",),
}
_ON_CUDA: dict[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "attention": get_args(DecoderAttention),
    "checkpointing": get_args(Checkpointing),
    "compile": ("none", "default"),
    "optimizer": get_args(Optimizer),
    "loss": get_args(Loss),
    **dict.fromkeys(("norm", "rope", "swiglu"), get_args(Written)),
    "weights": get_args(StoredWeights),
}
_CAPTURABLE = tuple(each for each in get_args(Precision) if each != "fp16-mixed")
"""Loss scaling decides on the host."""


def expect_covered(case: ModelCase, compute_capability: ComputeCapability) -> None:
    """Nothing where the closed form gives the case's operators.

    Raises:
        PeakwardError: where it does not.
    """
    configuration = case.configuration
    for axis, value in configuration.more:
        raise PeakwardError(
            f"expected levers whose work is described, got {axis} {value}: measure the case instead"
        )
    for setting, covered in (_ON_CUDA if case.device == "cuda" else _ON_CPU).items():
        expect(setting, getattr(configuration, setting), *covered)
    _expect_capturable(case)
    if case.model.n_experts > 1:
        expect("pass of a mixture of experts", case.workload.pass_, *get_args(ModulePass))
        _expect_mixture(case, compute_capability)
    expect("varying_seq_lens", case.workload.varying_seq_lens, ())
    # What a step waits for a loader is not known beforehand.
    expect("data", None if case.workload.data is None else "a loader of text", None)
    _expect_sizes(case)
    if case.device == "cuda":
        _expect_gpu(configuration.precision, compute_capability)
        _expect_own_kernels(case, compute_capability)
    if configuration.precision == "fp8":
        _expect_multiples(case)


def _expect_capturable(case: ModelCase) -> None:
    """The lever takes no others."""
    configuration = case.configuration
    expect(
        "cuda_graphs", configuration.cuda_graphs, False, *([True] if case.device == "cuda" else [])
    )
    if configuration.cuda_graphs:
        if case.workload.trains:
            expect("precision in a CUDA graph", configuration.precision, *_CAPTURABLE)
        if case.workload.pass_ == "train_step":
            optimizers = ("adamw-foreach", "adamw-fused", "adamw-triton")
            expect("optimizer in a CUDA graph", configuration.optimizer, *optimizers)


def _expect_mixture(case: ModelCase, compute_capability: ComputeCapability) -> None:
    """Eager; what Inductor makes of routing and grouped products is not known here."""
    expect("compile of a mixture of experts", case.configuration.compile, "none")
    capability = compute_capability if case.device == "cuda" else None
    reason = experts_obstacle(case, compute_capability=capability)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with a mixture of experts: {reason}")


def _expect_gpu(precision: Precision, compute_capability: ComputeCapability) -> None:
    least = (8, 9) if precision == "fp8" else (8, 0)
    if compute_capability < least:
        raise PeakwardError(
            f"expected a compute capability of {spell(least)} or more for {precision} operators in "
            f"closed form, got {spell(compute_capability)}: name a younger GPU, or capture the step instead"
        )


def _expect_own_kernels(case: ModelCase, compute_capability: ComputeCapability) -> None:
    """Peakward's own kernels run where their levers apply."""
    for field in ("loss", "norm", "rope", "swiglu", "weights"):
        reason = setting_obstacle(field, case, compute_capability=compute_capability)
        if reason is not None:
            raise PeakwardError(f"expected settings that go with Peakward's {field}: {reason}")
    if (reason := fused_obstacle(case)) is not None:
        raise PeakwardError(f"expected settings that go with Peakward's kernels: {reason}")
    if case.configuration.attention not in OWN_ATTENTION:
        return
    reason = setting_obstacle(
        "attention", case, compute_capability=compute_capability
    ) or flash_obstacle(case, compute_capability=compute_capability)
    if reason is not None:
        raise PeakwardError(f"expected settings that go with Peakward's attention: {reason}")


def _expect_multiples(case: ModelCase) -> None:
    """Of the sides of fp8 matrices cuBLAS takes no others."""
    shape = case.model
    heads = shape.n_heads + 2 * shape.n_kv_heads
    sides = {
        **_tokens(case.workload),
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


def _tokens(workload: Workload) -> dict[str, int]:
    """Of one micro-batch, by their name."""
    if workload.pass_ == "decode":
        return {"batch_size": workload.batch_size}
    return {"batch_size · seq_len": workload.batch_size * workload.seq_len}


def _expect_sizes(case: ModelCase) -> None:
    """Of smaller ones torch sees other layouts in the same strides, and some sums vanish."""
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
                "capture the step instead, or change it"
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
            f"got {got}: capture the step instead, or change it"
        )
