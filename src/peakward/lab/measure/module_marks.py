"""Reports which module is the innermost that runs, whenever that changes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from peakward.kernels.ops.attention.api import in_ranges
from peakward.lab.levers.checkpointing import Recomputed
from peakward.lab.levers.compilation import is_compiled
from peakward.lab.models.decoder import Decoder, SelfAttention


@contextmanager
def told_modules(model: Decoder, tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` with the path of the innermost running module whenever that changes, and with ""
    where none runs. Parts of naive attention end a path as modules do.

    A block that is recomputed in the backward pass runs again, though torch may end it by an exception.
    Compiled modules, and those inside them, are not reported: a hook would be compiled too.
    """
    running: list[str] = []

    def enter(path: str) -> None:
        running.append(path)
        tell(path)

    def leave() -> None:
        running.pop()
        tell(running[-1] if running else "")

    @contextmanager
    def opened(part: str) -> Iterator[None]:
        # Part "attention.softmax" belongs to the module whose path ends with "attention".
        enter(".".join((running[-1], *part.split(".")[1:])))
        try:
            yield
        finally:
            leave()

    with ExitStack() as changes:
        for path, module in uncompiled(model, ""):
            if path:
                changes.enter_context(_hooked(module, path, enter, leave))
            if isinstance(module, SelfAttention):
                changes.enter_context(_in_ranges(module, opened))
        yield


def uncompiled(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are not compiled, with their paths. A block has its number in the model,
    recomputed or not."""
    if is_compiled(module):
        return
    yield path, module
    if isinstance(module, Decoder):
        yield from _numbered(module)
    for name, child in module.named_children():
        if isinstance(module, Decoder | Recomputed) and name == "blocks":
            continue
        yield from uncompiled(child, f"{path}.{name}" if path else name)


def _numbered(model: Decoder) -> Iterator[tuple[str, nn.Module]]:
    number = 0
    for each in model.blocks:
        inside = [each]
        if isinstance(each, Recomputed) and not is_compiled(each):
            inside = list(each.blocks)
        for block in inside:
            yield from uncompiled(block, f"blocks.{number}")
            number += 1


@contextmanager
def _hooked(
    module: nn.Module, path: str, enter: Callable[[str], None], leave: Callable[[], None]
) -> Iterator[None]:
    def before(*_arguments: Any) -> None:
        enter(path)

    def after(*_arguments: Any) -> None:
        leave()

    hooks = (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


@contextmanager
def _in_ranges(module: SelfAttention, opened: Any) -> Iterator[None]:
    plain = module.attention
    module.attention = in_ranges(plain, opened)
    try:
        yield
    finally:
        module.attention = plain
