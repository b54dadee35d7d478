"""A module of anyone's as its operators and tensors, seen without running it on any values."""

from typing import Literal

import msgspec

from peakward.records.case import ModulePass, StepCase
from peakward.records.memory import MemoryPhase
from peakward.records.op_graph import OpGraph

Held = Literal["parameters", "gradients", "optimizer_state", "inputs", "activations", "temporaries"]


class Lifetime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor's memory, from the operator that makes it to the last before which it is gone."""

    n_bytes: int
    held_for: Held
    made: int
    """Index of an operator."""
    last: int
    """Likewise; both included."""


class ModuleCapture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a module: operators as a CPU dispatches them, and every tensor's lifetime."""

    name: str
    """The module's class."""
    fingerprint: str
    """Of the operators: two captures alike have the same."""
    pass_: ModulePass = msgspec.field(name="pass")
    n_parameters: int
    n_trained: int
    """Tensors of parameters that want a gradient."""
    n_rows: int
    """Rows that its products have in the forward pass: elements of the first input, but for a last
    dimension of floats; (batch, seq_len) of token ids gives batch · seq_len."""
    tokens: int | None
    """Of a step; None where nobody knows."""
    n_module_calls: int
    """Calls of modules in the forward pass."""
    graph: OpGraph
    """Of the second step."""
    phases: tuple[MemoryPhase, ...]
    """Of each operator from the building of the module to the end of its second step."""
    lifetimes: tuple[Lifetime, ...]
    """In the order in which they begin."""

    @property
    def case(self) -> StepCase:
        """What stands for it where a case is asked for."""
        return StepCase(
            name=f"{self.name} {self.pass_}",
            fingerprint=self.fingerprint,
            device="cuda",
            tokens_per_step=None if self.tokens is None else float(self.tokens),
        )
