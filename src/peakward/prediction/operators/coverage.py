"""Which cases the closed form covers; it refuses the rest."""

from typing import get_args

from peakward.hardware.attention_backend import ComputeCapability
from peakward.levers.catalogue import setting_obstacle, together_obstacle
from peakward.levers.registry import at_work, axes_of
from peakward.records.case import ModelCase, ModulePass, Precision, Workload
from peakward.records.device import spell
from peakward.records.errors import PeakwardError

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


def _expect_capturable(case: ModelCase) -> None:
    """The lever takes no others."""
    configuration = case.configuration
    if case.workload.trains:
        expect("precision in a CUDA graph", configuration.precision, *_CAPTURABLE)
    if case.workload.pass_ == "train_step":
        optimizers = ("adamw-foreach", "adamw-fused", "adamw-triton")
        expect("optimizer in a CUDA graph", configuration.optimizer, *optimizers)


def _expect_gpu(precision: Precision, compute_capability: ComputeCapability) -> None:
    least = (8, 9) if precision == "fp8" else (8, 0)
    if compute_capability < least:
        raise PeakwardError(
            f"expected a compute capability of {spell(least)} or more for {precision} operators in "
            f"closed form, got {spell(compute_capability)}: name a younger GPU, or capture the step instead"
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
    """The token counts of one micro-batch, by their name."""
    if workload.pass_ == "decode":
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
