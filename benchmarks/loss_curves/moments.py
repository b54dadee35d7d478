"""AdamW with each kind of moments, on any device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.adamw import reference, stored
from peakward.kernels.ops.adamw.api import TritonAdamW

STATES = {"fp32": "as parameters", "bf16": "bf16", "8bit": "8bit"}
NEAREST = "8bit-nearest"
"""A control on a CPU: rounded to nearest."""
TORCHAO = "torchao-8bit"
"""torchao's AdamW8bit, which draws no random bits for its states."""
MOMENTS = (*STATES, NEAREST, TORCHAO)
Make = Callable[..., torch.optim.Optimizer]


class ReferenceAdamW(TritonAdamW):
    """The same optimiser by its reference, on any device."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        torch.optim.Optimizer.add_param_group(self, param_group)

    def _update(self, group: dict[str, Any], n_before: int) -> None:
        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        numbers = {id(each): n for n, each in enumerate(group["params"], n_before)}
        for step, chosen in self._by_count(group["params"]):
            step.add_(1)
            for each in chosen:
                state = self.state[each]
                random = {"seed": group["seed"], "number": numbers[id(each)]}
                if group["states"] == "8bit":
                    pairs = [
                        (state[f"{name}_codes"], state[f"{name}_exponents"])
                        for name in ("exp_avg", "exp_avg_sq")
                    ]
                    reference.update_8bit(each, each.grad, *pairs, step, **random, **settings)
                    continue
                moments = state["exp_avg"], state["exp_avg_sq"]
                if group["states"] == "bf16":
                    reference.update_bf16(each, each.grad, *moments, step, **random, **settings)
                else:
                    reference.update(each, each.grad, *moments, step, **settings)


class NearestAdamW(ReferenceAdamW):
    """Without random bits: half a distance for all."""

    def _update(self, group: dict[str, Any], n_before: int) -> None:
        drawn, stored.random_words = stored.random_words, _half
        try:
            super()._update(group, n_before)
        finally:
            stored.random_words = drawn


def _half(n: int, **_: int) -> Tensor:
    return torch.full((n,), 0x80008000)


def maker(moments: str, device: str) -> Make:
    """Makes the optimiser of parameters in fp32, from them, lr and seed."""
    if moments == TORCHAO:
        return torchao_8bit
    if moments == NEAREST:
        return partial(NearestAdamW, states="8bit")
    return partial(TritonAdamW if device == "cuda" else ReferenceAdamW, states=STATES[moments])


def own(device: str) -> Make:
    """As `maker`, with moments in the parameters' type, whatever that is."""
    return maker("fp32", device)


def torchao_8bit(params: Any, lr: float, **_: int) -> torch.optim.Optimizer:
    """torchao's, whose weight decay by default is none."""
    from torchao.optim import AdamW8bit

    return AdamW8bit(params, lr=lr, weight_decay=1e-2)
