"""Whether what a candidate computes errs no more than its numerics class allows, against an fp64 oracle."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.lab.models.torch_settings import deterministic
from peakward.lab.numerics import training, windows
from peakward.records.case import ConfiguredCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim, NumericsError, NumericsVerdict, TrainingRun

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
RUN = ("losses", "seen")
"""The losses of a short training run, and what else was seen of it: the parts of `training.Course`."""


class Subject(NamedTuple):
    """The computations that are compared, for any kind of step."""

    oracle: Callable[[], Outputs]
    """The step without levers, in fp64."""
    outputs: Callable[[ConfiguredCase, int], Outputs]
    """The step of a case, and a training run of so many steps more."""
    n_layers: int | None
    """The number of layers; None where it, and with it a bound on rounding, is not known."""
    rounded: Callable[[ConfiguredCase], Outputs | None] | None = None
    """The oracle with each weight that the case quantises rounded at random (`verify.perturb`); None where
    it quantises none."""
    numbers: Callable[[], Sequence[int | None]] = tuple
    """The repeated block of each of the oracle's parameters (`training.numbers`), once it has been
    computed."""
    erring: Callable[[ConfiguredCase, float], Outputs] | None = None
    """The oracle's training run, with gradients that err by a share and parameters rounded as in the case."""


def judge(subject: Subject, claims: Sequence[Claim]) -> tuple[NumericsVerdict, ...]:
    """Compares logits; where the pass trains, the loss, the gradients and the parameters after two
    updates.

    The oracle is computed once for all claims, and so is each case: of a stack of three levers on nanoGPT's
    model (H200) the checks took 50 s, each with its own oracle and base.

    Errors are ‖x − oracle‖ / ‖oracle‖ over all elements of a quantity, in fp64. Bounds by class:

    - exact: the candidate equals the base bit for bit (so its error may not exceed the base's).
    - reordered: twice the base's error.
    - approximate: u·√(16·layers + 2), where u is the unit roundoff of the candidate's matmul operands; or the
      base's error, where that is larger because the module itself computes in a narrower type.

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

    Where the oracle's steps are fast, the step is followed by a short training run (`training`): its losses
    may be off by what drawn errors within the class make of the oracle's.

    The loss is one number and may agree by luck. Its bound is therefore at least the candidate's u, and
    at least the roundings in fp32 that every computation of it has.
    """
    runs = _Runs(subject)
    return tuple(_verdict(claim, runs) for claim in claims)


class _Runs:
    """Each computation of a subject, made once. The outputs of one case at most are kept beside the oracle's;
    of the others their distances from it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._oracle: Outputs | None = None
        self._errors: dict[tuple[ConfiguredCase, bool], dict[str, float]] = {}
        self._latest: tuple[tuple[ConfiguredCase, bool], Outputs] | None = None
        self._courses: dict[ConfiguredCase, training.Course] = {}
        self._drifts: dict[tuple[float, bool], float] = {}

    @property
    def n_trained(self) -> int:
        """The steps of the oracle's training run; 0 where it has none."""
        return len(self.oracle["losses"][0]) if "losses" in self.oracle else 0

    def drift(self, candidate: ConfiguredCase, error: float) -> float:
        """How far the oracle's losses are off with gradients that err by `error`."""
        assert self.subject.erring is not None
        key = error, candidate.configuration.precision == "bf16"
        if key not in self._drifts:
            erring = self.subject.erring(candidate, error)
            self._drifts[key] = training.drift(*erring["losses"], *self.oracle["losses"])
        return self._drifts[key]

    def course(self, case: ConfiguredCase) -> training.Course:
        """The training run of a case that has been computed."""
        return self._courses[case]

    @property
    def oracle(self) -> Outputs:
        if self._oracle is None:
            self._oracle = self.subject.oracle()
        return self._oracle

    def errors(self, case: ConfiguredCase, *, exactly: bool) -> dict[str, float]:
        """The distance of each quantity from the oracle's; `exactly` runs under determinism."""
        if (case, exactly) not in self._errors:
            self.outputs(case, exactly=exactly)
        return self._errors[case, exactly]

    def outputs(self, case: ConfiguredCase, *, exactly: bool) -> Outputs:
        key = case, exactly
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        oracle, self._latest = self.oracle, None
        with deterministic(exactly):
            # Exact levers are judged by bits alone.
            made = self.subject.outputs(case, 0 if exactly else self.n_trained)
        self._errors[key] = {
            name: distance(made[name], oracle[name]) for name in oracle if name not in RUN
        }
        if "losses" in made:
            self._courses[case] = _course(made)
            self._errors[key]["losses"] = training.apart(*made["losses"], *oracle["losses"])
        self._latest = key, made
        return made

    def coarseness(self, candidate: ConfiguredCase) -> dict[str, float]:
        rounded = self.subject.rounded(candidate) if self.subject.rounded is not None else None
        if rounded is None:
            return {}
        return {name: distance(values, self.oracle[name]) for name, values in rounded.items()}


