"""Why a value turned non-finite: read from the operator that made it and from the steps before.

The rules are asked in order, and the first that fits is the cause. A cause that lies before the operator (a
bad batch, a learning rate that leapt, activations that grow) comes before what the operator itself shows.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

from peakward.records.debugging import Cause, CauseKind, Fault, ModuleSeen, StepSeen, TensorSummary

LARGEST = {"float16": 65_504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""The largest finite value of a type (IEEE 754; bfloat16 has fp32's exponent and 8 bits of significand)."""
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
"""Where each is minus infinity."""
INFINITE_AT_ENDS = (*LOGARITHMS, "rsqrt", "atanh", "erfinv")
"""Functions that are infinite where their domain ends."""
DOMAINS = {
    **{each: (zero, math.inf) for each, zero in LOGARITHMS.items()},
    **dict.fromkeys(("sqrt", "rsqrt"), (0.0, math.inf)),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (-1.0, 1.0)),
    "acosh": (1.0, math.inf),
}
"""The least and the greatest number of which each function of real numbers has a value."""
DIVISIONS = ("div", "reciprocal", "rsqrt", "true_divide", "pow", "addcdiv")
NORMS = ("native_layer_norm", "native_group_norm", "_fused_rms_norm", "rsqrt")
SOFTMAX = ("_softmax", "_safe_softmax", "softmax")
INFINITE_AT_ZERO = (
    "Sqrt",
    "Pow",
    "LinalgVectorNorm",
    "Norm",
    "Log",
    "Rsqrt",
    "Reciprocal",
    "Acos",
    "Asin",
)
"""Nodes of the backward pass whose derivative is infinite, or 0/0, where their input is 0."""
LEAP = 10.0
"""An update or a rate so many times the median of the steps before is a leap: over a warm-up or a decay they
change by a few per cent a step."""
LARGEST_UPDATE = 0.5
"""The largest norm of an update over that of the parameters. Runs that train well have some 0.001."""
GROWTH = 8.0
"""Largest activations that grow by this factor within the replayed steps. In runs that train well they change
by less than 2 within a hundred steps."""
LEAST_STEPS = 3


def cause(fault: Fault, steps: Sequence[StepSeen], modules: Sequence[ModuleSeen]) -> Cause:
    """Returns the likely cause of a fault.

    Args:
        steps: the replayed steps before the fault, in order.
        modules: outputs of modules over these steps.
    """
    for rule in _RULES:
        found = rule(fault, steps, modules)
        if found is not None:
            return found
    return _cause(
        "unknown",
        f"{operator_name(fault)} made {count(fault.output.n_nonfinite)} of {_n(fault.output):,} values from "
        "finite ones, and no rule knows why.",
        "look at the inputs of the operator that is named",
    )


def operator_name(fault: Fault) -> str:
    """The operator without torch's overload: "log"; of a backward pass with the node that it belongs to."""
    name = fault.operator.removeprefix("aten.").rpartition(".")[0] or fault.operator
    return name if fault.derivative_of is None else f"{name} of {fault.derivative_of}"


