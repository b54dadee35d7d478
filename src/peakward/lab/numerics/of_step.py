"""Checks that a live step computes the same with a lever as without it, as far as its model shows.

A function that closes over its own tensors has no fp64 oracle. The step without the lever takes its
place, called from the same parameters, optimizer state, random states and batch. It is called twice,
because a step that does not repeat itself proves nothing.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.lab.data.given_loader import GivenLoader
from peakward.lab.levers.given_step import (
    Given,
    GivenStep,
    feed_of,
    given_step,
    gradients_seen,
    schedulers,
)
from peakward.lab.levers.module_levers import SdpaCalls
from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.models.snapshot import restored
from peakward.lab.models.torch_settings import deterministic, kept_settings
from peakward.lab.numerics import windows
from peakward.lab.numerics.judge import UNIT_ROUNDOFF, Outputs, distance, in_double
from peakward.lab.numerics.windows import Kept
from peakward.levers import catalogue, loader
from peakward.records.case import StepCase
from peakward.records.lever import Claim, NumericsClass, NumericsError, NumericsVerdict

ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: UNIT_ROUNDOFF["fp32"],
    torch.float16: UNIT_ROUNDOFF["fp16-mixed"],
    torch.bfloat16: UNIT_ROUNDOFF["bf16"],
}
N_DRAWS = 8
"""Steps with dropout whose losses are compared."""
MOST_T = 5.41
"""Student's t that is exceeded once in a thousand times where nothing differs, with `N_DRAWS` − 1 degrees of
freedom."""
N_BATCHES = 8
"""Batches of another loader that are compared."""
HALF = 0.5
"""An optimizer that does nothing is as far from the right parameters as the update. One that is right is far
nearer: in bf16 single roundings apart."""
AGAINST_ITSELF = "against the same step without the lever, for want of an fp64 oracle"


def judge_step(given: Given, claim: Claim, *, kept: Kept) -> NumericsVerdict:
    """Compares the step's return value and the gradients that it leaves; for an optimizer's lever also the
    parameters after it. On leaving `kept` all is as it is now.

    Differences are ‖x − base‖ / ‖base‖. Bounds by class:

    - exact: none, bit for bit, under torch's deterministic algorithms.
    - approximate: that of `judge`, u·√(16·layers + 2), where u is the unit roundoff of the operands.
    - reordered: u is that of the operands, or of attention's where it is larger. The base errs by up to
      that bound and the candidate by twice as much: together three times the bound. Where operands are
      not rounded to fewer digits than sums have, each rounding is that of a sum, over the width of a
      parameter, over keys or over tokens, whose error grows as the root of their number.
    - An optimizer's lever leaves loss and gradients as they are, but for twice what two calls of the base
      differ by. Parameters may differ by four roundings of their type, or that. Where this is as large as
      the whole update, an optimizer that does nothing would be within it: nothing is then proved by a
      candidate that is farther from the base's parameters than half its update.

    A step that draws random numbers, which a lever may draw otherwise, is compared in eval mode. With
    dropout, losses of several steps from one state must then agree by a paired t-test.
    """
    base, candidate, declared = claim.base, claim.candidate, claim.declared
    assert isinstance(base, StepCase)
    assert isinstance(candidate, StepCase)
    told = partial(NumericsVerdict, declared=declared)
    own = loader.chosen(base.configuration)
    if loader.chosen(candidate.configuration) != own:
        batches = told(**_same_batches(given, base, candidate, kept))
        rest = catalogue.with_settings(candidate.configuration, {"loader": own})
        if batches.verdict != "holds" or rest == base.configuration:
            return batches
    if given.model is None:
        return told(
            verdict="not computed",
            reason="no model was given to compare gradients of: give it as model=",
        )
    one = _on_one_batch(given, base)
    arms = _Arms(one, base, candidate, declared, kept)
    if declared != "exact" and not arms.only_updates and arms.n_layers is None:
        return told(
            verdict="not computed",
            reason="the model repeats no blocks in a ModuleList, whose number the bound on rounding is "
            "reckoned from",
        )
    found = arms.compared()
    if found.verdict == "holds" or not found.draws:
        return found.told(declared)
    with _in_eval(given.model):
        still = _Arms(one, base, candidate, declared, _as_here(given)).compared()
    if still.draws and still.verdict != "holds":
        return told(
            verdict="not computed",
            reason="the step draws random numbers in eval mode too, and the lever may draw others: set its "
            "dropout to 0",
        )
    if still.verdict != "holds":
        return still.told(declared)
    t = arms.with_dropout()
    if abs(t) > MOST_T:
        reason = (
            f"with dropout: the means of {N_DRAWS} losses differ by {abs(t):.1f} standard errors"
        )
        return told(verdict="violated", reason=reason, errors=still.errors)
    reason = (
        f"in eval mode, {AGAINST_ITSELF}; with dropout the means of {N_DRAWS} losses differ by "
        f"{abs(t):.1f} standard errors"
    )
    return msgspec.structs.replace(still.told(declared), reason=reason)


def _same_batches(given: Given, base: StepCase, candidate: StepCase, kept: Kept) -> dict[str, Any]:
    """The verdict on the first batches of another loader, which must be the base's bit for bit."""
    first, again, got = (_batches(given, case, kept) for case in (base, base, candidate))
    if not _equal(first, again):
        reason = (
            "the loader, begun twice from one state, gives other batches: let its data set and its "
            "samplers draw from torch's generators"
        )
        return {"verdict": "not computed", "reason": reason}
    if not _equal(first, got):
        return {"verdict": "violated", "reason": f"other batches among the first {N_BATCHES}"}
    return {
        "verdict": "holds",
        "reason": f"the first {N_BATCHES} batches are the same, bit for bit",
    }


