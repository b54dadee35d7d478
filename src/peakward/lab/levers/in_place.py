"""Applies a configuration to a model and an optimizer where they live, and takes it back.

Nothing is copied: parameters stay the objects that they were, so that optimizers, tied weights, averages
and hooks which hold them go on. Each change returns its undo, and `Applied.undo` calls them in reverse.
"""

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from peakward.kernels.ops.forwards import Around, Call, wrap_forward
from peakward.lab.levers import module_levers, precision
from peakward.lab.levers.fp8_layers import choose_at_first_call
from peakward.lab.models.callers_compilation import CallersCompilation
from peakward.lab.models.data_parallel import beneath
from peakward.levers import catalogue
from peakward.levers.axis import Undo
from peakward.records.case import AS_WRITTEN, Configuration, DeviceType, Precision
from peakward.records.errors import PeakwardError


@dataclass(frozen=True, kw_only=True)
class Live:
    """A model and its optimizer, which the caller trains."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    keeps_buffers: bool = False
    """Whether buffers stay in fp32 under 16-bit parameters (`GivenModule.keeps_buffers`)."""
    compilation: CallersCompilation | None = None
    """The compilation that the caller gave the model, where there is one."""
    wrapper: nn.Module | None = None
    """The DistributedDataParallel that the model is inside of, where there is one."""

    @property
    def called(self) -> nn.Module:
        """The module that the caller calls."""
        return self.model if self.wrapper is None else self.wrapper

    @property
    def device(self) -> DeviceType:
        """The kind of its device."""
        return "cuda" if self.place.type == "cuda" else "cpu"

    @property
    def place(self) -> torch.device:
        """Where the first parameter lies."""
        return next(self.model.parameters()).device


class Applied:
    """A configuration at work on a live model.

    Raises:
        PeakwardError: a setting that cannot be applied in place; everything is then as it was.
    """

    def __init__(
        self, live: Live, configuration: Configuration, base: Configuration = AS_WRITTEN
    ) -> None:
        self.configuration = configuration
        self._undos: list[Undo] = []
        try:
            for undo in _changes(live, configuration, base):
                self._undos.append(undo)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> tuple[str, ...]:
        """Take everything back, at once. What was trained meanwhile stays trained.

        Returns:
            What could not be given back, a sentence each; empty where all is as it was, bit for bit.
        """
        lost = []
        while self._undos:
            said = self._undos.pop()()
            if said is not None:
                lost.append(said)
        return tuple(lost)


def _changes(live: Live, configuration: Configuration, base: Configuration) -> Iterator[Undo]:
    """Makes one change after another, the innermost first, and gives the undo of each."""
    model = live.model
    _expect_in_place(live, configuration, base)
    if live.wrapper is not None:
        yield _uncut()
    settings = ExitStack()
    settings.enter_context(catalogue.around(configuration, base))
    yield settings.close
    yield from catalogue.apply_to_module(model, configuration)
    if configuration.precision != base.precision:
        yield from _in_precision(live, configuration, base.precision)
    yield module_levers.recompute(model, configuration.checkpointing)
    yield module_levers.compile_in_place(model, configuration.compile, configuration.compile_scope)
    if live.optimizer is not None:
        yield from catalogue.apply_to_optimizer(live.optimizer, configuration, base)


def _in_precision(live: Live, configuration: Configuration, base: Precision) -> Iterator[Undo]:
    kind = configuration.precision
    if kind == "bf16":
        yield _cast_parameters(live, torch.bfloat16)
    if kind == "fp8":
        trains = live.optimizer is not None
        yield choose_at_first_call(live.model, trains=trains, loss=configuration.loss)
    dtype = precision.AUTOCAST.get(kind)
    if dtype is not None and base != "bf16-mixed":  # The step's own autocast.
        yield wrap_forward([live.model], _in_autocast(live.device, dtype))


def obstacle(live: Live, configuration: Configuration, base: Configuration) -> str | None:
    """Why a configuration cannot be applied to what lives, its whole step included, or None.

    The optimizer is asked by setting it and taking that back, so that nothing is told twice.
    """
    optimizer = live.optimizer
    if live.wrapper is not None and (reason := beneath(configuration, base)) is not None:
        return reason
    if configuration.precision == "fp16-mixed" != base.precision:
        return SCALES
    if configuration.precision == "bf16" != base.precision and (held := _held_elsewhere(live)):
        return f"casts parameters, and {held}: take bf16-mixed"
    if optimizer is None:
        return None
    if configuration.cuda_graphs and "capturable" not in optimizer.defaults:
        return f"needs an optimizer that takes capturable=True, got {type(optimizer).__name__}"
    try:
        undos = catalogue.apply_to_optimizer(optimizer, configuration, base)
    except PeakwardError as error:
        return f"cannot be set where it lives: {error}"
    for undo in undos:
        undo()
    return None


SCALES = "scales the loss: call torch.amp.GradScaler in the step, or take bf16-mixed"


def _uncut() -> Undo:
    """Let Dynamo cut no graph where a bucket of DistributedDataParallel ends: what is replaced in a graph
    must be whole in it, and a recomputed block cannot be in one that is cut (torch 2.13)."""
    config = torch._dynamo.config
    before, config.optimize_ddp = config.optimize_ddp, False

    def undo() -> None:
        config.optimize_ddp = before

    return undo


def _expect_in_place(live: Live, configuration: Configuration, base: Configuration) -> None:
    if live.wrapper is not None and (reason := beneath(configuration, base)) is not None:
        raise PeakwardError(
            f"expected settings that a DistributedDataParallel allows, got one that {reason}"
        )
    if configuration.precision == "fp16-mixed" != base.precision:
        raise PeakwardError(
            f"expected a precision that a model can have by itself, got fp16-mixed, which {SCALES}"
        )
    if configuration.cuda_graphs:
        raise PeakwardError(
            "expected settings of a model and an optimizer, got cuda-graphs on, which is one of the whole "
            "step: capture the step, or take compile reduce-overhead"
        )


def _in_autocast(device: DeviceType, dtype: torch.dtype) -> Around:
    """The forward pass under autocast. Results in its type go on in fp32, as the caller had them.

    Without autocast's cache of cast weights: a CUDA graph may not keep it.
    """
    # What goes on behind a nested graph's end has no globals of ours (torch 2.11).
    in_type, wide = _in_type, torch.float32

    def around(inner: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.autocast(device, dtype=dtype, cache_enabled=False):
            result = inner(*args, **kwargs)
        return in_type(result, dtype, wide)

    return around


def _in_type(tree: Any, held: torch.dtype, wanted: torch.dtype) -> Any:
    """The tree, of pytrees and dataclasses, with its tensors of one type in another."""

    def leaf(each: Any) -> Any:
        if isinstance(each, Tensor):
            return each.to(wanted) if each.dtype == held else each
        if not is_dataclass(each) or isinstance(each, type):
            return each
        found = copy.copy(each)
        for field in fields(each):
            value = _in_type(getattr(each, field.name), held, wanted)
            object.__setattr__(found, field.name, value)  # A frozen one, too.
        return found

    return tree_map(leaf, tree)


def _held_elsewhere(live: Live) -> str | None:
    """Which parameter something outside the model holds too, as an average of weights or a tied module
    does, under which a cast would change it; None where nothing is seen to."""
    own = {id(each) for each in live.model.modules()}
    names: dict[int, str] = {}
    for name, each in live.model.named_parameters():
        first = names.setdefault(each.untyped_storage().data_ptr(), name)
        if first != name and each.numel():
            return f"{name} has the memory of {first} and is another tensor"
        if each.untyped_storage().nbytes() > each.numel() * each.element_size():
            return f"{name} is a part of a larger tensor"
    inside = {id(each) for each in live.model.parameters()}
    for held in _parameters(live.optimizer):
        if id(held) not in inside and _name(names, held) is not None:
            return f"the optimizer holds another tensor with the values of {_name(names, held)}"
    # A class is asked of the type: proxies answer isinstance by loading what they stand for.
    others = (each for each in gc.get_objects() if issubclass(type(each), nn.Module))
    for module in others:
        if id(module) in own:
            continue
        tables = (vars(module).get(table, {}) for table in ("_parameters", "_buffers"))
        for value in (each for table in tables for each in table.values()):
            if isinstance(value, Tensor) and _name(names, value) is not None:
                return f"{_name(names, value)} is shared with a {type(module).__name__} outside the model"
    return None


def _name(names: dict[int, str], tensor: Tensor) -> str | None:
    """The parameter whose storage the tensor has."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return names.get(tensor.untyped_storage().data_ptr())


