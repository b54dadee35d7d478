"""AdamW as a torch optimiser over this room's Triton kernel, fit for a CUDA graph."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from peakward.kernels.ops.launchable import FLOATS, require_launchable

OP = "TritonAdamW"


class TritonAdamW(torch.optim.Optimizer):
    """An optimiser with torch.optim.AdamW's maths and state, one launch a tensor, and step counts on
    the device.

    Parameters with equal numbers of updates share a count.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """
        Args:
            params: parameters or groups of them, each contiguous in fp32, fp16 or bf16, all of a group on
                one GPU.

        Raises:
            ValueError: a parameter that the kernel cannot take, or no CUDA device.
        """
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's.

        Raises:
            ValueError: as when made.
        """
        super().add_param_group(param_group)
        parameters = self.param_groups[-1]["params"]
        for each in parameters:
            if each.dtype not in FLOATS or not each.is_contiguous():
                raise ValueError(
                    f"{OP}: expected contiguous parameters in float32, float16 or bfloat16, got "
                    f"{each.dtype} with strides {each.stride()}"
                )
        if parameters:
            require_launchable(OP, *parameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, of torch.optim.AdamW too; counts come to their parameters' device.

        Raises:
            ValueError: the state of an AdamW with amsgrad or maximize, which this has not.
        """
        for name in ("amsgrad", "maximize"):
            if any(group.get(name) for group in state_dict["param_groups"]):
                raise ValueError(
                    f"{OP}: expected the state of an AdamW with {name}=False, got True"
                )
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            shared: dict[float, Tensor] = {}
            for each in group["params"]:
                if state := self.state.get(each):
                    count = float(state["step"])
                    if count not in shared:
                        shared[count] = torch.tensor(count, device=each.device)
                    state["step"] = shared[count]

    def _update(self, group: dict[str, Any]) -> None:
        from peakward.kernels.ops.adamw.triton import scales, update

        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        for step, chosen in self._by_count(group["params"]):
            with torch.cuda.device_of(step):
                shared = scales(step.add_(1), lr=group["lr"], betas=group["betas"])
                for each in chosen:
                    moments = self.state[each]["exp_avg"], self.state[each]["exp_avg_sq"]
                    gradient = each.grad.contiguous()  # type: ignore[union-attr]
                    update(each, gradient, *moments, shared, **settings)

    def _by_count(self, parameters: list[nn.Parameter]) -> list[tuple[Tensor, list[nn.Parameter]]]:
        """The parameters with a gradient, by the count that they share; makes missing states.

        A count that parameters without a gradient share too is copied for those that have one.
        """
        chosen = [each for each in parameters if each.grad is not None]
        waiting = {
            id(self.state[each]["step"])
            for each in parameters
            if each.grad is None and self.state.get(each)
        }
        self._start([each for each in chosen if not self.state.get(each)])
        copies: dict[int, Tensor] = {}
        found: dict[int, tuple[Tensor, list[nn.Parameter]]] = {}
        for each in chosen:
            step = self.state[each]["step"]
            if id(step) in waiting:
                if id(step) not in copies:
                    copies[id(step)] = step.clone()
                step = self.state[each]["step"] = copies[id(step)]
            found.setdefault(id(step), (step, []))[1].append(each)
        return list(found.values())

    def _start(self, parameters: list[nn.Parameter]) -> None:
        """Makes the states of these parameters, which share a count."""
        if not parameters:
            return
        step = torch.zeros((), device=parameters[0].device)
        for each in parameters:
            self.state[each] = {
                "step": step,
                "exp_avg": torch.zeros_like(each),
                "exp_avg_sq": torch.zeros_like(each),
            }
