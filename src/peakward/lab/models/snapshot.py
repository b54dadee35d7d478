"""Keeps the state that a live step changes, and restores it bit for bit."""

import copy
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from peakward.kernels.ops.forwards import states

Restore = Callable[[], Any]
"""Restores a thing and returns it."""
Count = int | float | None


class Snapshot:
    """The state of a model and of an optimizer as it is now, which can be put back again and again.

    It is parameters, buffers, states of forward passes that were given, gradients, the training mode of every
    module, the optimiser's state and settings, and the counts and rates of schedulers. Tensors keep their
    identity, so optimisers and graphs that hold them stay valid. The copies lie in host memory and so leave a
    GPU's peak alone.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        schedulers: Iterable[LRScheduler] = (),
    ) -> None:
        self._model = model
        self._tensors: dict[int, Tensor] = {}
        restores: list[Restore] = [_scheduler(each) for each in schedulers]
        if model is not None:
            restores.extend(_module(each) for each in model.modules())
            held = (*model.parameters(), *model.buffers(), *states(model))
            self._tensors.update((id(each), each) for each in held)
        if optimizer is not None:
            restores.append(_optimizer(optimizer))
            self._tensors.update((id(each), each) for each in _parameters(optimizer))
        restores.extend(_content(each) for each in self._tensors.values())
        restores.extend(_gradient(each) for each in self._tensors.values() if each.is_leaf)
        self._restores = restores

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Puts it back on leaving, for whatever reason, and the random states of entering: of torch on
        every device, of Python, and of NumPy where it is loaded."""
        drawn = [*_random_states()]
        try:
            yield
        finally:
            for restore in (*drawn, *self._restores):
                restore()
            # What came meanwhile, as in a first call that is put back, begins anew where it is.
            for each in () if self._model is None else states(self._model):
                if id(each) not in self._tensors:
                    each.zero_()


def restored(
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    schedulers: Iterable[LRScheduler] = (),
) -> AbstractContextManager[None]:
    """Puts back on leaving what is on entering: see `Snapshot`."""
    return Snapshot(model, optimizer, schedulers).kept()


@contextmanager
def without_hooks(optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Inside, no hook that was given to the optimizer runs around its step: what one does elsewhere, as an
    average of weights does, nobody here could put back. Hooks of all optimizers stay; Peakward has one."""
    tables = () if optimizer is None else _hooks(optimizer)
    saved = [dict(each) for each in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, held in zip(tables, saved, strict=True):
            table.update(held)


def has_hooks(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether hooks that were given to the optimizer run around its step."""
    return optimizer is not None and any(map(bool, _hooks(optimizer)))


def _hooks(optimizer: torch.optim.Optimizer) -> tuple[dict[int, Any], ...]:
    """The tables themselves, which handles of hooks know. What wraps an optimizer may have none."""
    held = vars(optimizer)
    return tuple(held.get(f"_optimizer_step_{when}_hooks", {}) for when in ("pre", "post"))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _content(tensor: Tensor) -> Restore:
    saved = _on_host(tensor)
    device, dtype, shape = tensor.device, tensor.dtype, tensor.shape

    def restore() -> Tensor:
        with torch.no_grad():
            if (tensor.device, tensor.dtype, tensor.shape) == (device, dtype, shape):
                tensor.copy_(saved)
            else:  # Its data were exchanged for another tensor's.
                tensor.data = saved.to(device, copy=True)
        return tensor

    return restore


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _gradient(leaf: Tensor) -> Restore:
    """Keeps a gradient without holding it alive when the step frees it: that would show in the peak."""
    gradient = leaf.grad
    if gradient is None:

        def clear() -> None:
            leaf.grad = None

        return clear
    alive, saved, device = weakref.ref(gradient), _on_host(gradient), gradient.device

    def restore() -> None:
        same = alive()
        with torch.no_grad():
            leaf.grad = saved.to(device, copy=True) if same is None else same.copy_(saved)

    del gradient
    return restore


def _module(module: nn.Module) -> Restore:
    """Keeps a module's mode, and which tensors its parameters and buffers are; not their content."""
    training = module.training
    both: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    # A ScriptModule's tables are of C++, and nothing here puts another tensor into them.
    scripted = isinstance(module, torch.jit.ScriptModule)
    tables = [] if scripted else [(table, dict(table)) for table in both]
    needs_grad = [(each, each.requires_grad) for each in module.parameters(recurse=False)]

    def restore() -> None:
        module.training = training
        for table, saved in tables:
            table.clear()
            table.update(saved)
        for each, required in needs_grad:
            each.requires_grad_(required)

    return restore


def _scheduler(scheduler: LRScheduler) -> Restore:
    """Keeps what it counts, also in schedulers that it is made of; what else a user's class holds stays."""
    counts = {name: each for name, each in vars(scheduler).items() if isinstance(each, Count)}
    rates = {name: list(each) for name, each in vars(scheduler).items() if isinstance(each, list)}
    parts = [_scheduler(each) for each in vars(scheduler).get("_schedulers", ())]

    def restore() -> None:
        vars(scheduler).update(counts, **{name: list(each) for name, each in rates.items()})
        for each in parts:
            each()

    return restore


def _optimizer(optimizer: torch.optim.Optimizer) -> Restore:
    state = [(key, _value(value)) for key, value in optimizer.state.items()]
    groups = [
        (group, list(group["params"]), _value(_without_params(group)))
        for group in optimizer.param_groups
    ]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update((key, saved()) for key, saved in state)
        for group, params, saved in groups:
            group.clear()
            group.update(saved(), params=params)
        optimizer.param_groups[:] = [group for group, _, _ in groups]

    return restore


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _value(value: Any) -> Restore:
    """Keeps nested containers: tensors themselves with their content, all else as copies."""
    if isinstance(value, Tensor):
        return _content(value)
    if isinstance(value, dict):
        items = {key: _value(each) for key, each in value.items()}
        return lambda: {key: saved() for key, saved in items.items()}
    if isinstance(value, list):
        elements = [_value(each) for each in value]
        return lambda: [saved() for saved in elements]
    kept = copy.deepcopy(value)
    return lambda: copy.deepcopy(kept)


def _random_states() -> Iterator[Restore]:
    python, cpu = random.getstate(), torch.get_rng_state()
    yield lambda: random.setstate(python)
    yield lambda: torch.set_rng_state(cpu)
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(cuda)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        drawn = numpy.random.get_state()
        yield lambda: numpy.random.set_state(drawn)
