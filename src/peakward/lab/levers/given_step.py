"""A training step that the user gives as a function, as it is or under levers: around its call, and in what
was given with it.

What is wrong with it is told before anything is measured.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from peakward.lab.data.given_loader import GivenLoader, expect_repeatable, rebuild_obstacle, rebuilt
from peakward.lab.levers import module_levers
from peakward.lab.levers.fp8_layers import choice_in
from peakward.lab.levers.host_waits import host_waits
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.levers.module_check import ShapesSeen
from peakward.lab.levers.module_levers import SdpaCalls
from peakward.lab.levers.ranges import Mark, unmarked
from peakward.lab.models.given_module import expect_plain, keeps_buffers
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.levers import catalogue, loader
from peakward.levers.catalogue import AROUND_A_CALL
from peakward.levers.registry import BY_NAME
from peakward.records.case import DeviceType, Handle, Precision, StepCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.linear_layers import LinearChoice
from peakward.records.measurement import LoaderWait


@dataclass(frozen=True, kw_only=True)
class Given:
    """The user's step: a step of no arguments, or of a batch where there is a loader; the model that
    it trains and the optimizer that it steps, where they were given too."""

    step: Callable[..., object]
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    loader: Iterable[Any] | None = None
    wrapper: nn.Module | None = None
    """The DistributedDataParallel that the model is inside of, where there is one."""


class GivenStep:
    """The step, called again and again; no graph behind what it returns is kept."""

    times_phases = False
    uncaptured = None

    def __init__(self, given: Given, feed: GivenLoader | None) -> None:
        self._given = given
        self.returned: tuple[Tensor | float, ...] = ()
        """Tensors and numbers of what the last call returned, without their graphs."""
        self._feed = feed

    @property
    def n_parameters(self) -> int | None:
        """The number of parameters of the model, where it was given."""
        model = self._given.model
        return None if model is None else sum(each.numel() for each in model.parameters())

    def step(self, _mark: Mark = unmarked) -> None:
        """One call; where the loader feeds it, on its next batch."""
        self.returned = ()  # Or the outputs of two steps would be held at once.
        result = self._given.step() if self._feed is None else self._given.step(self._feed())
        self.returned = tuple(
            each.detach() if isinstance(each, Tensor) else each
            for each in tree_leaves(result)
            if isinstance(each, Tensor | int | float)
        )

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, the model's repeated blocks run in the ranges of `ranges`."""
        model = self._given.model
        return nullcontext() if model is None else module_levers.ranged(model)

    def loss(self) -> float | None:
        """The result of the last call, where it is one number."""
        if len(self.returned) != 1:
            return None
        (only,) = self.returned
        return float(only) if not isinstance(only, Tensor) or only.numel() == 1 else None

    def held_for_backward_bytes(self) -> None:
        """Nobody looks into the step."""

    @property
    def linear_choice(self) -> LinearChoice | None:
        """The layers of the model that compute in fp8, under that lever."""
        return choice_in(self._given.model)

    @property
    def n_ahead(self) -> int:
        """The number of batches that its loader makes ahead of the step."""
        return 0 if self._feed is None else self._feed.n_ahead

    @property
    def is_fed(self) -> bool:
        """Whether it waits for a loader."""
        return self._feed is not None

    def waited(self, n_steps: int) -> LoaderWait | None:
        """The times that the last steps waited for the loader."""
        return None if self._feed is None else self._feed.waited(n_steps)


