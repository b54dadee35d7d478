"""Which module an operator belongs to, in the forward pass and in the backward pass.

Autograd numbers its nodes as they are made. A module's call begins and ends at such numbers, so a
node's number tells the innermost module that was running when it was made, and the node that runs
tells that of an operator in the backward pass. Modules that are recomputed there are called again,
maybe in another thread, which numbers for itself; the nodes that this makes never run.
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
        model: whose modules.
        name: from a module's path in the model to the one to give.
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
        """Nodes numbered `_starts[i]` to `_starts[i + 1]` were made in `_modules[i]`."""
        self.n_calls = 0

    def current(self) -> str | None:
        """The innermost module that is running, or whose gradient is; None outside all."""
        node = torch._C._current_autograd_node()
        if node is None or len(self._running) > 1:
            return self._running[-1]
        if hasattr(node, "variable"):  # It adds to a parameter's gradient, and has no number.
            return self._owners.get(node.variable)
        return self._modules[bisect_right(self._starts, node._sequence_nr()) - 1]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While it lasts, calls are seen."""
        hooks = []
        for module, name in self._names.items():
            hooks.append(module.register_forward_pre_hook(self._entering(name)))
            # Also as a recomputation ends, which torch stops by an exception.
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