def _parameters(optimizer: torch.optim.Optimizer | None) -> Iterator[Tensor]:
    groups = () if optimizer is None else optimizer.param_groups
    return (each for group in groups for each in group["params"])


def _cast_parameters(live: Live, dtype: torch.dtype) -> Undo:
    """Hold parameters, their gradients and the optimizer's state in the type, and give the model its inputs
    in it and its results in fp32.

    The values before are kept on the host, so that what was not trained meanwhile is given back bit for bit.
    """
    held = _held_elsewhere(live)
    if held is not None:
        raise PeakwardError(f"expected parameters of the model alone to cast, got others: {held}")
    parameters = [each for each in live.model.parameters() if each.dtype == torch.float32]
    if live.optimizer is not None:
        for each in _moments(live.optimizer, parameters):
            if each.dtype != torch.float32:
                raise PeakwardError(
                    "expected an optimizer with moments in the parameters' type to cast, got "
                    f"{str(each.dtype)[6:]} over float32 parameters: leave them, or make another optimizer"
                )
    put_back = _without_views(live.model)
    wide_buffers = dict(_buffers(live.model))
    buffers = () if live.keeps_buffers else wide_buffers.values()
    undos = [_cast(each, dtype) for each in (*parameters, *buffers)]
    undos += [
        _cast(each, dtype)
        for each in (() if live.optimizer is None else _moments(live.optimizer, parameters))
    ]

    in_type, wide = _in_type, torch.float32  # As above.

    def around(inner: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = in_type((args, kwargs), wide, dtype)
        return in_type(inner(*args, **kwargs), dtype, wide)

    unwrap = wrap_forward([live.model], around)

    def undo() -> str | None:
        unwrap()
        n_changed = sum(not restore() for restore in undos)
        # Put in a buffer's place in the meantime.
        for name, each in live.model.named_buffers():
            if name in wide_buffers and each.dtype == dtype:
                each.data = each.data.float()
                n_changed += 1
        put_back()
        # Made in the meantime.
        for each in () if live.optimizer is None else _moments(live.optimizer, parameters):
            each.data = each.data.float()
        if not n_changed:
            return None
        return (
            f"{n_changed} of {len(undos)} tensors were trained in {str(dtype)[6:]}: their values stay, "
            "with the digits of that type"
        )

    return undo


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return (each for each in model.named_buffers() if each[1].dtype == torch.float32)


def _without_views(model: nn.Module) -> Undo:
    """Put a tensor of its own in the place of each buffer that is a view, such as minGPT's causal mask, which
    is a `tril(…).view(…)`: torch cannot trace a view of another type than its base's (2.13).

    Returns:
        What puts the buffers back, with the values that they have by then.
    """
    found: dict[int, tuple[Tensor, Tensor]] = {}
    tables = [(each._buffers, dict(each._buffers)) for each in model.modules()]
    for table, before in tables:
        for name, each in before.items():
            if each is not None and each._is_view() and each.dtype == torch.float32:
                _, table[name] = found.setdefault(id(each), (each, each.detach().clone()))

    def undo() -> None:
        for view, own in found.values():
            if not _equal(own, view, view.dtype):
                view.copy_(own)
        for table, before in tables:
            for name, each in before.items():
                if id(each) in found and table.get(name) is found[id(each)][1]:
                    table[name] = each

    return undo


def _moments(optimizer: torch.optim.Optimizer, of: list[nn.Parameter]) -> Iterator[Tensor]:
    """The optimizer's state of these parameters that has their shape: no counts of steps."""
    for parameter in of:
        for each in optimizer.state.get(parameter, {}).values():
            if isinstance(each, Tensor) and each.shape == parameter.shape and each.dim():
                yield each


def _cast(tensor: Tensor, dtype: torch.dtype) -> Callable[[], bool]:
    """Cast a tensor that stays the object that it is, and its gradient.

    Returns:
        What gives both back, and says whether the tensor's values are those of before.
    """
    before = tensor.detach().to("cpu", copy=True)
    gradient = None if tensor.grad is None else tensor.grad.detach().to("cpu", copy=True)
    _set(tensor, dtype)

    def restore() -> bool:
        is_same = _equal(tensor, before, dtype)
        last = tensor.grad
        same_gradient = last is not None and gradient is not None and _equal(last, gradient, dtype)
        _set(tensor, before.dtype)
        if is_same:
            tensor.data.copy_(before)
        if same_gradient:
            assert tensor.grad is not None
            assert gradient is not None
            tensor.grad.copy_(gradient)
        return is_same

    return restore


def _equal(now: Tensor, before: Tensor, dtype: torch.dtype) -> bool:
    """Whether these are still the values that were cast, bit for bit; NaN equals itself."""
    as_bits = torch.int16 if dtype.itemsize == 2 else torch.int32
    return torch.equal(now.detach().cpu().view(as_bits), before.to(dtype).view(as_bits))


def _set(tensor: Tensor, dtype: torch.dtype) -> None:
    gradient, tensor.grad = tensor.grad, None
    tensor.data = tensor.data.to(dtype)
    if gradient is not None:
        tensor.grad = gradient.to(dtype)
