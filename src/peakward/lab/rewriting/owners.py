"""Finds the modules in whose forward passes a part is computed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from peakward.lab.models.given_module import repeated_blocks

Chain = tuple[nn.Module, ...]
"""Modules that call one another, from the outermost to the one that a part is in."""
_FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "sdpa": (F.scaled_dot_product_attention,),
    "softmax": (
        F.softmax,
        torch.softmax,
        Tensor.softmax,
        torch.special.softmax,
    ),
    "loss": (F.cross_entropy,),
}
"""The functions called at the heart of a part."""


def find(forward: Callable[[], object]) -> dict[str, list[Chain]]:
    """Run a forward pass, and see which modules call the functions of each part: each chain once."""
    with _stack() as stack, _Calls(stack) as calls:
        forward()
    return calls.found


def trunk(module: nn.Module, of_loss: Sequence[Chain]) -> nn.Module | None:
    """The innermost module that holds the repeated blocks, where no loss is computed in it, as in those of
    transformers; None of a module that calls its blocks itself.

    It need not be in the loss's graph. Qwen2-1.5B in one graph takes 67 s to compile (H200), its block 3.
    """
    blocks = repeated_blocks(module)
    holders = [
        each
        for each in module.modules()
        if each is not blocks
        and not isinstance(each, nn.ModuleList | nn.ModuleDict)
        and any(inner is blocks for inner in each.modules())
    ]
    if len(holders) < 2 or any(holders[-1] in chain for chain in of_loss):
        return None
    return holders[-1]


def in_graph_of(module: nn.Module, apart: nn.Module | None) -> Iterator[nn.Module]:
    """The modules that a graph of this one has in it."""
    for each in module.children():
        if each is not apart:
            yield each
            yield from in_graph_of(each, apart)


class _Calls(TorchFunctionMode):
    def __init__(self, stack: list[nn.Module]) -> None:
        super().__init__()
        self._stack = stack
        self.found: dict[str, list[Chain]] = {part: [] for part in _FUNCTIONS}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # What it calls in turn is not seen here.
            self._see("softmax" if kwargs.get("need_weights", True) else "sdpa")
        for part, functions in _FUNCTIONS.items():
            if func in functions:
                self._see(part)
        return func(*args, **kwargs)

    def _see(self, part: str) -> None:
        chain = _written_by_user(tuple(self._stack))
        if chain and chain not in self.found[part]:
            self.found[part].append(chain)


def _written_by_user(stack: Chain) -> Chain:
    """Without torch's own modules at its end: what nn.Softmax computes is a part of whoever calls it."""
    while stack and type(stack[-1]).__module__.startswith("torch.nn."):
        stack = stack[:-1]
    return stack


@contextmanager
def _stack() -> Iterator[list[nn.Module]]:
    """The modules whose forward passes are running, while it lasts."""
    running: list[nn.Module] = []

    def enter(module: nn.Module, _args: Any) -> None:
        running.append(module)

    def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
        running.pop()

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield running
    finally:
        for each in hooks:
            each.remove()
