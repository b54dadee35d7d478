"""AdamW as a torch optimiser over this room's Triton kernel, fit for a CUDA graph."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class TritonAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW's maths and state, a launch a tensor, step count on the device."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """
        Raises:
            ValueError: a parameter that the kernel cannot take, or no CUDA device.
        """
        chosen = list(params)
        for each in chosen:
            if not (each.is_cuda and each.is_contiguous() and each.is_floating_point()):
                raise ValueError(
                    "expected contiguous floating-point parameters on CUDA, got "
                    f"{each.dtype} with strides {each.stride()} on {each.device}"
                )
        super().__init__(
            chosen, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def _update(self, group: dict[str, Any]) -> None:
        from peakward.lab.ops.adamw.triton import scales, update

        chosen = [each for each in group["params"] if each.grad is not None]
        if not chosen:
            return
        step = self._states(chosen)
        step += 1
        shared = scales(step, lr=group["lr"], betas=group["betas"])
        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        for parameter in chosen:
            state = self.state[parameter]
            gradient = parameter.grad.contiguous()
            update(parameter, gradient, state["exp_avg"], state["exp_avg_sq"], shared, **settings)

    def _states(self, parameters: list[nn.Parameter]) -> Tensor:
        """Makes the states that are missing; gives the step count that all of them share."""
        known = [self.state[each]["step"] for each in parameters if self.state[each]]
        step = known[0] if known else torch.zeros((), device=parameters[0].device)
        for each in parameters:
            if not self.state[each]:
                self.state[each] = {
                    "step": step,
                    "exp_avg": torch.zeros_like(each),
                    "exp_avg_sq": torch.zeros_like(each),
                }
        return step
