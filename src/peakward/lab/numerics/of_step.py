"""Checks that a live step computes the same with a lever as without it, as far as its model shows.

A function that closes over its own tensors has no fp64 oracle. The step without the lever takes its
place, called from the same parameters, optimizer state, random states and batch. It is called twice,
because a step that does not repeat itself proves nothing.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from peakward.lab.data.given_loader import GivenLoader
from peakward.lab.levers.given_step import Given, GivenStep, given_step, gradients_seen
from peakward.lab.levers.module_levers import SdpaCalls
from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.numerics.judge import UNIT_ROUNDOFF, Outputs, distance
from peakward.records.case import StepCase
from peakward.records.lever import NumericsClass, NumericsError, NumericsVerdict

Kept = Callable[[], AbstractContextManager[None]]
ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: UNIT_ROUNDOFF["fp32"],
    torch.float16: UNIT_ROUNDOFF["fp16-mixed"],
    torch.bfloat16: UNIT_ROUNDOFF["bf16"],
}


def judge_step(
    given: Given,
    plain: StepCase,
    base: StepCase,
    candidate: StepCase,
    *,
    declared: NumericsClass,
    kept: Kept,
) -> NumericsVerdict:
    """Compares the step's return value and the gradients that it leaves; inside `kept` nothing changes.
    `plain` is the step as it was given.

    Differences are ‖x − base‖ / ‖base‖. An approximate lever's bound is that of `judge`, u·√(16·layers
    + 2), where u is the unit roundoff of its operands.

    For a reordered lever, u is that of the type in which attention computes. The base errs by up to
    that bound and the candidate by twice as much: together three times the bound. Where operands are
    not rounded to fewer digits than sums have, each rounding is that of a sum over head_dim or keys,
    whose error grows as the root of their number.
    """
    told = partial(NumericsVerdict, declared=declared)
    if given.model is None:
        return told(
            verdict="not computed",
            reason="no model was given to compare gradients of: give it as model=",
        )
    blocks = repeated_blocks(given.model)
    if blocks is None:
        return told(
            verdict="not computed",
            reason="the model repeats no blocks in a ModuleList, whose number the bound on rounding is "
            "reckoned from",
        )
    fed = _on_one_batch(given, base)
    with SdpaCalls() as seen:
        expected = _outputs(fed, base, plain, kept)
    if declared == "reordered" and seen.drops:
        return told(
            verdict="not computed",
            reason="attention drops probabilities at random, and each backend draws others: set its "
            "dropout to 0",
        )
    again, got = (_outputs(fed, case, plain, kept) for case in (base, candidate))
    bound = _bound(candidate, seen, len(blocks), declared)
    apart = [name for name in expected if _difference(name, again, expected) > bound]
    if apart or not expected:
        what = ", ".join(apart) or "nothing to compare"
        return told(
            verdict="not computed",
            reason=f"the step without the lever, called twice from one state, gave other {what}: it takes "
            "other data at each call, or has a state beyond the model and the optimizer",
        )
    errors = tuple(
        NumericsError(
            quantity=name,  # type: ignore[arg-type]
            candidate_error=_difference(name, got, expected),
            base_error=_difference(name, again, expected),
            bound=bound,
        )
        for name in expected
    )
    broken = [each.quantity for each in errors if not each.candidate_error <= each.bound]
    return told(
        verdict="violated" if broken else "holds",
        reason=", ".join(broken)
        or "against the same step without the lever, for want of an fp64 oracle",
        errors=errors,
    )


def _bound(candidate: StepCase, seen: SdpaCalls, n_layers: int, declared: NumericsClass) -> float:
    rounded = candidate.configuration.precision
    roundings = 16 * n_layers + 2
    if declared == "approximate":
        return UNIT_ROUNDOFF[rounded] * math.sqrt(roundings)
    roundoff = max((ROUNDOFF[each] for each in seen.dtypes), default=UNIT_ROUNDOFF["fp32"])
    if rounded == "tf32":
        return 3 * max(roundoff, UNIT_ROUNDOFF["tf32"]) * math.sqrt(roundings)
    summed = max(seen.longest, 1) if roundoff <= UNIT_ROUNDOFF["fp32"] else 1
    return 3 * roundoff * math.sqrt(roundings * summed)


def _difference(name: str, found: Outputs, expected: Outputs) -> float:
    """The difference; infinite where the tensors do not correspond."""
    alike = [each.shape for each in found.get(name, ())] == [each.shape for each in expected[name]]
    return distance(found[name], expected[name]) if alike else math.inf


def _on_one_batch(given: Given, base: StepCase) -> Given:
    if given.loader is None:
        return given
    batch = GivenLoader(given.loader, base.device)()
    return replace(given, step=partial(given.step, batch), loader=None)


def _outputs(given: Given, case: StepCase, plain: StepCase, kept: Kept) -> Outputs:
    assert given.model is not None
    with (
        kept(),
        gradients_seen(given.model) as gradients,
        given_step(case, plain, given) as step,
    ):
        step.step()
        found = {"gradients": tuple(gradients[name] for name in sorted(gradients))}
        found["loss" if step.loss() is not None else "logits"] = _returned(step)
    return {name: values for name, values in found.items() if values}


def _returned(step: GivenStep) -> tuple[Tensor, ...]:
    tensors = (torch.as_tensor(each) for each in step.returned)
    return tuple(each.detach().clone() for each in tensors if each.is_floating_point())
