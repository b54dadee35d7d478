"""The state of a training run, kept on the host or on disk, and put back bit for bit."""

import copy
import math
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from peakward.kernels.ops.forwards import states
from peakward.lab.debugging.values import is_finite, is_followed, wide
from peakward.records.errors import PeakwardError

GRADIENT = "gradient of "
"""The beginning of a gradient's name."""
GENERATORS = ("python", "numpy", "torch", "cuda")
"""Those that a step may draw from, of the whole process; "cuda" means those of all GPUs."""


class HasState(Protocol):
    """A scaler, a scheduler, or anything else that a step changes."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> object: ...


class TrainingState:
    """All that a step reads and changes: model, optimizer, other objects with a state, random numbers.

    Args:
        others: objects with `state_dict` and `load_state_dict`, such as a GradScaler or a scheduler.

    Buffers that hold values that are not finite when it is made, as masks do, are constants: no fault is
    looked for in them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        others: Iterable[HasState] = (),
    ) -> None:
        self.model, self.optimizer, self.others = model, optimizer, tuple(others)
        self._constants = {
            name
            for name, each in model.named_buffers()
            if is_followed(each) and not is_finite(each)
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's by their names, and those that the optimizer alone holds, such as masters in fp32."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        held = [each for group in groups for each in group["params"]]
        named = dict(self.model.named_parameters())
        of_model = set(named.values())
        return named | {
            f"number {n} of the optimizer": each
            for n, each in enumerate(held)
            if each not in of_model
        }

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, buffers and tensors of the optimizer that a good state has finite, by a name that
        says what each is."""
        named = {f"parameter {name}": each for name, each in self.parameters().items()}
        buffers = {
            f"buffer {name}": each
            for name, each in self.model.named_buffers()
            if name not in self._constants
        }
        return {**named, **buffers, **self._moments()}

    def gradients(self) -> dict[str, Tensor]:
        """Those that are kept now, by names as those of `tensors`. A good state may have some that are not
        finite, as behind a step that a GradScaler skipped."""
        return {
            f"{GRADIENT}{name}": each.grad
            for name, each in self.parameters().items()
            if each.grad is not None
        }

    def _moments(self) -> dict[str, Tensor]:
        if self.optimizer is None:
            return {}
        names: dict[Tensor, str] = {each: name for name, each in self.parameters().items()}
        return {
            f"state {key} of {names.get(parameter, f'entry {n}')}": value
            for n, (parameter, state) in enumerate(self.optimizer.state.items())
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def finite_flags(self) -> list[Tensor]:
        """One boolean for each device and type, where the tensors lie, without a wait for it."""
        groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for each in self.tensors().values():
            if is_followed(each) and each.numel():
                values = wide(each)
                groups.setdefault((values.device, values.dtype), []).append(values)
        # The largest magnitude of each: one kernel reads many tensors, and NaN stays NaN.
        norms = [torch._foreach_norm(group, ord=math.inf) for group in groups.values()]
        return [torch.stack(list(each)).isfinite().all() for each in norms]

    def is_finite(self) -> bool:
        """Whether every value is; waits for the device."""
        return all(bool(each) for each in self.finite_flags())


class Snapshot:
    """The state after so many steps. `step` is the number of steps that it has seen."""

    def __init__(self, state: TrainingState, step: int) -> None:
        self.step = step
        self._state = state
        self._model = {name: _kept(each) for name, each in _own(state).items()}
        self._gradients = {
            name: _kept(each.grad)
            for name, each in state.parameters().items()
            if each.grad is not None
        }
        self._optimizer = None if state.optimizer is None else _deep(state.optimizer.state_dict())
        self._others = [_deep(each.state_dict()) for each in state.others]
        self._random = random_state()
        flags = state.finite_flags()
        self._flags = [_kept(each) for each in flags]
        self._ready = [
            _event(device) for device in {each.device for each in flags} if device.type == "cuda"
        ]
        kept = [*self._model.values(), *self._gradients.values(), *tree_leaves(self._optimizer)]
        self.n_bytes = sum(_n_bytes(each) for each in kept if isinstance(each, Tensor))

    def was_finite(self) -> bool:
        """Whether every value was; waits until that has been copied."""
        for each in self._ready:
            each.synchronize()
        return all(bool(each) for each in self._flags)

    def restore(self) -> None:
        """Put everything back, gradients that a step adds to as well; parameters stay the objects that they
        were."""
        state = self._state
        with torch.no_grad():
            for name, each in _own(state).items():
                if name in self._model:
                    each.copy_(self._model[name])
                else:  # The state of a forward pass that was given since.
                    each.zero_()
        for name, parameter in state.parameters().items():
            gradient = self._gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        if state.optimizer is not None and self._optimizer is not None:
            _load(state.optimizer, self._optimizer)
        for other, kept in zip(state.others, self._others, strict=True):
            other.load_state_dict(copy.deepcopy(kept))
        set_random(self._random)

    def save(self, folder: Path) -> Path:
        """Write it as a file that `torch.load(…, weights_only=True)` reads: whole, or not at all.

        Raises:
            PeakwardError: the disk takes no more.
        """
        place = folder / f"step-{self.step}.pt"
        part = place.with_suffix(".part")
        content = {
            "step": self.step,
            "model": self._model,
            "gradients": self._gradients,
            "optimizer": self._optimizer,
            "others": self._others,
        }
        try:
            with part.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            raise PeakwardError(
                f"expected room for a snapshot of {self.n_bytes / 2**30:.2f} GiB in {folder}, got: {error}: "
                "name another folder, or take fewer snapshots"
            ) from error
        return place


def _own(state: TrainingState) -> dict[str, Tensor]:
    """Parameters and buffers, also those that no state_dict holds, and states of forward passes."""
    return {
        **{f"p {name}": each.detach() for name, each in state.parameters().items()},
        **{f"b {name}": each.detach() for name, each in state.model.named_buffers()},
        **{f"f {place}": each for place, each in enumerate(states(state.model))},
    }


def _kept(tensor: Tensor) -> Tensor:
    """A copy on the host. Of a GPU's tensor in pinned memory, so that the step goes on while it is copied."""
    if tensor.is_sparse:
        return tensor.detach().to("cpu", copy=True)
    if tensor.device.type != "cuda":
        return tensor.detach().clone()
    held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return held.copy_(tensor.detach(), non_blocking=True)


def _event(device: torch.device) -> torch.cuda.Event:
    """A mark behind what the device has been given to do."""
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()
    return event


def _n_bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def _deep(state: Any) -> Any:
    return tree_map(
        lambda each: _kept(each) if isinstance(each, Tensor) else copy.deepcopy(each), state
    )


def _load(optimizer: torch.optim.Optimizer, kept: dict[str, Any]) -> None:
    """As `load_state_dict`, but tensors keep the type and the place that they had: it casts moments to the
    type of their parameters."""
    optimizer.load_state_dict(copy.deepcopy(kept))
    order = [each for group in optimizer.param_groups for each in group["params"]]
    for index, state in kept["state"].items():
        parameter = order[index]
        for key, value in state.items():
            if isinstance(value, Tensor):
                now = optimizer.state[parameter][key]
                on = now.device if isinstance(now, Tensor) else parameter.device
                optimizer.state[parameter][key] = value.clone().to(on)


def random_state(names: Iterable[str] = GENERATORS) -> dict[str, Any]:
    """The states of these generators; without "cuda" where no GPU is in use."""
    take: dict[str, Callable[[], Any]] = {
        "python": random.getstate,
        "numpy": np.random.get_state,
        "torch": torch.get_rng_state,
    }
    if torch.cuda.is_initialized():
        take["cuda"] = torch.cuda.get_rng_state_all
    return {name: take[name]() for name in names if name in take}


def set_random(state: dict[str, Any]) -> None:
    """Set the generators that it has states of."""
    put: dict[str, Callable[[Any], object]] = {
        "python": random.setstate,
        "numpy": np.random.set_state,
        "torch": torch.set_rng_state,
        "cuda": torch.cuda.set_rng_state_all,
    }
    for name, each in state.items():
        put[name](each)


class Snapshots:
    """The last two snapshots of a run. The older one is good. The newer may hold what is hunted; behind the
    older one lie at least as many steps as between two, which show what led to it.

    Args:
        folder: where each is written too; None keeps them in the host's memory alone.
    """

    def __init__(self, state: TrainingState, *, folder: Path | None) -> None:
        self._state, self._folder = state, folder
        self.kept: list[Snapshot] = []
        self.n_taken, self.spent_s = 0, 0.0

    def are_good(self) -> bool:
        """Whether the newest holds finite values alone; waits until it has been copied, not for the steps
        behind it. If not, take no other: the older one would be lost."""
        return all(each.was_finite() for each in self.kept[-1:])

    def take(self, step: int) -> None:
        """Take one behind `step` steps.

        Raises:
            PeakwardError: the folder takes it not.
        """
        began = perf_counter()
        newest = Snapshot(self._state, step)
        if self._folder is not None:
            _wait()
            newest.save(self._folder)
            for gone in self.kept[:-1]:
                (self._folder / f"step-{gone.step}.pt").unlink(missing_ok=True)
        self.kept = [*self.kept[-1:], newest]
        self.n_taken += 1
        self.spent_s += perf_counter() - began

    def good(self) -> Snapshot | None:
        """The oldest that is kept and whose every value is finite, if there is one; waits for the device."""
        _wait()
        return next((each for each in self.kept if each.was_finite()), None)


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