def _batches(given: Given, case: StepCase, kept: Kept) -> list[Any]:
    """The values of the first batches, on the CPU."""
    with kept(), feed_of(case, given) as feed:
        assert feed is not None
        return [
            each.detach().cpu().clone() if isinstance(each, Tensor) else each
            for _ in range(N_BATCHES)
            for each in tree_leaves(feed())
            if isinstance(each, Tensor | int | float | str)
        ]


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs
        for mine, theirs in zip(one, other, strict=True)
    )


class _Compared(NamedTuple):
    """The step with the lever beside the step without it."""

    verdict: str
    reason: str
    draws: bool
    """Whether the step draws random numbers."""
    errors: tuple[NumericsError, ...] = ()

    def told(self, declared: NumericsClass) -> NumericsVerdict:
        return NumericsVerdict(
            declared=declared,
            verdict=self.verdict,  # type: ignore[arg-type]
            reason=self.reason,
            errors=self.errors,
        )


class _Seen(NamedTuple):
    """One call of the step."""

    outputs: Outputs
    attention: SdpaCalls
    n_tokens: int
    """The first two sizes of the model's largest input, multiplied."""
    draws: bool


class _Arms:
    """The step under both cases, on one batch."""

    def __init__(
        self,
        given: Given,
        base: StepCase,
        candidate: StepCase,
        declared: NumericsClass,
        kept: Kept,
    ) -> None:
        assert given.model is not None
        self._given, self._model = given, given.model
        self._base, self._candidate, self._declared, self._kept = base, candidate, declared, kept
        blocks = repeated_blocks(given.model)
        self.n_layers = None if blocks is None else len(blocks)
        changed = msgspec.structs.replace(
            candidate.configuration, optimizer=base.configuration.optimizer
        )
        self.only_updates = changed == base.configuration != candidate.configuration

    def compared(self) -> _Compared:
        first, again, got = (self._run(case) for case in (self._base, self._base, self._candidate))
        expected = first.outputs
        update = self._update(expected) if self.only_updates else math.inf
        if not update:
            why = "the step leaves every parameter as it is, so that no update can be compared"
            return _Compared("not computed", why, draws=False)
        apart = {name: _difference(name, again.outputs, expected) for name in expected}
        bounds = {name: self._bound(name, first, apart[name]) for name in expected}
        noisy = [name for name in expected if apart[name] > bounds[name]]
        if noisy or not expected:
            what = ", ".join(noisy) or "nothing to compare"
            return _Compared(
                "not computed",
                f"the step without the lever, called twice from one state, gave other {what}: it takes "
                "other data at each call, or has a state beyond the model and the optimizer",
                draws=False,
            )
        errors = tuple(
            NumericsError(
                quantity=name,  # type: ignore[arg-type]
                candidate_error=_difference(name, got.outputs, expected),
                base_error=apart[name],
                bound=bounds[name],
            )
            for name in expected
        )
        broken = [each.quantity for each in errors if each.is_broken]
        of_parameters = [
            each.candidate_error or 0.0 for each in errors if each.quantity == "parameters"
        ]
        if not broken and any(each > HALF * update for each in of_parameters):
            return _Compared(
                "not computed",
                f"parameters differ by {max(of_parameters):.2g} of their norm, within the roundings of their "
                f"type, and the whole update is {update:.2g} of it: compare with parameters in fp32, or at a "
                "larger rate",
                draws=False,
            )
        verdict = "violated" if broken else "holds"
        return _Compared(verdict, ", ".join(broken) or AGAINST_ITSELF, first.draws, errors)

    def with_dropout(self) -> float:
        """Student's t of the paired differences of the losses, of gradients' norms without one."""
        return paired_t(*(self._losses(case) for case in (self._base, self._candidate)))

    def _losses(self, case: StepCase) -> list[float]:
        found = []
        with (
            self._kept(),
            given_step(case, self._given) as step,
            gradients_seen(self._model) as gradients,
        ):
            for _ in range(N_DRAWS):
                step.step()
                loss = step.loss()
                norms = (float(in_double(each).square().sum()) for each in gradients.values())
                found.append(math.sqrt(sum(norms)) if loss is None else loss)
        return found

    def _run(self, case: StepCase) -> _Seen:
        with (
            self._kept(),
            given_step(case, self._given) as step,
            self._windows_filled(case, step),
            gradients_seen(self._model) as gradients,
            _inputs_seen(self._model) as sizes,
            deterministic(self._declared == "exact"),
        ):
            before = random_states()
            with SdpaCalls() as attention:
                step.step()
            draws = any(map(_differ, before, random_states()))
            found = {"gradients": tuple(gradients[name] for name in sorted(gradients))}
            found["loss" if step.loss() is not None else "logits"] = _returned(step)
            if self.only_updates:
                found["parameters"] = tuple(
                    each.detach().clone() for each in self._model.parameters()
                )
        outputs = {name: values for name, values in found.items() if values}
        return _Seen(outputs, attention, max(sizes, default=1), draws)

    @contextmanager
    def _windows_filled(self, case: StepCase, step: GivenStep) -> Iterator[None]:
        if case.configuration.precision == "fp8":
            windows.fill(self._model, _as_here(self._given), step.step)
        yield

    def _update(self, expected: Outputs) -> float:
        """The norm of the parameters' change by the step over their norm."""
        before = tuple(each.detach() for each in self._model.parameters())
        return distance(before, expected["parameters"])

    def _bound(self, name: str, seen: _Seen, apart: float) -> float:
        if self._declared == "exact":
            return 0.0
        if self.only_updates:
            kinds = {each.dtype for each in self._model.parameters()}
            least = 4 * max(ROUNDOFF[each] for each in kinds if each in ROUNDOFF)
            return max(2 * apart, least if name == "parameters" else 0.0)
        assert self.n_layers is not None
        rounded = UNIT_ROUNDOFF[self._candidate.configuration.precision]
        roundings = 16 * self.n_layers + 2
        if self._declared == "approximate":
            return rounded * math.sqrt(roundings)
        attention = seen.attention
        roundoff = max((rounded, *(ROUNDOFF[each] for each in attention.dtypes)))
        if roundoff <= UNIT_ROUNDOFF["fp32"]:
            widths = (size for each in self._model.parameters() for size in each.shape)
            roundings *= max(attention.longest, seen.n_tokens, *widths)
        return 3 * roundoff * math.sqrt(roundings)


