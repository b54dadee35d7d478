"""Any module's operators and tensors, captured without computing on any values."""

from typing import Literal

import msgspec

from peakward.records.case import ModulePass, StepCase
from peakward.records.memory import MemoryPhase
from peakward.records.op_graph import OpGraph

Held = Literal["parameters", "gradients", "optimizer_state", "inputs", "activations", "temporaries"]


class Lifetime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The life of a tensor's memory: the first and the last operator during which it exists."""

    n_bytes: int
    held_for: Held
    made: int
    """The index of the first operator."""
    last: int
    """The index of the last operator. Both are included."""


class ModuleCapture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a module: operators as a CPU dispatches them, and every tensor's lifetime."""

    name: str
    """The module's class."""
    fingerprint: str
    """A hash of the operators: two equal captures have the same one."""
    pass_: ModulePass = msgspec.field(name="pass")
    n_parameters: int
    n_trained: int
    """Parameter tensors that need a gradient."""
    n_rows: int
    """Rows of its products in the forward pass: the elements of the first input, without a last dimension of
    floats. Token ids of shape (batch, seq_len) give batch · seq_len."""
    tokens: int | None
    """Tokens in a step; None where unknown."""
    n_module_calls: int
    """Calls of modules in the forward pass."""
    graph: OpGraph
    """The operators of the second step."""
    phases: tuple[MemoryPhase, ...]
    """The phase of each operator, from building the module to the end of its second step."""
    lifetimes: tuple[Lifetime, ...]
    """In the order in which they begin."""

    @property
    def case(self) -> StepCase:
        """A case that stands for the capture where one is required."""
        return StepCase(
            name=f"{self.name} {self.pass_}",
            fingerprint=self.fingerprint,
            device="cuda",
            tokens_per_step=None if self.tokens is None else float(self.tokens),
        )
