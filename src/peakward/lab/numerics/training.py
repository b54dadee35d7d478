"""A short training run: whether a candidate stays as near to fp64 as the errors of its gradients explain.

One step's errors do not tell where they lead: an update rounds them away or adds them up. So the candidate,
its base and the oracle go on for some steps from the same weights on the same batches, and their losses are
compared. How far a candidate may be off is not set by hand: the oracle is trained once more with errors drawn
at random in every gradient, as large as the class allows, and with parameters rounded where the candidate
holds them in 16 bits.

Beside losses a run keeps the norms of gradients and of what the repeated blocks give, and how large the
elements of the latter are. These are seen in a pass of their own between two steps, so that a step is the one
that is judged, and the host waits for none of them before the last.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.records.case import Configuration
from peakward.records.lever import MAGNITUDES_LOG2, TrainingCourse, TrainingRun

N_STEPS = 16
"""Twice through the batches of a case."""
MOST_S = 2.0
"""The most that the oracle's steps may take, so that a check costs little. On two busy cores one of `tiny` in
fp64 takes 1.4 s: there is no run then."""
SLACK = 3.0
"""A run may be off by so many times the drift that one draw of errors makes. In `tiny` (four layers, 2 × 128
tokens, a CPU) drawn errors of 3% put losses off by 1.1e-4 and bf16-mixed by 2.3e-5; with parameters rounded
to bf16 by 3.0e-3 and precision bf16 by 2.9e-3."""
SURE = 3.0
"""Standard errors by which the mean of the losses may be off because each errs on its own way forward."""
MOMENT_ERROR = {"adamw-bf16-states": 2.0**-8, "adamw-8bit-states": 2.0**-4}
"""The relative error that an update may have whose moments are kept in so many bits, rounded at random:
bf16's unit roundoff, and more for 8 bits, whose step is set by the largest value of a block. Assumed: no run
has shown it."""
SCALE = 2.0**10
"""The loss scale of a run in fp16-mixed, which begins at 2^16 by default and finds its own by overflowing."""
LOOK_EVERY = 5
"""Steps between two whose activations are counted: four of 16."""
MOST_COUNTED = 1 << 16
"""Elements of an output that are counted at most, evenly spread: 2 × 256 tokens of 128 are all counted."""
DIGITS = 9
"""The digits of a norm in the record: those of fp32."""


class Course(NamedTuple):
    """One model's course through a run, in fp64 on the CPU."""

    losses: Tensor
    """(steps,)"""
    gradients: Tensor
    """The norm of each parameter's gradient, (steps, parameters); 0 where it has none."""
    outputs: Tensor
    """The norm of what each repeated block gives after the update, (steps, blocks); no blocks where they were
    not called, or gave no tensor of floats."""
    above: Tensor
    """The share of each block's elements at or above each of `MAGNITUDES_LOG2`, (looks, blocks, edges). NaN
    counts as above all."""


def affordable(step: ConfiguredStep) -> int:
    """Takes a step, and says how many more there is time for: all or none."""
    started_s = time.perf_counter()
    step.step()
    assert step.output is not None
    float(step.output.sum())  # Waits for the device.
    return N_STEPS if (time.perf_counter() - started_s) * N_STEPS <= MOST_S else 0


def train(step: ConfiguredStep, n_steps: int) -> Course:
    """The course of the next steps."""
    losses, gradients, outputs, above = [], [], [], []
    if step.scaler.is_enabled():
        # A scale that is still sought leaves out updates: the run would be one step behind.
        step.scaler.update(SCALE)
    for at in range(n_steps):
        step.step()
        assert step.output is not None
        losses.append(step.output.detach().double().clone())
        gradients.append(torch.stack([_norm(_gradient(each)) for each in step.model.parameters()]))
        norms, shares = _outputs(step, counts=at % LOOK_EVERY == 0)
        outputs.append(norms)
        if at % LOOK_EVERY == 0:
            above.append(shares)
    return Course(*(torch.stack(each).cpu() for each in (losses, gradients, outputs, above)))


def _gradient(parameter: Tensor) -> Tensor:
    return parameter.new_zeros(()) if parameter.grad is None else parameter.grad


