"""Whether what a candidate computes errs no more than its numerics class allows, against an fp64 oracle."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.records.errors import PeakwardError
from peakward.records.lever import NumericsClass, NumericsError, NumericsVerdict

UNIT_ROUNDOFF = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16-mixed": 2.0**-11,
    "bf16-mixed": 2.0**-8,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
}
"""Half the distance from 1 to the next number of the type that matmuls round their operands to."""

LOSS_ROUNDOFF = 4 * UNIT_ROUNDOFF["fp32"]
"""The roundings of a mean cross-entropy in fp32: the logarithm, the subtraction of the target's logit,
the sum over tokens, the division. Over 96 draws of 62 tokens on an H100, torch's own erred by up to 2.1
of these u, the fused kernel's by up to 1.7."""

Outputs = dict[str, tuple[Tensor, ...]]


class Subject(NamedTuple):
    """The computations that are compared, for any kind of step."""

    oracle: Callable[[], Outputs]
    """The base in fp64."""
    base: Callable[[], Outputs]
    candidate: Callable[[], Outputs]
    roundoff: float
    """The unit roundoff of the candidate's matmul operands."""
    n_layers: int | None
    """The number of layers; None where it, and with it a bound on rounding, is not known."""
    rounded: Callable[[], Outputs] | None = None
    """The base in fp64, with each weight that the candidate quantises rounded at random
    (`verify.perturb`); None where it quantises none."""


def judge(subject: Subject, declared: NumericsClass) -> NumericsVerdict:
    """Compares logits; where the pass trains, the loss, the gradients and the parameters after two
    updates.

    Errors are ‖x − oracle‖ / ‖oracle‖ over all elements of a quantity, in fp64. Bounds by class:

    - exact: the candidate equals the base bit for bit (so its error may not exceed the base's).
    - reordered: twice the base's error.
    - approximate: u·√(16·layers + 2), where u is the unit roundoff of the candidate's matmul operands.

    The bound of approximate levers counts roundings. In each layer a gradient passes some 48 of them on
    its way forward and back (two operands and the result of six matmuls each way, norms, rotation,
    activation and two additions). Each has a root mean square of u/√3, and they add up as independent
    errors do. In bf16 on 4 layers, gradients err by 0.75e-2 at width 128, 1.4e-2 at 768 and 2.8e-2 at
    2560; the bound is 3.2e-2.

    Quantised weights are far coarser than the operands of products. Their effect is measured on the
    oracle, with its weights rounded at random in the same steps. The bound is then twice that error and
    the bound of the operands' roundings, added as independent errors.

    The change of the parameters over two updates is compared too, but not for an approximate lever.
    AdamW moves a parameter by the rate times the gradient's sign; rounding turns that sign where the
    gradient is near zero, and bf16 parameters round most of the move away.

    The loss is one number and may agree by luck. Its bound is therefore at least the candidate's u, and
    at least the roundings in fp32 that every computation of it has.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(declared == "exact", warn_only=True)
    try:
        oracle, expected, got = subject.oracle(), subject.base(), subject.candidate()
        asked = subject.rounded if declared == "approximate" else None
        rounded = {} if asked is None else asked()
    finally:
        torch.use_deterministic_algorithms(before)
    equal = all(
        torch.equal(mine, theirs)
        for name in expected
        for mine, theirs in zip(got[name], expected[name], strict=True)
    )
    coarseness = {name: distance(values, oracle[name]) for name, values in rounded.items()}
    errors = tuple(
        _error(
            name, oracle, expected, got, _bound(name, subject, declared, coarseness.get(name, 0.0))
        )
        for name in oracle
        if not (name == "updates" and declared == "approximate")
    )
    broken: list[str] = [each.quantity for each in errors if not each.candidate_error <= each.bound]
    if declared == "exact" and not equal:
        broken = ["not bitwise equal"]
    return NumericsVerdict(
        declared=declared,
        verdict="violated" if broken else "holds",
        reason=", ".join(broken) or None,
        errors=errors,
    )


def outputs(step: ConfiguredStep) -> Outputs:
    """The results of the first step from the initial weights, and the parameters after the second, by
    quantity.

    An earlier step may be spent on capture and its warm-up, so the state is put back. Two updates are
    made, because in the first one AdamW's rates of decay cancel against its correction.
    """
    initial = [each.detach().clone() for each in step.model.parameters()]
    step.step()
    with torch.no_grad():
        for parameter, value in zip(step.model.parameters(), initial, strict=True):
            parameter.copy_(value)
        for state in step.optimizer.state.values() if step.optimizer is not None else ():
            for value in state.values():
                value.zero_()
    step.rewind()
    step.step()
    assert step.output is not None
    if not step.case.workload.trains:
        return {"logits": (step.output.clone(),)}
    found: Outputs = {
        "loss": (step.output.clone(),),
        "gradients": tuple(each.clone() for each in step.gradients()),
    }
    if step.optimizer is not None:
        step.step()
        found["parameters"] = tuple(each.detach() for each in step.model.parameters())
        moved = zip(found["parameters"], initial, strict=True)
        found["updates"] = tuple(after - before for after, before in moved)
    return found


def distance(values: tuple[Tensor, ...], oracle: tuple[Tensor, ...]) -> float:
    """‖values − oracle‖ / ‖oracle‖ over all elements, in fp64."""
    squared = sum(
        float((a.double() - b.double()).square().sum()) for a, b in zip(values, oracle, strict=True)
    )
    norm = sum(float(b.double().square().sum()) for b in oracle)
    if norm == 0:
        return math.inf if squared else 0.0
    return math.sqrt(squared / norm)


def _bound(
    name: str, subject: Subject, declared: NumericsClass, coarseness: float
) -> tuple[float, float]:
    """(factor on the base's error, smallest bound)."""
    if declared != "approximate":
        return (1.0 if declared == "exact" else 2.0), (
            max(subject.roundoff, LOSS_ROUNDOFF) if name == "loss" else 0.0
        )
    if subject.n_layers is None:
        raise PeakwardError(
            "expected a module that repeats blocks in a ModuleList, whose number the bound on rounding is "
            "reckoned from, got none"
        )
    of_operands = subject.roundoff * math.sqrt(16 * subject.n_layers + 2)
    return 0.0, math.hypot(of_operands, 2 * coarseness)


def _error(
    name: str, oracle: Outputs, base: Outputs, candidate: Outputs, bound: tuple[float, float]
) -> NumericsError:
    factor, least = bound
    base_error = distance(base[name], oracle[name])
    return NumericsError(
        quantity=name,  # type: ignore[arg-type]
        candidate_error=distance(candidate[name], oracle[name]),
        base_error=base_error,
        bound=max(factor * base_error, least),
    )
