"""The whole training step of a model that lives here, on any batch: forward, loss, backward, update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from peakward.lab.data.feed import MicroBatches
from peakward.lab.levers.configured_step import CapturedStep, set_up
from peakward.lab.levers.in_place import Live
from peakward.lab.levers.module_step import scalar
from peakward.lab.models.given_module import called_on, loss_on
from peakward.levers.axis import Undo


class WholeStep:
    """Steps a live model on the batches that it is given, in the mode that the model is in.

    Args:
        loss: of the module's output, or of the output and the batch; without it the output is the loss,
            or has it as `.loss`.
        captured: replay a CUDA graph of the step, one for each kind of batch. Tensors of a batch are
            copied into the graph's own; the rates of the optimizer are read at every step.
    """

    def __init__(
        self, live: Live, loss: Callable[..., Tensor] | None, *, captured: bool = False
    ) -> None:
        self._live, self._loss, self._captured = live, loss, captured
        self._graphs: dict[object, CapturedStep] = {}
        self._rates: list[Tensor] = []
        self._undo = _capturable(live) if captured else None

    def __call__(self, batch: Any) -> Tensor:
        """Step once on a batch, a tensor or a sequence or mapping of inputs.

        Returns:
            The loss before the update, without its graph.
        """
        if isinstance(batch, Mapping):
            batch = dict(batch)
        leaves, spec = tree_flatten(batch)
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        if not self._captured:
            return self._run(leaves, spec, tensors)
        shapes = tuple((each.shape, each.dtype) for each in tensors)
        others = tuple(repr(each) for each in leaves if not isinstance(each, Tensor))
        key = spec, shapes, others, repr(self._settings())
        if key not in self._graphs:
            self._graphs[key] = self._graph(leaves, spec)
        with self._own_rates():
            return self._graphs[key]([tuple(tensors)]).clone()

    def release(self) -> None:
        """Let go of every graph, and give the optimizer its flags back."""
        self._graphs.clear()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _graph(self, leaves: list[Any], spec: TreeSpec) -> CapturedStep:
        def run(batches: MicroBatches) -> Tensor:
            return self._run(leaves, spec, batches[0])

        def rehearse(batches: MicroBatches) -> None:
            self._backward(leaves, spec, batches[0])
            optimizer = self._live.optimizer
            if optimizer is not None and not optimizer.state:
                set_up(optimizer)
            self._zero_grad()

        return CapturedStep(run, rehearse)

    def _run(self, leaves: list[Any], spec: TreeSpec, tensors: Sequence[Tensor]) -> Tensor:
        loss = self._backward(leaves, spec, tensors)
        if self._live.optimizer is not None:
            self._live.optimizer.step()
        return loss

    def _backward(self, leaves: list[Any], spec: TreeSpec, tensors: Sequence[Tensor]) -> Tensor:
        self._zero_grad()
        held = iter(tensors)
        filled = [next(held) if isinstance(each, Tensor) else each for each in leaves]
        batch = tree_unflatten(filled, spec)
        args, kwargs = called_on(batch)
        output = self._live.called(*args, **kwargs)
        of_output = loss_on(self._loss, batch)
        loss = scalar(output if of_output is None else of_output(output))
        loss.backward()
        return loss.detach()

    def _zero_grad(self) -> None:
        """Clear the gradients of the model and of what the optimizer trains beside it."""
        self._live.model.zero_grad(set_to_none=True)
        if self._live.optimizer is not None:
            self._live.optimizer.zero_grad(set_to_none=True)

    def _settings(self) -> list[dict[str, Any]]:
        """The settings of the optimizer that a graph holds fast; not its rates."""
        optimizer = self._live.optimizer
        groups = () if optimizer is None else optimizer.param_groups
        return [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in groups
        ]

    @contextmanager
    def _own_rates(self) -> Iterator[None]:
        """Inside, the groups hold tensors with their rates: a graph would hold fast a number."""
        optimizer = self._live.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        for _ in range(len(groups) - len(self._rates)):
            place = next(self._live.model.parameters()).device
            self._rates.append(torch.zeros((), device=place))
        given = [group["lr"] for group in groups]
        for group, held, rate in zip(groups, self._rates, given, strict=True):
            held.fill_(rate)
            group["lr"] = held
        try:
            yield
        finally:
            for group, rate in zip(groups, given, strict=True):
                group["lr"] = rate


def copied(batch: Any) -> Any:
    """The batch with tensors of its own."""
    plain = dict(batch) if isinstance(batch, Mapping) else batch
    return tree_map_only(Tensor, torch.clone, plain)


def _capturable(live: Live) -> Undo:
    """Let the optimizer keep its counts on the device, as a graph needs; returns what takes it back."""
    optimizer = live.optimizer
    if optimizer is None:
        return lambda: None
    places: list[dict[str, Any]] = [optimizer.defaults, *optimizer.param_groups]
    before = [each["capturable"] for each in places]
    for each in places:
        each["capturable"] = True
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(parameter.device)

    def undo() -> None:
        groups = [optimizer.defaults, *optimizer.param_groups]
        # A group that was added meanwhile gets what the defaults had, which stand first.
        for place, held in zip_longest(groups, before, fillvalue=before[0]):
            place["capturable"] = held
        for group in optimizer.param_groups:
            if group.get("fused") or group["capturable"]:
                continue
            for state in (optimizer.state.get(each, {}) for each in group["params"]):
                if isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].cpu()

    return undo
