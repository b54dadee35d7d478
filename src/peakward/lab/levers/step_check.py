"""Tells what is wrong with a step given as a function before anything is measured."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from peakward.lab.data.given_loader import GivenLoader
from peakward.lab.data.loader_state import expect_repeatable
from peakward.lab.levers.given_step import Given, GivenStep, gradients_seen
from peakward.lab.levers.module_check import ShapesSeen
from peakward.lab.levers.module_levers import SdpaCalls
from peakward.lab.models.given_module import expect_plain
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError


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


def check_step(given: Given, device_type: DeviceType) -> SdpaCalls:
    """Call the step three times; what it calls of torch's attention.

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
    attention = SdpaCalls()
    places: set[str] = set()
    try:
        step = taken()
        with attention:
            step.step()  # Which may make what stays, as an optimizer's state.
        for _ in range(2):
            step = taken()
            with ShapesSeen() as shapes:
                step.step()
            seen.append(shapes.seen)
            places |= shapes.device_types
        if given.model is not None:
            step = taken()
            with gradients_seen(given.model) as gradients:
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
    return attention


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
        if isinstance(held, nn.Module):
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
    owner = getattr(step, "__self__", None if inspect.isfunction(step) else step)
    if owner is not None and hasattr(owner, "__dict__") and not isinstance(owner, nn.Module):
        yield from vars(owner).items()
    called: object = vars(type(step)).get("__call__")
    for each in (step, called):
        if inspect.isfunction(each) or inspect.ismethod(each):
            found = inspect.getclosurevars(each)
            yield from (*found.nonlocals.items(), *found.globals.items())