def paired_t(base: Sequence[float], candidate: Sequence[float], *, allowed: float = 0.0) -> float:
    """Student's t of the differences of pairs, less a mean difference that is allowed."""
    apart = [theirs - ours for ours, theirs in zip(base, candidate, strict=True)]
    beyond = max(0.0, abs(fmean(apart)) - allowed)
    spread = stdev(apart) / math.sqrt(len(apart))
    if spread == 0:
        return math.inf if beyond else 0.0
    return math.copysign(beyond / spread, fmean(apart))


@contextmanager
def _inputs_seen(model: nn.Module) -> Iterator[list[int]]:
    """While it lasts, the number of tokens of each tensor that the model is called on."""
    seen: list[int] = []

    def called(_model: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = (each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        seen.extend(math.prod(each.shape[:2]) for each in tensors)

    hook = model.register_forward_pre_hook(called, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model is in eval mode, whatever the step asks of it."""
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    vars(model)["train"] = lambda _mode=True: model
    try:
        yield
    finally:
        del vars(model)["train"]
        for each, training in modes:
            each.training = training


def random_states() -> tuple[Tensor, ...]:
    """The states of torch's generators, on every device."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), *on_gpus


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


def _difference(name: str, found: Outputs, expected: Outputs) -> float:
    """The difference; infinite where the tensors do not correspond."""
    alike = [each.shape for each in found.get(name, ())] == [each.shape for each in expected[name]]
    return distance(found[name], expected[name]) if alike else math.inf


def _as_here(given: Given) -> Kept:
    """Keeps model, optimizer and torch's settings as they are on entering, with levers at work in them or in
    eval mode."""
    named = schedulers(given.step)

    @contextmanager
    def kept() -> Iterator[None]:
        with kept_settings(), restored(given.model, given.optimizer, named):
            yield

    return kept


def _on_one_batch(given: Given, base: StepCase) -> Given:
    if given.loader is None:
        return given
    batch = GivenLoader(given.loader, base.device)()
    return replace(given, step=partial(given.step, batch), loader=None)


def _returned(step: GivenStep) -> tuple[Tensor, ...]:
    tensors = (torch.as_tensor(each) for each in step.returned)
    return tuple(each.detach().clone() for each in tensors if each.is_floating_point())
