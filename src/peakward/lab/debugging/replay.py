"""Figures of the steps before a fault: gradients, updates, and the outputs of modules."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.lab.debugging.snapshot import TrainingState
from peakward.records.debugging import ModuleSeen, StepSeen

Figures = tuple[Tensor, Tensor, Tensor]
"""Figures of an output: the largest magnitude, the standard deviation, the share of zeros."""


class Seen:
    """Collects figures of replayed steps on the device, and reads them at each step's end."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._kinds = {name: type(each).__name__ for name, each in state.model.named_modules()}
        self._outputs: dict[str, Figures] = {}
        self._norms: dict[str, Tensor] = {}
        self._before: list[Tensor] = []
        self._rate: float | None = None
        self.steps: list[StepSeen] = []
        self._modules: dict[str, list[tuple[float | None, float | None, float]]] = {}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While it lasts, outputs and gradients are looked at."""
        with ExitStack() as hooks:
            for name, each in self._state.model.named_modules():
                hooks.callback(each.register_forward_hook(self._keep_output(name)).remove)
            for name, parameter in self._state.model.named_parameters():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(self._keep_norm(name))
                    hooks.callback(hook.remove)
            yield

    def begin(self) -> None:
        """Call it before a step: the parameters are copied, for the size of the update, and the rate is read,
        which a schedule changes at the step's end."""
        self._rate = learning_rate(self._state.optimizer)
        self._outputs, self._norms = {}, {}
        self._before = [each.detach().clone() for each in self._state.model.parameters()]

    def end(self, step: int, loss: float | None) -> None:
        """Call it after a step; waits for the device."""
        after = [each.detach() for each in self._state.model.parameters()]
        moved = _norm(
            [one.float() - other.float() for one, other in zip(after, self._before, strict=True)]
        )
        size = _norm([each.float() for each in self._before])
        scale = self._loss_scale()
        norm = _norm(list(self._norms.values())) / (scale or 1.0)
        self.steps.append(
            StepSeen(
                step=step,
                loss=_finite(loss),
                gradient_norm=_finite(norm) if self._norms else None,
                update_ratio=_finite(moved / size) if size else None,
                learning_rate=self._rate,
                loss_scale=scale,
            )
        )
        for name, (largest, spread, zeros) in self._outputs.items():
            found = (_finite(float(largest)), _finite(float(spread)), float(zeros))
            self._modules.setdefault(name, []).append(found)

    def modules(self, near: str, n_blocks: int = 12) -> tuple[ModuleSeen, ...]:
        """The module named, those that hold it and lie in it, and repeated blocks, in the model's order."""
        parts = near.split(".")
        around = {".".join(parts[:n]) for n in range(len(parts) + 1)}
        blocks = [name for name in self._modules if name.rpartition(".")[2].isdigit()]
        kept = {*blocks[:: max(1, math.ceil(len(blocks) / n_blocks))], *blocks[-1:]}
        order = [name for name in self._kinds if name in self._modules]
        return tuple(
            ModuleSeen(
                module=name,
                module_type=self._kinds[name],
                largest=tuple(each[0] for each in self._modules[name]),
                spread=tuple(each[1] for each in self._modules[name]),
                zero_share=tuple(each[2] for each in self._modules[name]),
            )
            for name in order
            if name in around or name in kept or (near and name.startswith(near + "."))
        )

    def _keep_output(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _args: object, output: object) -> None:
            found = [
                each.detach()
                for each in tree_leaves(output)
                if isinstance(each, Tensor) and each.is_floating_point() and each.numel()
            ]
            if found:
                wide = found[0].float()
                self._outputs[name] = (
                    wide.abs().max(),
                    wide.std(correction=0),
                    (wide == 0).float().mean(),
                )

        return keep

    def _keep_norm(self, name: str) -> Callable[[Tensor], None]:
        def keep(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._norms[name] = parameter.grad.detach().float().norm()

        return keep

    def _loss_scale(self) -> float | None:
        scalers = [each for each in self._state.others if isinstance(each, torch.amp.GradScaler)]
        return float(scalers[0].get_scale()) if scalers and scalers[0].is_enabled() else None


def learning_rate(optimizer: torch.optim.Optimizer | None) -> float | None:
    """The rate of the first group; None where it is no finite number, or a tensor, which a read waits for."""
    rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
    return _finite(float(rate)) if isinstance(rate, int | float) else None


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
