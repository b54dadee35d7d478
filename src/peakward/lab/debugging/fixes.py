"""Changes from outside that may keep a run finite, each applied, tried from the snapshot, and taken back."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from peakward.lab.debugging.snapshot import TrainingState
from peakward.records.debugging import Cause, Fault, FixKind, StepSeen

EPSILON = {torch.float16: 1e-4}
"""The epsilon of an optimizer with moments of that type; else 1e-8, as torch has it."""
NORM_EPSILON = 1e-5
"""torch's own of nn.LayerNorm."""
LARGEST_NORM = 1.0
"""Gradients are clipped to it: GPT-2's and GPT-3's recipes do (Brown et al. 2020, appendix B)."""
NARROW = ("float16", "bfloat16")

Undo = Callable[[], None]


class Fix(NamedTuple):
    """A change: what it sets, how, and the same in the user's program."""

    kind: FixKind
    target: str
    code: str
    apply: Callable[[], Undo]
    skips: bool = False
    """Whether the failing batch is left out."""


def candidates(
    fault: Fault, cause: Cause, state: TrainingState, steps: Sequence[StepSeen]
) -> list[Fix]:
    """The changes that the cause names first, then those that may help whatever it is; each is tried."""
    found = list(_of_cause(fault, cause, state))
    if cause.kind == "learning rate" and state.optimizer is not None:
        found.insert(0, _usual(state.optimizer, steps))
    if state.optimizer is not None:
        found += [_tenth(state.optimizer), _clipped(state)]
    found.append(
        Fix(
            "skip batch",
            f"step {fault.step}",
            f"if step == {fault.step}: continue",
            lambda: _nothing,
            skips=True,
        )
    )
    if cause.kind == "bad batch":
        found = found[-1:] + found[:-1]
    unique: dict[tuple[FixKind, str], Fix] = {
        (each.kind, each.target): each for each in reversed(found)
    }
    return [each for each in found if unique.pop((each.kind, each.target), None) is not None]


@contextmanager
def applied(fix: Fix) -> Iterator[None]:
    """While it lasts, the change is made."""
    undo = fix.apply()
    try:
        yield
    finally:
        undo()


def _of_cause(fault: Fault, cause: Cause, state: TrainingState) -> Iterator[Fix]:
    if cause.kind in ("zero variance", "division by zero", "infinite derivative"):
        yield from _norms(fault, state.model)
    if cause.kind == "optimizer state" and state.optimizer is not None:
        yield _optimizer_epsilon(state.optimizer)
    if fault.module and (
        fault.output.dtype in NARROW or any(each.dtype in NARROW for each in fault.inputs)
    ):
        module = state.model.get_submodule(fault.module)
        code = f"with torch.autocast(device_type, enabled=False):  # around {fault.module}, on x.float()"
        yield Fix("module in fp32", fault.module, code, lambda: _in_fp32(module))


def _norms(fault: Fault, model: nn.Module) -> Iterator[Fix]:
    module = model.get_submodule(fault.module) if fault.module else model
    for attribute in ("eps", "variance_epsilon", "epsilon"):
        value = getattr(module, attribute, None)
        if isinstance(value, float) and value < NORM_EPSILON:
            yield Fix(
                "epsilon of norm",
                f"{fault.module}.{attribute}, {value:g} to {NORM_EPSILON:g}",
                f"model.{fault.module}.{attribute} = {NORM_EPSILON:g}",
                functools.partial(_set, module, attribute, NORM_EPSILON),
            )


def _optimizer_epsilon(optimizer: torch.optim.Optimizer) -> Fix:
    types = {
        each.dtype
        for state in optimizer.state.values()
        for each in state.values()
        if isinstance(each, Tensor) and each.ndim
    }
    epsilon = max((EPSILON.get(each, 1e-8) for each in types), default=1e-8)
    code = f"for group in optimizer.param_groups: group['eps'] = {epsilon:g}"
    return Fix(
        "epsilon of optimizer",
        f"eps {epsilon:g}",
        code,
        lambda: _in_groups(optimizer, "eps", lambda _: epsilon),
    )


