"""When the memory of each tensor of running code comes and goes."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.models.operator_bytes import tensors
from peakward.records.memory import MemoryPhase
from peakward.records.module_capture import Held, Lifetime


class LifetimeRecorder(TorchDispatchMode):
    """While it is on, every storage that an operator makes is followed to its end.

    What is still there at the end stays to the end. `claim` says what tensors are for; of the rest,
    what a backward pass finds there from the forward pass is an activation, all else temporary.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[MemoryPhase] = []
        self._phase: MemoryPhase = "build"
        self._sizes: list[int] = []
        self._made: list[int] = []
        self._gone: dict[int, int] = {}
        self._held_for: dict[int, Held] = {}
        self._known: dict[int, int] = {}
        """Storages that are there, by address, and their numbers."""
        self._watched: list[weakref.ref[Any]] = []

    def enter(self, phase: MemoryPhase) -> None:
        """What comes next belongs to this phase."""
        if (self._phase, phase) == ("forward", "backward"):
            for number in self._known.values():
                self._held_for.setdefault(number, "activations")
        self._phase = phase

    def claim(self, held_for: Held, claimed: Iterable[Tensor | None]) -> None:
        """These tensors' memory is for that; what was not seen to be made is there from now on."""
        for tensor in claimed:
            if tensor is not None:
                self._held_for[self._number(tensor)] = held_for

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Of everything so far."""
        end = max(0, len(self.phases) - 1)
        return tuple(
            Lifetime(
                n_bytes=size,
                held_for=self._held_for.get(number, "temporaries"),
                made=made,
                last=max(made, self._gone.get(number, end)),
            )
            for number, (size, made) in enumerate(zip(self._sizes, self._made, strict=True))
        )

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.phases.append(self._phase)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors(result):
            self._number(tensor)
        return result

    def _number(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return self._known[address]
        number = len(self._sizes)
        if not self.phases:
            self.phases.append(self._phase)
        self._sizes.append(storage.nbytes())
        self._made.append(len(self.phases) - 1)
        self._known[address] = number
        self._watched.append(weakref.ref(storage, lambda _: self._forget(address, number)))
        return number

    def _forget(self, address: int, number: int) -> None:
        if self._known.get(address) == number:
            del self._known[address]
        self._gone[number] = len(self.phases) - 1
