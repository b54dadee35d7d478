"""An axis is one choice in how a step is carried out; its object holds all that is known of its levers.

Every axis has a file of its own in this room, or comes from another package through an entry point. The
functions of an axis may import torch, but only when they are called: plans and listings work without it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from peakward.records.case import (
    AS_WRITTEN,
    CONFIGURATION_FIELDS,
    Configuration,
    ConfiguredCase,
    DeviceType,
    Handle,
    ModuleCase,
    Pass,
)
from peakward.records.lever import Lever
from peakward.records.measurement import Phase
from peakward.records.op_graph import OpGraph

Value = str | bool
Part = Literal["attention", "rotation", "gating", "norm", "loss", "optimizer"]
"""The parts of a step that an axis can choose the implementation of."""
ComputeCapability = tuple[int, int]

SIXTEEN_BIT = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")
TRAINING: tuple[Pass, ...] = ("forward_backward", "train_step")
WITHOUT_GRADIENTS: tuple[Pass, ...] = ("forward", "prefill", "decode")


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The needs of a setting that no lever brings; the fields are those of `Lever`."""

    passes: tuple[Pass, ...] = get_args(Pass)
    device_types: tuple[DeviceType, ...] = ("cpu", "cuda")
    min_compute_capability: ComputeCapability | None = None
    needs_precision: tuple[str, ...] = ()
    needs: Literal["compiler"] | None = None


class CodeHint(msgspec.Struct, frozen=True, kw_only=True):
    """Why a setting cannot be applied from outside, and what to change in one's own code instead."""

    module: str | None = None
    """For any module."""
    factory: str | None = None
    """For a module that transformers does not build; its own are built with either setting."""
    step: str | None = None
    """For a training step that is given as a function; where it is None the other two hold."""
    handle: Handle | None = None
    """A live step that is given with this takes the setting after all."""

    @property
    def for_step(self) -> str | None:
        return self.step or self.module or self.factory


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The lines that make a setting in a program of the user's own."""

    imports: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    """When the model is there; `lr` is the learning rate."""
    each_step: tuple[str, ...] = ()
    around_step: str | None = None
    """The line of a `with` that forward and backward stand in."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The operators of a part of the step, written once for time and for memory.

    Both functions write on a `prediction.operators.writer.Writer` (`on`), of a case with a
    `prediction.operators.plan.Plan` (`plan`); a value is a tensor as operators see it.

    - gating: `forward(on, plan, packed)` takes gate and up side by side (…, 2·d_ff) and returns what the
      backward pass needs, and the product (…, d_ff). `backward(on, plan, saved, gradient)` returns the
      gradient of `packed`.
    - rotation: `forward(on, plan, packed)` takes queries, keys and values side by side (batch, heads +
      2·kv_heads, seq_len, head_dim) and returns them with the first two turned. `backward(on, plan,
      gradient)` returns the gradient before the turn, which keeps nothing.
    - norm: `forward(on, plan, x, *added)` takes the residual stream (batch, seq_len, d_model) and what is
      added to it first, and returns their sum, figures that the backward pass needs, and the norm of the
      sum. `backward(on, plan, (sum, *figures), gradient, *past)` takes the gradient of the norm, and of
      the sum where it went on, and returns that of `x`.
    - loss: `forward(on, plan, logits)` takes logits (tokens, vocab_size) and returns what the backward pass
      needs. `backward(on, plan, saved)` returns the gradient of the logits. A loss with the output layer in
      it is described by `prediction.operators.linear_loss`.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]


class KernelSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast an operator of Peakward's own moves what it reads and writes, each once."""

    factor: float = 1.0
    """Its time over a plain addition's of the same bytes."""
    start_s: float = 0.0
    """On top, however little it moves."""
    n_launches: float = 1.0
    is_measured: bool = False
    """Stored results have it within 15% of this, from 150 MiB of traffic on or in whole steps."""


def written(value: Value) -> str:
    """A value as its option takes it."""
    return value if isinstance(value, str) else "on" if value else "off"


def spoken(name: str, value: Value) -> str:
    """A setting as the options spell it: "cuda-graphs on"."""
    return f"{name.replace('_', '-')} {written(value)}"


Undo = Callable[[], str | None]
"""Takes a change back, and says what it could not give back, or None where all is as it was, bit for bit."""
Unseen = Callable[[ModuleCase, str, Value], str | None]


def not_seen(why: str) -> Unseen:
    """A capture of a module's operators sees the default alone."""

    def unseen(_case: ModuleCase, name: str, value: Value) -> str:
        return f"{spoken(name, value)} is not seen by operators: {why}"

    return unseen


UNHEARD_OF = not_seen("a capture knows of no such lever")


