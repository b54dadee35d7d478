"""Does a candidate compute what its numerics class promises? One step of it against an oracle.

The oracle is the plain model in fp64 with the same weights and tokens. The check runs at the
case's full width but on few layers and tokens, which is where rounding shows without a second
model of full size having to fit.

Of a mixture of experts all are active. Which ones a token goes through is no continuous function:
where two are nearly as likely, rounding sends it through the other, whose result has nothing to do
with the first one's, and no bound on rounding holds. (On a CPU, bf16, 4 layers of d_model 256, 8
experts of which 2 active: 1 to 3 tokens in a hundred went through others than in fp64, and gradients
erred by 4.9e-2; with all 8 active by 0.7e-2, with one, dense, by 0.8e-2.) Where all are active the
same operations run and the choice decides nothing: so the arithmetic is checked, and which experts
a narrower type chooses is not.
"""

import math

import msgspec
import torch
from torch import Tensor

from peakward.lab.levers import precision
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.records.case import Configuration, ModelCase
from peakward.records.lever import NumericsClass
from peakward.records.trial import NumericsError, NumericsVerdict

MAX_LAYERS, MAX_BATCH, MAX_SEQ_LEN = 4, 2, 256
UNIT_ROUNDOFF = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16-mixed": 2.0**-11,
    "bf16-mixed": 2.0**-8,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
}
"""Half the distance from 1 to the next number of the type that matmuls round their operands to."""

Outputs = dict[str, tuple[Tensor, ...]]


def reduced(case: ModelCase) -> ModelCase:
    """The case at full width on at most 4 layers and 2 × 256 tokens, with all experts active."""
    work = case.workload
    return msgspec.structs.replace(
        case,
        model=msgspec.structs.replace(
            case.model,
            n_layers=min(case.model.n_layers, MAX_LAYERS),
            n_active_experts=case.model.n_experts,
        ),
        workload=msgspec.structs.replace(
            work,
            batch_size=min(work.batch_size, MAX_BATCH),
            seq_len=min(work.seq_len, MAX_SEQ_LEN),
            varying_seq_lens=(),
        ),
        memory_limit_bytes=None,
    )


def verify(base: ModelCase, candidate: ModelCase, declared: NumericsClass) -> NumericsVerdict:
    """Compare logits, or where the pass trains loss and gradients, and parameters after two updates.

    Errors are ‖x − oracle‖ / ‖oracle‖ over all elements of a quantity, in fp64. Bounds by class:

    - exact: the candidate equals the base bit for bit (so its error may not exceed the base's).
    - reordered: twice the base's error.
    - approximate: u·√(16·layers + 2), u the unit roundoff of the candidate's matmul operands. A
      gradient has passed, a layer, some 48 roundings on its way forward and back (two operands and
      the result of six matmuls each way, norms, rotation, activation and two additions), and one
      rounding of root mean square u/√3 adds to the others as independent errors do. bf16 on 4
      layers, by width: gradients 0.75e-2 at 128, 1.4e-2 at 768, 2.8e-2 at 2560; bound 3.2e-2.

    What two updates moved the parameters by is compared too, but not for an approximate lever:
    AdamW moves a parameter by the rate times the gradient's sign, which rounding turns where the
    gradient is near zero, and bf16 parameters round most of the move away.

    The loss is one number, which may agree by luck, so its bound is never under the candidate's u.
    """
    base, candidate = reduced(base), reduced(candidate)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(declared == "exact", warn_only=True)
    try:
        oracle = _oracle(base)
        with prepare(base) as step:
            expected = _outputs(_model_step(step))
        with prepare(candidate) as step:
            got = _outputs(_model_step(step))
    finally:
        torch.use_deterministic_algorithms(before)
    equal = all(
        torch.equal(mine, theirs)
        for name in expected
        for mine, theirs in zip(got[name], expected[name], strict=True)
    )
    errors = tuple(
        _error(name, oracle, expected, got, _bound(name, candidate, declared))
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


def _model_step(step: object) -> ModelStep:
    assert isinstance(step, ModelStep)
    return step


def _oracle(case: ModelCase) -> Outputs:
    plain = msgspec.structs.replace(case, configuration=Configuration())
    with precision.fp32_matmuls("fp32"):
        return _outputs(ModelStep(plain, torch.float64))


def _outputs(step: ModelStep) -> Outputs:
    """What the first step from the initial weights computes, and the second leaves, by quantity.

    A step before them may be spent on capture and its warm-up, so the state is put back. Two
    updates, because in the first AdamW's rates of decay cancel against its correction.
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
    outputs: Outputs = {
        "loss": (step.output.clone(),),
        "gradients": tuple(each.clone() for each in step.gradients()),
    }
    if step.optimizer is not None:
        step.step()
        outputs["parameters"] = tuple(each.detach() for each in step.model.parameters())
        moved = zip(outputs["parameters"], initial, strict=True)
        outputs["updates"] = tuple(after - before for after, before in moved)
    return outputs


def _distance(values: tuple[Tensor, ...], oracle: tuple[Tensor, ...]) -> float:
    squared = sum(
        float((a.double() - b).square().sum()) for a, b in zip(values, oracle, strict=True)
    )
    norm = sum(float(b.square().sum()) for b in oracle)
    return math.sqrt(squared / norm)


def _bound(name: str, candidate: ModelCase, declared: NumericsClass) -> tuple[float, float]:
    """(factor on the base's error, least bound)."""
    roundoff = UNIT_ROUNDOFF[candidate.configuration.precision]
    if declared == "approximate":
        return 0.0, roundoff * math.sqrt(16 * candidate.model.n_layers + 2)
    return (1.0 if declared == "exact" else 2.0), (roundoff if name == "loss" else 0.0)


def _error(
    name: str, oracle: Outputs, base: Outputs, candidate: Outputs, bound: tuple[float, float]
) -> NumericsError:
    factor, least = bound
    base_error = _distance(base[name], oracle[name])
    return NumericsError(
        quantity=name,  # type: ignore[arg-type]
        candidate_error=_distance(candidate[name], oracle[name]),
        base_error=base_error,
        bound=max(factor * base_error, least),
    )
