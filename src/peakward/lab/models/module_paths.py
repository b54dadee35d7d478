"""Tells which module an operator belongs to, in the forward pass and in the backward pass.

Autograd numbers its nodes as they are made. A module's call begins and ends at such numbers, so the
number of a node tells the innermost module that was running when it was made. In the backward pass, the
node that runs tells the module of an operator. Modules that are recomputed there are called again,
maybe in another thread with numbers of its own; the nodes that these calls make never run.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

Name = Callable[[str], str]


class ModulePaths:
    """Follows the calls of a model's modules.

    Args:
        model: The model with the modules.
        name: Turns a module's path in the model into the reported name.
    """

    def __init__(self, model: nn.Module, name: Name) -> None:
        self._model = model
        self._names = {module: name(path) for path, module in model.named_modules() if path}
        self._owners = {
            parameter: name(path.rpartition(".")[0]) for path, parameter in model.named_parameters()
        }
        self._running: list[str | None] = [None]
        self._starts: list[int] = [0]
        self._modules: list[str | None] = [None]
        """The modules of nodes: those numbered `_starts[i]` to `_starts[i + 1]` were made in
        `_modules[i]`."""
        self.n_calls = 0

    def current(self) -> str | None:
        """The innermost module that is running, or whose gradient is computed; None outside all
        modules."""
        node = torch._C._current_autograd_node()
        if node is None or len(self._running) > 1:
            return self._running[-1]
        if hasattr(
            node, "variable"
        ):  # This node adds to a parameter's gradient, and has no number.
            return self._owners.get(node.variable)
        return self._modules[bisect_right(self._starts, node._sequence_nr()) - 1]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Sees calls while it lasts."""
        hooks = []
        for module, name in self._names.items():
            hooks.append(module.register_forward_pre_hook(self._entering(name)))
            # Always, because torch ends a recomputation by an exception.
            hooks.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self.n_calls += 1
            self._running.append(name)
            self._note()

        return enter

    def _leaving(self, *_: object) -> None:
        self._running.pop()
        self._note()

    def _note(self) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._running[-1])