def count(n: int) -> str:
    """A number of values in words: "1 value", "18 values"."""
    return "1 value" if n == 1 else f"{n:,} values"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _batch(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if fault.phase != "data":
        return None
    return _cause(
        "bad batch",
        f"The batch of step {fault.step} holds {count(fault.output.n_nonfinite)} that "
        f"{_are(fault.output.n_nonfinite)} not finite ({fault.operator}).",
        "check what the loader reads, and leave such samples out",
    )


def _learning_rate(
    fault: Fault, steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    """A rate that leapt; or an update that no training survives."""
    if fault.phase == "data":
        return None
    rates = [each.learning_rate for each in steps if each.learning_rate is not None]
    for n in range(LEAST_STEPS - 1, len(rates)):
        usual = median(rates[:n])
        if usual > 0 and rates[n] > LEAP * usual:
            return _cause(
                "learning rate",
                f"The learning rate leapt from {usual:.3g} to {rates[n]:.3g} at step {steps[n].step}, "
                f"{_before(fault.step - steps[n].step)}.",
                "mend the schedule, or clip the gradients",
            )
    moved = next((each for each in steps if (each.update_ratio or 0.0) > LARGEST_UPDATE), None)
    if moved is None or moved.learning_rate is None:
        return None
    return _cause(
        "learning rate",
        f"The update of step {moved.step} at a learning rate of {moved.learning_rate:.3g} moved the "
        f"parameters by {moved.update_ratio:.3g} times their own norm.",
        "lower the learning rate, or warm it up",
    )


def _grows(fault: Fault, steps: Sequence[StepSeen], modules: Sequence[ModuleSeen]) -> Cause | None:
    if len(steps) < LEAST_STEPS or not _is_overflow(fault):
        return None
    grown = [(each, growth) for each in modules if (growth := _growth(each.largest)) >= GROWTH]
    if not grown:
        return None
    worst, growth = max(grown, key=lambda each: each[1])
    # Which of two it is, the trial at a tenth of the rate tells.
    return _cause(
        "growing activations",
        f"The largest output of {worst.module or 'the model'} ({worst.module_type}) grew {growth:.3g} times "
        f"within {len(worst.largest)} steps, to {_last(worst.largest):.3g}, until {operator_name(fault)} "
        f"passed what {fault.output.dtype} holds.",
        "lower the learning rate, clip the gradients, or put a norm before this module",
    )


def _logarithm(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    name = _base(fault).rstrip("_")
    if fault.phase == "backward" or name not in LOGARITHMS or not fault.inputs:
        return None
    given, zero = fault.inputs[0], LOGARITHMS[name]
    if given.lowest != zero:
        return None
    n = f": {count(given.n_zero)} of it {_are(given.n_zero)} 0" if zero == 0 else ""
    return _cause(
        "logarithm of zero",
        f"{operator_name(fault)} was given {zero:g}{n}.",
        "take F.log_softmax or F.logsigmoid of the scores, or clamp the input: "
        f"{_clamped(name)}.{name}()",
    )


def _domain(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    """A root or a logarithm of a negative number, an arc cosine of 1.0001."""
    name = _base(fault).rstrip("_")
    if fault.phase == "backward" or name not in DOMAINS or not fault.inputs:
        return None
    given, (least, most) = fault.inputs[0], DOMAINS[name]
    if given.lowest is None or given.highest is None:
        return None
    outside = given.lowest if given.lowest < least else given.highest
    if least <= outside <= most:
        return None
    ends = f"below {least:g}" if most == math.inf else f"outside {least:g} to {most:g}"
    return _cause(
        "outside the domain",
        f"{operator_name(fault)} was given {outside:.7g}, and has no value {ends}.",
        f"look at why its input is {ends}; where that is rounding alone, clamp it: {_clamped(name)}",
    )


def _clamped(name: str) -> str:
    """An input x of the function within its domain, and off its ends where it is infinite there."""
    least, most = DOMAINS[name]
    if most == math.inf:
        off = "" if name not in INFINITE_AT_ENDS else "1e-20" if least == 0 else f"{least:g} + 1e-6"
        return f"x.clamp_min({off or f'{least:g}'})"
    off = " + 1e-6" if name in INFINITE_AT_ENDS else ""
    return f"x.clamp({least:g}{off}, {most:g}{off.replace('+', '-')})"


def _variance(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if "norm" not in fault.module_type.lower() and _base(fault) not in NORMS[:-1]:
        return None
    if _is_overflow(fault):  # The exact value is finite, so nothing was divided by 0.
        return None
    given = next(iter(fault.inputs), None)
    flat = given is not None and (given.least_row_spread == 0 or given.n_zero > 0)
    if not flat and fault.derivative_of is None:
        return None
    where = f"{fault.module} ({fault.module_type})" if fault.module else operator_name(fault)
    return _cause(
        "zero variance",
        f"{where} divides by the spread of a row whose values are all equal, and its epsilon does not keep "
        "that from being 0.",
        "give the norm an epsilon of 1e-5, and look at why the row is constant (a dead channel, padding)",
    )


def _masked(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if _base(fault) not in SOFTMAX or not fault.masked_rows:
        return None
    rows = "1 row is" if fault.masked_rows == 1 else f"{fault.masked_rows:,} rows are"
    return _cause(
        "all masked",
        f"{rows} masked as a whole: the softmax of negative infinity alone is 0/0.",
        "let every query see one key at least, or mask with a finite number",
    )


def _optimizer(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if fault.phase != "optimizer":
        return None
    narrow = [each.dtype for each in fault.inputs if each.dtype in NARROW]
    divides = _base(fault).startswith("_foreach_addcdiv") or _base(fault).rstrip("_") in DIVISIONS
    if divides:
        more = f" in {narrow[0]}, where 1e-8 is 0" if "float16" in narrow else ""
        return _cause(
            "optimizer state",
            f"The optimizer divides by 0{more}: the second moment of a gradient is 0 and its epsilon too.",
            "give the optimizer an epsilon that its type holds (1e-8 in fp32, 1e-4 in fp16)",
        )
    return _cause(
        "optimizer state",
        f"{operator_name(fault)} in the optimizer made {count(fault.output.n_nonfinite)} of finite ones"
        + (f", in {narrow[0]}" if narrow else "")
        + ".",
        "keep the optimizer's state in fp32, and look at the largest gradient",
    )


def _derivative(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    node = fault.derivative_of
    if (
        node is None
        or not node.startswith(INFINITE_AT_ZERO)
        or not any(each.n_zero for each in fault.inputs)
    ):
        return None
    return _cause(
        "infinite derivative",
        f"The forward pass is finite; the derivative of {node.partition('Backward')[0].lower()} at 0 is not.",
        "add an epsilon inside, (x + 1e-12).sqrt(), or leave zeros out before, not behind: torch.where keeps "
        "the derivative of both branches",
    )


def _division(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if _base(fault).rstrip("_") not in DIVISIONS or not fault.inputs or not fault.inputs[-1].n_zero:
        return None
    n = fault.inputs[-1].n_zero
    return _cause(
        "division by zero",
        f"{operator_name(fault)} was given {count(n)} to divide by that {_are(n)} 0.",
        "add an epsilon to what it divides by",
    )


def _overflow(
    fault: Fault, _steps: Sequence[StepSeen], _modules: Sequence[ModuleSeen]
) -> Cause | None:
    if not _is_overflow(fault):
        return None
    dtype, exact = fault.output.dtype, fault.exact_magnitude
    help_ = (
        "compute it in bf16 or fp32, or scale its inputs (of attention: the queries, before the product)"
        if dtype == "float16"
        else "bound its input: subtract the row's maximum before exp, or clamp it"
    )
    return _cause(
        "overflow",
        f"{operator_name(fault)} gives {exact:.6g} on these inputs, and {dtype} ends at "
        f"{LARGEST[dtype]:.6g}.",
        help_,
    )


_Rule = Callable[[Fault, Sequence[StepSeen], Sequence[ModuleSeen]], Cause | None]
_RULES: tuple[_Rule, ...] = (
    _batch,
    _learning_rate,
    _grows,
    _masked,
    _optimizer,
    _variance,
    _derivative,
    _logarithm,
    _domain,
    _division,
    _overflow,
)


def _before(n: int) -> str:
    return "the failing one" if n == 0 else "1 step before" if n == 1 else f"{n:,} steps before"


def _is_overflow(fault: Fault) -> bool:
    largest = LARGEST.get(fault.output.dtype)
    return (
        fault.exact_magnitude is not None
        and largest is not None
        and fault.exact_magnitude > largest
    )


def _growth(values: Sequence[float | None]) -> float:
    """The last over the first."""
    kept = [each for each in values if each]
    return kept[-1] / kept[0] if len(kept) >= LEAST_STEPS else 0.0


def _last(values: Sequence[float | None]) -> float:
    return next((each for each in reversed(values) if each is not None), 0.0)


def _base(fault: Fault) -> str:
    parts = fault.operator.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _n(tensor: TensorSummary) -> int:
    n = 1
    for each in tensor.shape:
        n *= each
    return n


def _cause(kind: CauseKind, sentence: str, advice: str) -> Cause:
    return Cause(kind=kind, sentence=sentence, advice=advice)
