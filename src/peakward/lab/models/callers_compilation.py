"""A model that its caller compiled: the module without it, and the compilation taken off for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from peakward.lab.models.given_module import GivenModule, given, parts_of, repeated_blocks
from peakward.records.case import CompileScope

_CALL = "_compiled_call_impl"
_WRAPPER = torch._dynamo.eval_frame.OptimizedModule


class CallersCompilation:
    """The compilation of a model by `torch.compile(model)`, `model.compile()` or that of each repeated block.

    Compilation is a lever here, so a search starts from a model that is compiled so and not from one that is
    wrapped. What else is compiled in a model is left in it, and refused by `given_module.expect_plain`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.is_around = isinstance(model, _WRAPPER)
        """Whether the caller holds what `torch.compile` made of the module, and not the module."""
        self.plain: nn.Module = model._orig_mod if isinstance(model, _WRAPPER) else model
        """The module itself, with all its parameters."""
        self.scope: CompileScope | None = None
        """The part that is compiled; None where nothing is."""
        self._held: dict[nn.Module, Any] = {}
        blocks = list(repeated_blocks(self.plain) or ())
        if self.is_around or _is_compiled(self.plain):
            self.scope, parts = "model", [self.plain]
        elif blocks and all(map(_is_compiled, blocks)):
            self.scope, parts = "block", blocks
        else:
            parts = []
        self.parts = parts
        """The modules that are compiled, each by itself."""

    def take_off(self) -> None:
        """Leave the modules as they were before; a second call does nothing."""
        for each in self.parts:
            if _is_compiled(each):
                self._held[each] = vars(each).pop(_CALL)

    def put_back(self) -> None:
        """Compile what was compiled, as the caller did."""
        for each, call in self._held.items():
            setattr(each, _CALL, call)
        self._held.clear()

    @contextmanager
    def off(self) -> Iterator[nn.Module]:
        """The plain module, while it is not compiled."""
        self.take_off()
        try:
            yield self.plain
        finally:
            self.put_back()


def given_eager(made: object) -> GivenModule:
    """A factory's own new module without the compilation that the factory gave it, which is told beside it.

    Raises:
        PeakwardError: as `given`, of what is compiled or wrapped in another way.
    """
    module, batch, loss = parts_of(made)
    if not isinstance(module, nn.Module):
        return given(made)
    compilation = CallersCompilation(module)
    compilation.take_off()
    return replace(given((compilation.plain, batch, loss)), compiled=compilation.scope)


def _is_compiled(module: nn.Module) -> bool:
    return vars(module).get(_CALL) is not None
