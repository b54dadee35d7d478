"""A short training run: whether a candidate stays as near to fp64 as the errors of its gradients explain.

One step's errors do not tell where they lead: an update rounds them away or adds them up. So the candidate,
its base and the oracle go on for some steps from the same weights on the same batches, and their losses are
compared. How far a candidate may be off is not set by hand: the oracle is trained once more with errors drawn
at random in every gradient, as large as the class allows, and with parameters rounded where the candidate
holds them in 16 bits.
"""

import re
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.records.case import Configuration
from peakward.records.lever import TrainingRun

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
LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


def affordable(step: ConfiguredStep) -> int:
    """Takes a step, and says how many more there is time for: all or none."""
    started_s = time.perf_counter()
    step.step()
    assert step.output is not None
    float(step.output.sum())  # Waits for the device.
    return N_STEPS if (time.perf_counter() - started_s) * N_STEPS <= MOST_S else 0


def train(step: ConfiguredStep, n_steps: int) -> tuple[Tensor, Tensor]:
    """The losses of the next steps, and the norm of each parameter's gradient in the last one, in fp64."""
    losses = []
    if step.scaler.is_enabled():
        # A scale that is still sought leaves out updates: the run would be one step behind.
        step.scaler.update(SCALE)
    for _ in range(n_steps):
        step.step()
        assert step.output is not None
        losses.append(step.output.detach().double().clone())
    gradients = [each.grad for each in step.model.parameters()]
    norms = [0.0 if each is None else float(each.double().norm()) for each in gradients]
    return torch.stack(losses).cpu(), torch.tensor(norms, dtype=torch.float64)


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


def run_of(
    names: Sequence[str],
    found: tuple[Tensor, Tensor],
    base: tuple[Tensor, Tensor],
    oracle: tuple[Tensor, Tensor],
) -> TrainingRun:
    """The record of a candidate's run, its base's and the oracle's; `names` are the parameters'."""
    layers: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        number = LAYER.search(name)
        layers.setdefault(f"layer {number[1]}" if number else "others", []).append(at)

    def by_layer(norms: Tensor) -> tuple[float, ...]:
        return tuple(float(norms[places].square().sum().sqrt()) for places in layers.values())

    (losses, norms), (base_losses, base_norms), (oracle_losses, oracle_norms) = found, base, oracle
    return TrainingRun(
        losses=tuple(losses.tolist()),
        base_losses=tuple(base_losses.tolist()),
        oracle_losses=tuple(oracle_losses.tolist()),
        layers=tuple(layers),
        gradient_norms=by_layer(norms),
        base_gradient_norms=by_layer(base_norms),
        oracle_gradient_norms=by_layer(oracle_norms),
    )
