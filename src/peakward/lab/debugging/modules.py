"""Where in a model an operator lies: the module that is running, or whose backward pass is."""

import linecache
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.records.debugging import Phase

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
OUTSIDE = ("", "")


class Place(NamedTuple):
    """Where an operator lies."""

    phase: Phase
    module: str
    module_type: str
    derivative_of: str | None
    source: str | None


class Places:
    """Follows a step through its modules. The nodes of the graph know their module, so that an operator of
    the backward pass is placed by the node that runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._running: list[tuple[str, str]] = []
        self._nodes: dict[Any, tuple[str, str]] = {}
        self._in_optimizer = False

    @contextmanager
    def followed(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """While it lasts, the model's calls and the optimizer's steps are followed."""
        with ExitStack() as hooks:
            for name, each in self._model.named_modules():
                self._follow(name, each, hooks)
            if optimizer is not None:
                hooks.callback(optimizer.register_step_pre_hook(self._enters).remove)
                hooks.callback(optimizer.register_step_post_hook(self._leaves).remove)
            # Nodes then keep the lines of the program that made them.
            before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            hooks.callback(torch.autograd.set_detect_anomaly, *before)
            yield
        self._nodes.clear()
        self._running.clear()

    def now(self) -> Place:
        """The place of the operator that runs."""
        if self._in_optimizer:
            return Place("optimizer", *OUTSIDE, None, _line(traceback.extract_stack()))
        node = torch._C._current_autograd_node()
        if node is None:
            module = self._running[-1] if self._running else OUTSIDE
            return Place("forward", *module, None, _line(traceback.extract_stack()))
        module = self._nodes.get(node, OUTSIDE)
        kept: dict[str, list[str]] = node.metadata  # type: ignore[assignment]
        lines = "".join(kept.get("traceback_", ()))
        return Place("backward", *module, node.name(), _line(_frames(lines)))

    def _follow(self, name: str, module: nn.Module, hooks: ExitStack) -> None:
        here = (name, type(module).__name__)

        def enters(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._claim((args, kwargs))
            self._running.append(here)

        def leaves(_module: nn.Module, _args: tuple[Any, ...], output: object) -> None:
            self._claim(output)
            while self._running and self._running.pop() != here:
                pass

        hooks.callback(module.register_forward_pre_hook(enters, with_kwargs=True).remove)
        hooks.callback(module.register_forward_hook(leaves).remove)

    def _claim(self, found: object) -> None:
        """Give every node that no module has yet to the one that runs."""
        owner = self._running[-1] if self._running else OUTSIDE
        waiting = [
            each.grad_fn for each in tree_leaves(found) if isinstance(each, Tensor) and each.grad_fn
        ]
        while waiting:
            node = waiting.pop()
            if node in self._nodes:
                continue
            self._nodes[node] = owner
            waiting.extend(each for each, _ in node.next_functions if each is not None)

    def _enters(self, *_: object) -> None:
        self._in_optimizer = True

    def _leaves(self, *_: object) -> None:
        self._in_optimizer = False


def _frames(text: str) -> list[traceback.FrameSummary]:
    """The frames of a printed traceback, whose lines come in pairs of a place and its code."""
    found = []
    for line in text.splitlines():
        if line.startswith('  File "'):
            place, _, rest = line[8:].partition('", line ')
            number = rest.partition(",")[0]
            if number.isdigit():
                found.append(traceback.FrameSummary(place, int(number), "", lookup_line=False))
    return found


def _line(stack: list[traceback.FrameSummary]) -> str | None:
    """The innermost line that is neither torch's nor ours: "file:line: code"."""
    for frame in reversed(stack):
        if not frame.filename.startswith((_TORCH, _OURS, "<frozen")):
            code = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename}:{frame.lineno}: {code}"
    return None