def _verdict(claim: Claim, runs: _Runs) -> NumericsVerdict:
    base, candidate, exactly = claim.base, claim.candidate, claim.declared == "exact"
    assert isinstance(base, ConfiguredCase)
    assert isinstance(candidate, ConfiguredCase)
    expected = runs.errors(base, exactly=exactly)
    equal = not exactly or _equal(
        runs.outputs(base, exactly=True), runs.outputs(candidate, exactly=True)
    )
    got = runs.errors(candidate, exactly=exactly)
    bounds = _bounds(claim, runs, expected, got)
    errors = tuple(
        NumericsError(
            quantity=name,  # type: ignore[arg-type]
            candidate_error=got[name],
            base_error=expected[name],
            bound=bound,
        )
        for name, bound in bounds.items()
    )
    broken: list[str] = [each.quantity for each in errors if each.is_broken]
    if not equal:
        broken = ["not bitwise equal"]
    return NumericsVerdict(
        declared=claim.declared,
        verdict="violated" if broken else "holds",
        reason=", ".join(broken) or None,
        errors=errors,
        training=_run(claim, runs) if "losses" in bounds else None,
    )


def _bounds(
    claim: Claim, runs: _Runs, expected: dict[str, float], got: dict[str, float]
) -> dict[str, float]:
    """The largest error that is allowed of each quantity that is judged."""
    is_approximate = claim.declared == "approximate"
    coarseness = runs.coarseness(claim.candidate) if is_approximate else {}  # type: ignore[arg-type]
    bounds = {
        name: _bound(
            name, runs.subject, claim, base_error=base_error, coarse=coarseness.get(name, 0.0)
        )
        for name, base_error in expected.items()
        if name != "losses" and not (name == "updates" and is_approximate)
    }
    if "losses" in got and runs.subject.erring is not None:
        allowed = _drift_allowed(claim, runs, bounds)
        bounds["losses"] = allowed if is_approximate else max(allowed, 2 * expected["losses"])
    return bounds


def _drift_allowed(claim: Claim, runs: _Runs, bounds: dict[str, float]) -> float:
    candidate = claim.candidate
    assert isinstance(candidate, ConfiguredCase)
    error = training.error_of_updates(candidate.configuration, bounds["gradients"])
    by_chance = min(
        training.scatter(runs.course(candidate).losses, *runs.oracle["losses"]),
        training.scattered(bounds["loss"], runs.n_trained),
    )
    return training.SLACK * runs.drift(candidate, error) + by_chance


def _run(claim: Claim, runs: _Runs) -> TrainingRun:
    found, base = (runs.course(each) for each in (claim.candidate, claim.base))  # type: ignore[arg-type]
    return training.run_of(runs.subject.numbers(), found, base, _course(runs.oracle))


def _course(made: Outputs) -> training.Course:
    return training.Course(*(each for name in RUN for each in made[name]))


def _equal(expected: Outputs, got: Outputs) -> bool:
    return all(
        torch.equal(mine, theirs)
        for name in expected
        if name not in RUN
        for mine, theirs in zip(got[name], expected[name], strict=True)
    )


def outputs(step: ConfiguredStep, n_trained: int | None = 0) -> Outputs:
    """The results of the first step from the initial weights, and the parameters after the second, by
    quantity; then the course of a training run.

    Args:
        n_trained: the steps of that run; None: as many as there is time for.

    An earlier step may be spent on capture and its warm-up, so the state is put back, all but delayed scales,
    which remember other magnitudes (`windows`). Two updates are
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
    windows.grow(step.model)
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
        n_affordable = training.affordable(step)
        n_trained = n_affordable if n_trained is None else n_trained
        found["parameters"] = tuple(each.detach().clone() for each in step.model.parameters())
        moved = zip(found["parameters"], initial, strict=True)
        found["updates"] = tuple(after - before for after, before in moved)
        if n_trained:
            del initial
            losses, *seen = training.train(step, n_trained)
            found |= {"losses": (losses,), "seen": tuple(seen)}
    return found


def in_double(values: Tensor) -> Tensor:
    """The values as real numbers in fp64: of complex ones (..., 2), both parts."""
    return (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).double()


def distance(values: tuple[Tensor, ...], oracle: tuple[Tensor, ...]) -> float:
    """‖values − oracle‖ / ‖oracle‖ over all elements, in fp64."""
    squared = sum(
        float((in_double(a) - in_double(b)).square().sum())
        for a, b in zip(values, oracle, strict=True)
    )
    norm = sum(float(in_double(b).square().sum()) for b in oracle)
    if norm == 0:
        return math.inf if squared else 0.0
    return math.sqrt(squared / norm)


def _bound(name: str, subject: Subject, claim: Claim, *, base_error: float, coarse: float) -> float:
    """The largest error that the class allows."""
    roundoff = UNIT_ROUNDOFF[claim.candidate.configuration.precision]
    if claim.declared != "approximate":
        least = max(roundoff, LOSS_ROUNDOFF) if name == "loss" else 0.0
        return max((1.0 if claim.declared == "exact" else 2.0) * base_error, least)
    if subject.n_layers is None:
        raise PeakwardError(
            "expected a module that repeats blocks in a ModuleList, whose number the bound on rounding is "
            "reckoned from, got none"
        )
    own = math.hypot(roundoff * math.sqrt(16 * subject.n_layers + 2), 2 * coarse)
    return max(base_error, own)  # A base may compute in a narrower type by itself.