def _norm(values: Tensor) -> Tensor:
    """The norm in fp64, summed in at least fp32."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, dtype=wide).double()


@torch.no_grad()
def _outputs(step: ConfiguredStep, *, counts: bool) -> tuple[Tensor, Tensor]:
    """The norms of what the repeated blocks give in one more forward pass, (blocks,), and the shares of
    `Course.above`, (blocks, edges), 0 unless they are to be counted."""
    blocks, given = step.blocks, {}

    def hear(number: int, _block: nn.Module, _inputs: Any, output: Any) -> None:
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.is_floating_point():
                given[number] = (_norm(each), _above(each, counts=counts))
                return

    hooks = [
        block.register_forward_hook(partial(hear, number)) for number, block in enumerate(blocks)
    ]
    try:
        if blocks:
            step.look()
    finally:
        for hook in hooks:
            hook.remove()
    if not blocks or len(given) < len(blocks):
        return torch.zeros(0), torch.zeros(0, len(MAGNITUDES_LOG2))
    norms, above = zip(*(given[number] for number in range(len(blocks))), strict=True)
    return torch.stack(norms), torch.stack(above)


def _above(values: Tensor, *, counts: bool) -> Tensor:
    if not counts:
        return torch.zeros(len(MAGNITUDES_LOG2), device=values.device)
    # An odd distance meets all elements of a token in turn, whose number is even.
    seen = values.reshape(-1)[:: values.numel() // MOST_COUNTED | 1].abs()
    return torch.stack([(~(seen < 2.0**each)).double().mean() for each in MAGNITUDES_LOG2])


def err(step: ConfiguredStep, *, error: float, in_bf16: bool, seed: int = 0) -> None:
    """Makes every gradient of the step err at random by that share of its norm, and rounds its parameters to
    bf16 after each update, in place. Both are drawn and kept in the step's own type."""
    device = next(step.model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)

    def add(parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        drawn = torch.randn(
            gradient.shape, generator=generator, device=device, dtype=gradient.dtype
        )
        gradient.add_(drawn * (error * gradient.norm() / gradient.numel() ** 0.5))

    for each in step.model.parameters():
        if each.requires_grad:
            each.register_post_accumulate_grad_hook(add)
    if in_bf16:
        assert step.optimizer is not None
        _round(step.model)
        step.optimizer.register_step_post_hook(lambda *_: _round(step.model))


def _round(model: nn.Module) -> None:
    # An oracle of a user's module turns every cast into one to fp64 (`of_module.InDouble`).
    with torch.no_grad(), _disable_current_modes():
        for each in model.parameters():
            if each.is_floating_point():
                each.copy_(each.bfloat16())


def apart(losses: Tensor, oracle: Tensor) -> float:
    """How far a run has come from the oracle's: the mean of the second half of its losses over the oracle's.
    What each loss errs by on its own, in 16 bits 1e-4 of it, averages out there."""
    late = len(oracle) // 2
    return float((losses - oracle)[late:].mean().abs() / oracle[late:].abs().mean())


def drift(erring: Tensor, oracle: Tensor) -> float:
    """The root mean square of what drawn errors make of the same losses: their sign is by chance."""
    late = len(oracle) // 2
    return float((erring - oracle)[late:].square().mean().sqrt() / oracle[late:].abs().mean())


def scatter(losses: Tensor, oracle: Tensor) -> float:
    """The share that chance may make of `apart`, from second differences of the losses' errors: a steady
    drift leaves them at 0, independent errors at the square root of 6 times their deviation."""
    late = len(oracle) // 2
    each = (losses - oracle).diff(n=2).square().mean().sqrt() / 6**0.5
    return SURE * float(each / (len(oracle) - late) ** 0.5 / oracle[late:].abs().mean())


def scattered(error: float, n_steps: int) -> float:
    """The most that `scatter` may be where one loss may err by so much: a run that jumps is no chance."""
    return float(SURE * error / (n_steps - n_steps // 2) ** 0.5)


def error_of_updates(configuration: Configuration, gradient_bound: float) -> float:
    """The relative error that each update may have: that of its gradient, or of the moments it is made of."""
    return max(gradient_bound, MOMENT_ERROR.get(configuration.optimizer, 0.0))


def numbers(step: ConfiguredStep) -> tuple[int | None, ...]:
    """For each parameter of the step's model the number of the repeated block that it is in, or None."""
    found: dict[Tensor, int] = {}
    for number, block in enumerate(step.blocks):
        for each in block.parameters():
            found.setdefault(each, number)
    return tuple(found.get(each) for each in step.model.parameters())


def run_of(
    of_parameters: Sequence[int | None], candidate: Course, base: Course, oracle: Course
) -> TrainingRun:
    """The record of a run; `of_parameters` are the oracle's `numbers`."""
    found = {each for each in of_parameters if each is not None}
    layers: list[int | None] = [*sorted(found), *([None] if None in of_parameters else [])]
    places = [[at for at, each in enumerate(of_parameters) if each == layer] for layer in layers]
    every = (candidate, base, oracle)
    n_repeated = len(found) if all(each.outputs.shape[1] == len(found) for each in every) else 0

    def recorded(course: Course) -> TrainingCourse:
        by_layer = [course.gradients[:, at].square().sum(1).sqrt() for at in places]
        return TrainingCourse(
            losses=tuple(map(_finite, course.losses.tolist())),
            gradient_norms=_rows(torch.stack(by_layer, dim=1)),
            output_norms=_rows(course.outputs[:, :n_repeated]),
            magnitudes=_binned(course.above[:, :n_repeated]),
        )

    return TrainingRun(
        layers=tuple("others" if each is None else f"layer {each}" for each in layers),
        n_repeated=n_repeated,
        looks=tuple(range(1, len(oracle.losses) + 1, LOOK_EVERY)),
        candidate=recorded(candidate),
        base=recorded(base),
        oracle=recorded(oracle),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rows(norms: Tensor) -> tuple[tuple[float | None, ...], ...]:
    return tuple(
        tuple(_finite(float(f"{each:.{DIGITS}g}")) for each in row) for row in norms.tolist()
    )


def _binned(above: Tensor) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Thousandths in each bin, (looks, blocks, edges + 1)."""
    ends = F.pad(F.pad(above, (1, 0), value=1.0), (0, 1))
    bins = (-ends.diff(dim=-1) * 1000).round().int().tolist()
    return tuple(tuple(map(tuple, look)) for look in bins)