def _tenth(optimizer: torch.optim.Optimizer) -> Fix:
    return Fix(
        "tenth of the learning rate",
        "every group",
        "for group in optimizer.param_groups: group['lr'] /= 10",
        lambda: _rate(optimizer, lambda rate: rate / 10),
    )


def _usual(optimizer: torch.optim.Optimizer, steps: Sequence[StepSeen]) -> Fix:
    rate = median(each.learning_rate for each in steps if each.learning_rate is not None)
    return Fix(
        "usual learning rate",
        f"at most {rate:.4g}",
        f"for group in optimizer.param_groups: group['lr'] = min(group['lr'], {rate:.4g})",
        lambda: _rate(optimizer, lambda now: min(now, rate)),
    )


def _rate(optimizer: torch.optim.Optimizer, changed: Callable[[float], float]) -> Undo:
    """Changes the rate of every step where the optimizer steps, whatever a schedule sets."""
    kept: list[float] = []

    def before(*_: object) -> None:
        kept[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = changed(group["lr"])

    def after(*_: object) -> None:
        for group, rate in zip(optimizer.param_groups, kept, strict=True):
            group["lr"] = rate

    hooks = optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)

    def undo() -> None:
        for each in hooks:
            each.remove()

    return undo


def _clipped(state: TrainingState) -> Fix:
    def apply() -> Undo:
        optimizer = state.optimizer
        assert optimizer is not None

        def before(*_: object) -> None:
            stepped = [each for group in optimizer.param_groups for each in group["params"]]
            torch.nn.utils.clip_grad_norm_(stepped, LARGEST_NORM)

        return optimizer.register_step_pre_hook(before).remove

    code = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {LARGEST_NORM:g})  # before optimizer.step()"
    return Fix("clip gradients", f"to a norm of {LARGEST_NORM:g}", code, apply)


class _Forward(nn.Module):
    """A module's forward function without its hooks, which torch's functional_call would run again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._function = module, module.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments and result are the module's."""
        return self._function(*args, **kwargs)


def _in_fp32(module: nn.Module) -> Undo:
    """Its forward pass on fp32 inputs and parameters, outside of autocast.

    The output comes in the type of the first floating input, or parameter where no input is: what follows in
    a model of half precision takes no other.
    """
    before = module.__dict__.get("forward")
    inner = _Forward(module)
    kind = next(iter(module.parameters()), torch.zeros(())).device.type

    def forward(*args: Any, **kwargs: Any) -> Any:
        held = dict(inner.named_parameters())
        given = [*tree_leaves((args, kwargs)), *held.values()]
        dtype = next((each.dtype for each in given if _is_float(each)), torch.float32)
        wide_args, wide_kwargs = tree_map(_wide, (args, kwargs))
        wide = {name: _wide(each) for name, each in held.items()}
        with torch.autocast(kind, enabled=False):
            out = torch.func.functional_call(inner, wide, wide_args, wide_kwargs)
        return tree_map(lambda each: each.to(dtype) if _is_float(each) else each, out)

    module.__dict__["forward"] = forward

    def undo() -> None:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before

    return undo


def _is_float(each: object) -> TypeGuard[Tensor]:
    return isinstance(each, Tensor) and each.is_floating_point()


def _wide(each: Any) -> Any:
    return each.float() if _is_float(each) else each


def _set(on: object, name: str, value: object) -> Undo:
    before = getattr(on, name)
    setattr(on, name, value)
    return functools.partial(setattr, on, name, before)


def _in_groups(optimizer: torch.optim.Optimizer, key: str, value: Callable[[Any], Any]) -> Undo:
    before = [group.get(key) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group[key] = value(group.get(key))

    def undo() -> None:
        for group, each in zip(optimizer.param_groups, before, strict=True):
            group[key] = each

    return undo


def _nothing() -> None:
    """Nothing to take back."""
