"""Records when the memory of each tensor of running code comes and goes."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.models.operator_work import scratch, tensors
from peakward.records.memory import MemoryPhase
from peakward.records.op_graph import Held, Lifetime


class LifetimeRecorder(TorchDispatchMode):
    """Follows every storage that an operator makes, while it is on, to its end.

    A storage that still exists at the end lasts to the end. `claim` says the purposes of tensors. Of
    the others, those from the forward pass that a backward pass finds are activations, and all else is
    temporary.
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
        """The numbers of the existing storages, by address."""
        self._watched: list[weakref.ref[Any]] = []

    def enter(self, phase: MemoryPhase) -> None:
        """Begins a phase."""
        if (self._phase, phase) == ("forward", "backward"):
            for number in self._known.values():
                self._held_for.setdefault(number, "activations")
        self._phase = phase

    def claim(self, held_for: Held, claimed: Iterable[Tensor | None]) -> None:
        """Gives the memory of these tensors a purpose. A tensor that was not seen being made exists
        from now on."""
        for tensor in claimed:
            if tensor is not None:
                self._held_for[self.number(tensor)] = held_for

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """The lifetimes of all storages so far."""
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
        for size in scratch(str(func.overloadpacket), tensors((args, kwargs)), tensors(result)):
            self._gone[self._new(size)] = len(self.phases) - 1
        for tensor in tensors(result):
            self.number(tensor)
        return result

    def number(self, tensor: Tensor) -> int:
        """The index of the lifetime of its memory."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return self._known[address]
        if not self.phases:
            self.phases.append(self._phase)
        number = self._new(storage.nbytes())
        self._known[address] = number
        self._watched.append(weakref.ref(storage, lambda _: self._forget(address, number)))
        return number

    def _new(self, n_bytes: int) -> int:
        """The index of a lifetime that begins now."""
        self._sizes.append(n_bytes)
        self._made.append(len(self.phases) - 1)
        return len(self._sizes) - 1

    def _forget(self, address: int, number: int) -> None:
        if self._known.get(address) == number:
            del self._known[address]
        self._gone[number] = len(self.phases) - 1
