"""A SwiGLU network in fp8 as one function (`kernels/ops/fp8_swiglu`), in bf16 around it."""

from peakward.prediction.operators.linear import (
    BLOCK,
    SavedLinear,
    cast_delayed,
    fp8_product,
    layers,
    rows,
    written_in_fp8,
)
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import E4M3, E5M2, of_type, tensor
from peakward.prediction.operators.writer import Value, Writer

FORWARD, BACKWARD = "peakward.fp8_swiglu", "peakward.fp8_swiglu_backward"
Saved = tuple[SavedLinear, tuple[Value, ...], SavedLinear]
"""The tensors of the first product, its result, and those of the second."""


def forward(on: Writer, plan: Plan, x: Value) -> tuple[Saved, Value]:
    """The normed residual stream → what is added to it."""
    _, _, up, down = layers(plan)
    with on.module(f"{BLOCK}.ff"):
        given = rows(on.cast(x, plan.compute))
        x_rows, x_columns, x_scale = cast_delayed(on, given, E4M3)
        up_weight = on.parameter(up.weight, "up.weight")
        up_rows, up_columns, up_scale = cast_delayed(on, up_weight, E4M3, held=(given,))
        a, b = (x_rows, x_scale), (up_rows, up_scale)
        packed = fp8_product(on, a, b, plan.compute, dear=True)
        result = tensor(E4M3, given.operand.shape[0], plan.shape.d_ff)
        h_rows, h_columns, h_scale = written_in_fp8(on, FORWARD, (packed,), result)
        down_weight = on.parameter(down.weight, "down.weight")
        down_rows, down_columns, down_scale = cast_delayed(on, down_weight, E4M3)
        a, b = (h_rows, h_scale), (down_rows, down_scale)
        y = fp8_product(on, a, b, plan.compute, dear=True)
        on.use(given, x_rows, up_rows, h_rows, down_rows)  # Locals of the function.
    saved = (
        SavedLinear(up, x_columns, (x_scale, up_columns, up_scale)),
        (packed,),
        SavedLinear(down, h_columns, (h_scale, down_columns, down_scale)),
    )
    return saved, y.viewed(of_type(plan.hidden, plan.compute))


def backward(on: Writer, plan: Plan, saved: Saved, gradient: Value) -> Value:
    """Gradient of the result → of the normed residual stream; also of both weights."""
    up, (packed,), down = saved
    flat = rows(gradient)
    with on.module(f"{BLOCK}.ff"):
        kept = on.saved(up.x, *up.parameters, packed, down.x, *down.parameters)
        x, x_scale, up_weight, up_scale, packed, h, h_scale, down_weight, down_scale = kept
        g_rows, g_columns, scale = cast_delayed(on, flat, E5M2, held=kept)
        fp8_product(on, (g_columns, scale), (h, h_scale), plan.stored, is_gradient=True)
        of_h = fp8_product(on, (g_rows, scale), (down_weight, down_scale), plan.compute)
        result = of_type(packed.operand, E5M2)
        written = written_in_fp8(on, BACKWARD, (of_h, packed), result, (*kept, g_rows, g_columns))
        p_rows, p_columns, scale = written
        of_x = fp8_product(on, (p_rows, scale), (up_weight, up_scale), plan.compute)
        fp8_product(on, (p_columns, scale), (x, x_scale), plan.stored, is_gradient=True)
        on.use(flat, of_h, *written, *kept)  # Locals of the function.
        return on.cast(of_x.viewed(of_type(plan.hidden, plan.compute)), plan.stored)