@contextmanager
def gradients_seen(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """While it lasts, copies of the gradients that a backward pass leaves, by the parameter's name: a step
    may set them free before it ends."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor], None]:
        def kept(parameter: Tensor) -> None:
            if parameter.grad is not None:
                seen[name] = parameter.grad.detach().clone()

        return kept

    with ExitStack() as hooks:
        for name, each in model.named_parameters():
            if each.requires_grad:
                hooks.callback(each.register_post_accumulate_grad_hook(keep(name)).remove)
        yield seen


@contextmanager
def given_step(case: StepCase, given: Given) -> Iterator[GivenStep]:
    """The step under what the case sets and the step as written does not; on leaving, model, optimizer and
    torch's settings are as they were, but for what was trained and digits that a type lacks."""
    with _applied(case, given), feed_of(case, given) as feed:
        yield GivenStep(given, feed)


@contextmanager
def feed_of(case: StepCase, given: Given) -> Iterator[GivenLoader | None]:
    """The batches of a step that is fed, from the loader that the case makes of its own."""
    if given.loader is None:
        yield None
        return
    feed = GivenLoader(loader_of(case, given.loader), case.device)
    try:
        yield feed
    finally:
        feed.close()


def loader_of(case: StepCase, given: Iterable[Any]) -> Iterable[Any]:
    """The loader that the case makes of the given one.

    Raises:
        PeakwardError: none can be made of it.
    """
    value = loader.chosen(case.configuration)
    if value == loader.AS_GIVEN:
        return given
    return rebuilt(
        given,
        n_workers=loader.n_workers(value),
        pinned=case.device == "cuda",
        ahead=loader.is_ahead(value),
    )


@contextmanager
def _applied(case: StepCase, given: Given) -> Iterator[None]:
    if given.model is None:
        with catalogue.around(case.configuration, case.written):
            yield
        return
    live = Live(
        model=given.model,
        optimizer=given.optimizer,
        keeps_buffers=keeps_buffers(given.model),
        wrapper=given.wrapper,
    )
    applied = Applied(live, case.configuration, case.written)
    try:
        yield
    finally:
        applied.undo()


def expect_step(given: Given) -> None:
    """Without running anything.

    Raises:
        PeakwardError: no function of no arguments, or of a batch where there is a loader; one that is, or
            refers to, what is compiled or captured; a model that is none; a loader that cannot be begun
            again.
    """
    wanted = "a batch alone, which the loader gives" if given.loader is not None else "no arguments"
    if not callable(given.step):
        raise PeakwardError(
            f"expected a step that is a function of {wanted}, got {type(given.step).__name__}"
        )
    if not isinstance(given.model, nn.Module | None):
        raise PeakwardError(
            f"expected a torch.nn.Module for model, got {type(given.model).__name__}"
        )
    if given.loader is not None:
        expect_repeatable(given.loader)
    try:
        inspect.signature(given.step).bind(*(() if given.loader is None else (None,)))
    except ValueError:  # One written in C says nothing.
        pass
    except TypeError as error:
        hint = "" if given.loader is not None else "; a step of a batch needs loader="
        raise PeakwardError(
            f"expected a step that is a function of {wanted}, got one that cannot be called so: {error}{hint}"
        ) from None
    _expect_eager(given)


@dataclass(frozen=True, kw_only=True)
class StepSeen:
    """Facts about a step that its calls showed."""

    attention: SdpaCalls
    """Its calls of torch's attention."""
    calls_model: bool = True
    """Whether it calls the model that was given, where one was."""
    autocast: torch.dtype | None = None
    """The type that the step's own autocast casts to where it calls the model."""

    loss_in_model: bool = True
    """Whether the model that was given computes the cross-entropy itself."""
    waits: tuple[str, ...] = ()
    """The lines at which it waits for the GPU; the most frequent first."""
    no_other_loader: str | None = None
    """Why no loader with workers can be made of the given one."""

    @property
    def writes_attention(self) -> bool:
        """Whether it computes attention without torch's function for it."""
        return self.attention.n_written > 0 and not self.attention.n

    @property
    def precision(self) -> Precision | None:
        """The precision that the step sets by itself; None without autocast."""
        return {torch.bfloat16: "bf16-mixed", torch.float16: "fp16-mixed"}.get(self.autocast)  # type: ignore[arg-type, return-value]

    def obstacle(self, lever: Lever, case: StepCase) -> str | None:
        """Why the lever cannot be pulled on this step, though it could on others."""
        if lever in AROUND_A_CALL and "attention" in dict(lever.sets) and not self.attention.n:
            return NO_ATTENTION
        own = case.written.precision
        wanted = dict(lever.sets).get("precision")
        # Layers in fp8 stand in the step's own autocast as in ours.
        stands = own in ("fp32", "tf32") or (own, wanted) == ("bf16-mixed", "fp8")
        if wanted is not None and not stands:
            return f"is set by the step, which computes in {own}: change it in the step's own code"
        if self.no_other_loader is not None and "loader" in _handles(lever):
            return f"is the loader's, and the given one {self.no_other_loader}"
        if not self.loss_in_model and "loss" in dict(lever.sets):
            return BY_NAME["loss"].hints[dict(lever.sets)["loss"]].for_step
        if not self.calls_model and "model" in _handles(lever):
            return NOT_CALLED
        return None


NO_ATTENTION = (
    "is of torch's scaled_dot_product_attention, which the step never calls: call it there"
)
NOT_CALLED = (
    "is of the model, and the step calls another than was given as model=: give the one it calls"
)


def _handles(lever: Lever) -> set[Handle | None]:
    return {
        hint.handle
        for name, value in lever.sets
        if (hint := BY_NAME[name].hints.get(value)) is not None
    }


class ModelCalls(TorchFunctionMode):
    """Sees calls of the model, and of the cross-entropy inside of them."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__()
        self.autocast: list[torch.dtype | None] = []
        """For each call of the model the type of autocast there."""
        self.computes_loss = False
        self._model, self._depth, self._hooks = model, 0, ExitStack()

    def __enter__(self) -> "ModelCalls":
        super().__enter__()
        if self._model is not None:
            self._hooks.callback(self._model.register_forward_pre_hook(self._begin).remove)
            self._hooks.callback(self._model.register_forward_hook(self._end).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _begin(self, model: nn.Module, _args: Any) -> None:
        first = next(model.parameters(), None)
        kind = "cpu" if first is None else first.device.type
        on = torch.is_autocast_enabled(kind)
        self.autocast.append(torch.get_autocast_dtype(kind) if on else None)
        self._depth += 1

    def _end(self, *_: Any) -> None:
        self._depth -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._depth and func is F.cross_entropy:
            self.computes_loss = True
        return func(*args, **(kwargs or {}))


def check_step(given: Given, device_type: DeviceType) -> StepSeen:
    """Call the step three times, and tell what it showed.

    Raises:
        PeakwardError: it raises, does other work at each call, or computes on another device; a model was
            given, and it leaves neither gradients nor an output by which levers could be verified; its
            loader is empty the second time.
    """
    feed = None if given.loader is None else GivenLoader(given.loader, device_type)

    def taken() -> GivenStep:
        """The step on its next batch, which is fetched here: what a loader does is no part of it."""
        if feed is None:
            return GivenStep(given, None)
        return GivenStep(replace(given, step=functools.partial(given.step, feed())), None)

    seen = []
    calls = ModelCalls(given.model)
    attention = SdpaCalls()
    places: set[str] = set()
    try:
        step = taken()
        with attention:
            step.step()  # Which may make what stays, as an optimizer's state.
        if given.wrapper is not None:
            taken().step()  # In which DistributedDataParallel makes its buckets anew, once.
        for _ in range(2):
            step = taken()
            with ShapesSeen() as shapes:
                step.step()
            seen.append(shapes.seen)
            places |= shapes.device_types
        if given.model is not None:
            step = taken()
            with gradients_seen(given.model) as gradients, calls:
                step.step()
        waits: Counter[str] = Counter()
        if torch.cuda.is_initialized() and "cuda" in places:
            step = taken()
            with host_waits() as waits:
                step.step()
        if feed is not None:
            feed.rewind()
            feed()
    except Exception as error:  # noqa: BLE001  a user's code may raise anything
        raise_as_bad_input(error, "a step that runs again and again")
    _expect_place(places, device_type)
    if seen[0] != seen[1]:
        raise PeakwardError(
            "expected a step of the same shapes at every call, got other ones at its third call than at its "
            "second: let nothing it computes depend on a counter or a random number, and investigate one "
            "length of batch at a time"
        )
    if given.model is not None and not gradients and not step.returned:
        raise PeakwardError(
            "expected a step that leaves gradients of the model, or returns its loss or its output, got "
            "neither: return the loss, or leave the model out, without which levers are not verified"
        )
    return StepSeen(
        attention=attention,
        calls_model=given.model is None or bool(calls.autocast),
        autocast=next(iter(calls.autocast), None),
        waits=tuple(line for line, _ in waits.most_common()),
        loss_in_model=calls.computes_loss,
        no_other_loader=None if given.loader is None else rebuild_obstacle(given.loader),
    )


def schedulers(step: Callable[..., object]) -> tuple[LRScheduler, ...]:
    """The schedulers of learning rates that the step's code names or its object holds, or that a function or
    an object among these does; also those in a list."""
    named = [each for _, each in _held(step)]
    # A module holds more than the step has to do with.
    nearest = (each for each in named if not isinstance(each, ModuleType))
    held = (*named, *(each for near in nearest for _, each in _held(near)))
    alone = (one for each in held for one in (each if isinstance(each, list | tuple) else (each,)))
    return tuple({id(each): each for each in alone if isinstance(each, LRScheduler)}.values())


def _expect_place(places: set[str], device_type: DeviceType) -> None:
    """Or its times would be those of another device, or of launches alone."""
    if device_type == "cpu" and "cuda" in places:
        raise PeakwardError(
            "expected a step that computes on the CPU, where its model is or, without one, CUDA was not in "
            "use, got one that computes on a GPU too: give the model that it trains there as model="
        )
    if device_type == "cuda" and "cuda" not in places:
        raise PeakwardError(
            "expected a step that computes on the GPU, where its model is or, without one, CUDA is in use, "
            "got one that computes on the CPU alone: give the model that it trains there as model="
        )


def _expect_eager(given: Given) -> None:
    for name, held in (("the step", given.step), *_held(given.step), ("the model", given.model)):
        if isinstance(held, nn.Module) and held is not given.wrapper:
            expect_plain(held)
        if isinstance(held, torch.cuda.CUDAGraph):
            raise PeakwardError(
                f"expected a step that is not captured, got a CUDA graph in {name}: give the step that was "
                "captured; a replay does what it did then, whatever is set around it"
            )
        if hasattr(held, "_torchdynamo_orig_callable"):
            raise PeakwardError(
                f"expected a step that is not compiled, got {name} compiled: give what torch.compile was "
                "given; what compiling does is seen in `pw.run(model, batch)`"
            )


def _held(step: Callable[..., object]) -> Iterator[tuple[str, Any]]:
    """Returns what the step's code refers to by name, and what its object holds."""
    if isinstance(step, functools.partial):
        yield from ((str(i), each) for i, each in enumerate((*step.args, *step.keywords.values())))
        yield from _held(step.func)
        return
    owner = step.__self__ if inspect.ismethod(step) else None if inspect.isfunction(step) else step
    if owner is not None and hasattr(owner, "__dict__") and not isinstance(owner, nn.Module):
        yield from vars(owner).items()
    called: object = vars(type(step)).get("__call__")
    for each in (step, called):
        if inspect.isfunction(each) or inspect.ismethod(each):
            with suppress(ValueError):  # A variable of a function around it that has no value yet.
                found = inspect.getclosurevars(each)
                yield from (*found.nonlocals.items(), *found.globals.items())
