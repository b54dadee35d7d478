"""torch's AdamW: tensor by tensor, over lists of tensors, or as one fused operator.

After Loshchilov & Hutter 2019, as `torch/optim/adamw.py` has it. Its step counts are scalars, each
a tensor; moments and their square roots are in the parameters' type.
"""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.prediction.operators.weights import every_weight, weights
from peakward.records.case import Optimizer
from peakward.records.op_graph import Operand

_Tensors = tuple[Operand, ...]


def adamw(tape: Tape, plan: Plan, implementation: Optimizer) -> None:
    """One update of every parameter."""
    found = weights(plan)
    if implementation == "adamw-loop":
        for weight in found:
            with tape.times(weight.n):
                tape.changed("add_", tensor(FLOAT))
                _update(tape, "", (weight.tensor,))
        return
    every = every_weight(plan)
    steps = Operand(shape=(), dtype=FLOAT, count=sum(each.n for each in found))
    if implementation == "adamw-foreach":
        tape.call("_foreach_add_", (steps, tensor(FLOAT)), (steps,))
        _update(tape, "_foreach_", every)
    elif plan.loss_scaled:
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


def _update(tape: Tape, prefix: str, each: _Tensors) -> None:
    """Decay, both moments, then the step; `each` stands for parameters and for whatever is theirs."""

    def in_place(name: str, n_operands: int, n_read: int | None = None) -> None:
        read = sum(x.n_bytes for x in each) * (n_operands if n_read is None else n_read)
        tape.call(prefix + name, each * n_operands, each, bytes_read=read)

    in_place("mul_", 1)
    in_place("lerp_", 2)
    in_place("mul_", 1)
    in_place("addcmul_", 3, n_read=2)  # The gradient is given twice.
    tape.call(prefix + "sqrt", each, each)
    if prefix:
        in_place("div_", 1)
    else:
        tape.call("div", each, each)
    in_place("add_", 1)
    in_place("addcdiv_", 3)