def seen(_case: ModuleCase, _name: str, _value: Value) -> None:
    """A capture of a module's operators sees every value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """A choice, the levers that make it, and how they are applied, predicted and told."""

    name: str
    """The field of `Configuration`, or the key in its `more`; with hyphens, the option."""
    default: Value
    help: str
    """The text of its option."""
    metavar: str = "NAME,…"
    levers: tuple[Lever, ...] = ()
    """Levers that an investigation tries."""
    around_call: tuple[Lever, ...] = ()
    """Levers of a live step alone: set around its call by `around`, or in what feeds it."""
    others: Mapping[Value, Needs] = field(default_factory=dict)
    """Values that no lever sets, and what each needs."""
    no_faster: tuple[Value, ...] = ()
    """Those of them that are never faster than the default: a lever gains at least as much on them."""
    replaces: tuple[str, ...] = ()
    """Axes that do nothing beside a value of it that is not the default, which computes their part itself."""
    costs_time: bool = False
    """Its levers pay for memory with time, and are tried after all others."""

    obstacle: Callable[[ConfiguredCase, ComputeCapability | None], str | None] | None = None
    """Why the axis's value does not go with the rest of a case, or None. Called where the value is not the
    default; a capability of None is not known, and stands in no way."""

    part: Part | None = None
    """The part of a step that `function` implements."""
    function: Callable[[Any], Any] | None = None
    """The implementation of the part by the value's name. The signatures are those of
    `kernels.ops.attention`, `.rotation`, `.gating` and `.loss`; an optimizer is made of a module and
    `capturable=`."""
    to_module: Callable[[Any, Any], Undo] | None = None
    """Applies a value to a decoder or to a module of the user's, in place, and returns what takes it back.

    Raises PeakwardError where the module has nothing to apply it to."""
    to_optimizer: Callable[[Any, Any], Undo] | None = None
    """Applies a value to an optimizer of the user's, in place, and returns what takes it back.

    Raises PeakwardError where the optimizer has no such form."""
    around: Callable[[Any], AbstractContextManager[None]] | None = None
    """The settings of torch that a value means, for as long as the context lasts."""

    hints: Mapping[Value, CodeHint] = field(default_factory=dict)
    code: Mapping[Value, Code] = field(default_factory=dict)
    called: str | None = None
    """The word for the axis that a report puts behind the value: "loss" in "fused loss". None: the report
    has words of its own for it."""

    leaves_alone: tuple[Phase, ...] = ()
    """Phases of a step that no value of the axis changes."""
    unseen: Unseen = UNHEARD_OF
    """Why a capture of a module's operators would be of another case, or None."""
    own_value: Callable[[OpGraph], Value | None] | None = None
    """The value that a module's code has by itself, as its captured operators tell it; None where they do not
    tell."""
    needless: Callable[[OpGraph, ConfiguredCase], str | None] | None = None
    """Why a module with these operators cannot take the case's value, or None. It is known before anything
    runs. The operators are those of the module as its code calls them, in the case's precision."""
    refused_by_capture: tuple[Value, ...] = ()
    """Values that a capture puts into a module's parts, and refuses where it has none for them: such a module
    is not tried under them."""
    predicted: Mapping[DeviceType, tuple[Value, ...]] = field(default_factory=dict)
    """Values whose operators and memory the closed form describes, beside the default. Any other value is
    not predicted."""
    work: Mapping[Value, Work] = field(default_factory=dict)
    """The operators of `part` under a value. A value without an entry leaves the part's operators to
    `prediction`."""
    kernels: Mapping[str, KernelSpeed] = field(default_factory=dict)
    """Operators of Peakward's own that `work` names, with their speeds."""
    own_kernels: tuple[Value, ...] = ()
    """Values that run a kernel of Peakward's own, which must go with the case for a prediction too."""

    @property
    def is_field(self) -> bool:
        """Whether `Configuration` has a field of its name."""
        return self.name in CONFIGURATION_FIELDS

    @property
    def is_option(self) -> bool:
        """Whether cases that are built from their description take other values than the default."""
        return self.is_field or len(self.values) > 1

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def values(self) -> tuple[Value, ...]:
        """All of an axis without a field; the types of `Configuration` have those of the others."""
        set_by_levers = (dict(each.sets)[self.name] for each in self.levers)
        return tuple(dict.fromkeys((self.default, *set_by_levers, *self.others)))

    def value(self, configuration: Configuration) -> Value:
        """The configuration's value on this axis."""
        if self.is_field:
            found: Value = getattr(configuration, self.name)
            return found
        return dict(configuration.more).get(self.name, self.default)

    def as_written(self) -> Value:
        """The value of a module or a step of the user's that nothing was done to."""
        return self.value(AS_WRITTEN)

    def describes(self, value: Value, device: DeviceType) -> bool:
        """Whether prediction knows what the value computes on such a device."""
        return value == self.default or value in self.predicted.get(device, ())

    def needs(self, value: Value) -> Lever | Needs | None:
        """Returns the needs of a value: those that its lever declares, or its own."""
        exact = (each for each in self.levers if dict(each.sets).get(self.name) == value)
        return next(exact, None) or self.others.get(value)
