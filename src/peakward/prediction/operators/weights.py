"""The parameters as tensors, in the order of the model, and the optimiser's step over them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from peakward.levers import optimizer
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import experts, readout
from peakward.prediction.operators.linear import BLOCK, Linear, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import (
    BFLOAT,
    DOUBLE,
    FLOAT,
    INT32,
    UINT8,
    Tape,
    alike,
    of_type,
    tensor,
)
from peakward.records.case import Optimizer
from peakward.records.op_graph import ITEM_BYTES, Operand

# The parameters, with the modules that own them.


class Weight(NamedTuple):
    """A parameter of one module, or of the like one in every block."""

    module: str
    tensor: Operand
    n: int
    """How many blocks have it; 1 outside them."""


@lru_cache(maxsize=64)
def weights(plan: Plan) -> tuple[Weight, ...]:
    """All of them, each once: a tied head's is the embedding's."""
    shape = plan.shape
    table = tensor(plan.stored, shape.vocab_size, shape.d_model)
    found = [Weight("embedding", table, 1)]
    if shape.positions == "learned":
        rows = tensor(plan.stored, shape.max_seq_len, shape.d_model)
        found.append(Weight("position_embedding", rows, 1))
    layer = layers(plan)
    found += _norm(plan, f"{BLOCK}.attention_norm", shape.n_layers)
    found += _linear(layer.qkv, shape.n_layers) + _linear(layer.out, shape.n_layers)
    found += _norm(plan, f"{BLOCK}.ff_norm", shape.n_layers)
    found += _feed_forward(plan)
    found += _norm(plan, "readout.norm", 1)
    if not shape.tied_head:
        found += _linear(readout.head(plan), 1)
    return tuple(found)


def sizes(plan: Plan) -> list[int]:
    """Bytes of each of them, one by one."""
    return [n_bytes for each in weights(plan) for n_bytes in (each.tensor.n_bytes,) * each.n]


def every_weight(found: Sequence[Weight]) -> tuple[Operand, ...]:
    """All of them as one list argument; gradients and moments are alike."""
    return alike(
        tuple(
            Operand(shape=each.tensor.shape, dtype=each.tensor.dtype, count=each.n)
            for each in found
        )
    )


def _feed_forward(plan: Plan) -> list[Weight]:
    n = plan.shape.n_layers
    if plan.shape.n_experts == 1:
        return _linear(layers(plan).up, n) + _linear(layers(plan).down, n)
    router, *grouped = experts.layers(plan)
    return [*_linear(router, n), *(Weight(each.module, each.weight, n) for each in grouped)]


def _norm(plan: Plan, module: str, n: int) -> list[Weight]:
    vectors = 2 if plan.shape.norm == "layernorm" else 1
    return [Weight(module, tensor(plan.stored, plan.shape.d_model), n)] * vectors


def _linear(layer: Linear, n: int) -> list[Weight]:
    vector = [Weight(layer.module, layer.bias_vector, n)] if layer.bias else []
    return [Weight(layer.module, layer.weight, n), *vector]


# AdamW: torch's tensor by tensor, over lists of tensors, or as one fused operator; or Peakward's.
#
# After Loshchilov & Hutter 2019, as `torch/optim/adamw.py` has it. Its step counts are scalars, each a
# tensor; moments and their square roots are in the parameters' type, but where Peakward's holds them in less.

_Tensors = tuple[Operand, ...]
Implementation = Optimizer | Literal["adamw-foreach-captured"]
"""Over lists, in a form that a CUDA graph can hold: the step counts are on the GPU, and so is all that
is made of them."""


def adamw(
    tape: Tape,
    found: Sequence[Weight],
    implementation: Implementation,
    *,
    loss_scaled: bool = False,
) -> None:
    """One update of these parameters."""
    if implementation == "adamw-loop":
        for weight in found:
            with tape.times(weight.n):
                tape.changed("add_", tensor(FLOAT))
                _update(tape, "", (weight.tensor,))
        return
    if implementation in optimizer.OWN:
        _own_kernel(tape, found, implementation)
        return
    every = every_weight(found)
    steps = Operand(shape=(), dtype=FLOAT, count=sum(each.n for each in found))
    if implementation == "adamw-foreach":
        tape.call("_foreach_add_", (steps, tensor(FLOAT)), (steps,))
        _update(tape, "_foreach_", every)
    elif implementation == "adamw-foreach-captured":
        _captured(tape, every, steps)
    elif loss_scaled:
        _fused_if_finite(tape, every, steps)
    else:
        tape.call("_foreach_add_", (steps,), (steps,))
        tape.call("_fused_adamw_", every * 4 + (steps,), every * 3)


def _fused_if_finite(tape: Tape, every: _Tensors, steps: Operand) -> None:
    """The operator gets a flag by which it changes nothing, and so must the step counts."""
    infinite = tape.pointwise("add", tensor(FLOAT))
    tape.call("_foreach_add_", (steps,), (steps,))
    tape.call("_fused_adamw_", every * 4 + (steps, infinite), every * 3)
    read = steps.n_bytes + infinite.n_bytes  # The flag is given once for each count.
    tape.call("_foreach_sub_", (steps, steps), (steps,), bytes_read=read)


_MOMENTS = {"adamw-bf16-states": ("adamw_bf16", BFLOAT), "adamw-8bit-states": ("adamw_8bit", UINT8)}


def _own_kernel(tape: Tape, found: Sequence[Weight], implementation: str) -> None:
    """Peakward's (`kernels/ops/adamw`): one launch a tensor, after what all of them share is made in
    double precision: rate and correction, from one step count. Moments in fewer bits are rounded by the
    count too, those in 8 with the exponents of their blocks."""
    count = tape.cast(tape.changed("add_", tensor(FLOAT)), DOUBLE)
    for _ in ("lr / (1 - beta1ᵗ)", "1 / (1 - beta2ᵗ)"):
        for name in ("pow", "rsub", "reciprocal", "mul"):
            tape.pointwise(name, count)
    both = tensor(DOUBLE, 2)
    tape.call("stack", (Operand(shape=(), dtype=DOUBLE, count=2),), (both,))
    shared = tape.cast(both, FLOAT)
    for weight in found:
        each = weight.tensor
        with tape.times(weight.n):
            if implementation not in _MOMENTS:
                tape.own("adamw", (each, each, each, each, shared), (each, each, each))
                continue
            name, dtype = _MOMENTS[implementation]
            moments = [of_type(each, dtype)] * 2
            if dtype == UINT8:
                moments += [tensor(UINT8, -(-each.n_elements // optimizer.BLOCK))] * 2
            tape.own(name, (each, each, *moments, shared, tensor(FLOAT)), (each, *moments))


def _captured(tape: Tape, every: _Tensors, steps: Operand) -> None:
    """`capturable`: the corrections are lists of scalars, by which the roots are divided."""
    tape.call("_foreach_add_", (steps,), (steps,))
    _moments(tape, "_foreach_", every)
    for name in ("pow", "pow", "sub_", "sub_", "neg_", "div_", "reciprocal_", "sqrt_"):
        tape.call(f"_foreach_{name}", (steps,), (steps,))
    tape.call("_foreach_sqrt", every, every)
    tape.call("_foreach_div_", (*every, steps), every)
    tape.call("_foreach_add_", every, every)
    tape.call("_foreach_div_", (*every, steps), every)
    _in_place(tape, "_foreach_addcdiv_", every, 3)


def _update(tape: Tape, prefix: str, each: _Tensors) -> None:
    """Decay, both moments, then the step; `each` stands for parameters and for whatever is theirs."""
    _moments(tape, prefix, each)
    tape.call(prefix + "sqrt", each, each)
    if prefix:
        _in_place(tape, prefix + "div_", each, 1)
    else:
        tape.call("div", each, each)
    _in_place(tape, prefix + "add_", each, 1)
    _in_place(tape, prefix + "addcdiv_", each, 3)


def _moments(tape: Tape, prefix: str, each: _Tensors) -> None:
    _in_place(tape, prefix + "mul_", each, 1)
    _in_place(tape, prefix + "lerp_", each, 2)
    _in_place(tape, prefix + "mul_", each, 1)
    _in_place(tape, prefix + "addcmul_", each, 3, n_read=2)  # The gradient is given twice.


def _in_place(
    tape: Tape, name: str, each: _Tensors, n_operands: int, n_read: int | None = None
) -> None:
    read = sum(x.n_bytes for x in each) * (n_operands if n_read is None else n_read)
    tape.call(name, each * n_operands, each, bytes_read=read)


# AdamW's state and temporaries (`torch/optim/adam.py`).


def state_in_memory(line: Timeline, plan: Plan, implementation: Optimizer) -> None:
    """Two moments of every parameter, in its type or in fewer bits."""
    moment = [
        n_bytes
        for weight in weights(plan)
        for n_bytes in optimizer.moment_sizes(
            implementation, weight.tensor.n_elements, ITEM_BYTES[weight.tensor.dtype]
        )
        * weight.n
    ]
    line.keep(*line.ops(2 * moment, category="optimizer_state"))


def update_in_memory(line: Timeline, plan: Plan, implementation: Optimizer) -> None:
    """Over lists, the root of every second moment at once; tensor by tensor, the root and its
    quotient; in one kernel nothing."""
    if implementation == "adamw-foreach":
        line.ops(sizes(plan))
    elif implementation == "adamw-loop":
        line.ops((max(sizes(plan)),) * 2)
    else:
        line.ops(())


# The operators that a loss scale adds to a step of fp16: torch's `GradScaler`, where no infinity is found.
#
# After Micikevicius et al. 2018, "Mixed precision training". The scale is a tensor of one element
# on the GPU. A step that finds an infinity leaves the optimiser's update out; that is not stated.

_SCALAR = tensor(FLOAT)


def scale_loss(tape: Tape) -> None:
    """The loss times the scale, and the gradient of that."""
    for _ in ("loss", "gradient"):
        tape.pointwise("mul", _SCALAR, _SCALAR)


def unscale(tape: Tape, plan: Plan) -> None:
    """All gradients by the reciprocal of the scale, and whether any is infinite."""
    tape.cast(tape.pointwise("reciprocal", tape.cast(_SCALAR, DOUBLE)), FLOAT)
    tape.made("full", FLOAT)
    for _ in ("reciprocal", "found infinity"):
        tape.call("_to_copy", (_SCALAR,), (_SCALAR,))  # For the device of the gradients.
    gradients = every_weight(weights(plan))
    inputs, outputs = (*gradients, _SCALAR, _SCALAR), (*gradients, _SCALAR)
    tape.call("_amp_foreach_non_finite_check_and_unscale_", inputs, outputs)


def read_whether_infinite(tape: Tape) -> None:
    """The host leaves the update out where an infinity was found, and so waits for the device.

    An optimizer that takes the flag itself, torch's fused one, needs no such wait. A profiled step of
    `small` on an H200 waits so once (`2026-11-27-h200-study-precision`).
    """
    tape.call("_local_scalar_dense", (_SCALAR,), ())


def update_scale(tape: Tape) -> None:
    """Updates the scale and the steps since it grew, by whether an infinity was found."""
    since = tensor(INT32)
    tape.call("_amp_update_scale_", (_SCALAR, since, _SCALAR), (_SCALAR, since))
