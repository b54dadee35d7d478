"""All axes: Peakward's own, and those that installed packages bring.

A package brings an axis by an entry point of the group `peakward.levers`, whose value names an `Axis`:

    [project.entry-points."peakward.levers"]
    pace = "toy_levers:AXIS"
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from peakward.levers import (
    activation,
    attention,
    checkpointing,
    compile,
    cuda_graphs,
    decode_step,
    kv_cache,
    loader,
    loss,
    masks,
    norm,
    optimizer,
    precision,
    rope,
    swiglu,
    weights,
)
from peakward.levers.axis import Axis, Value
from peakward.records.case import Configuration
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "peakward.levers"
BUILT_IN: tuple[Axis, ...] = (
    precision.AXIS,
    attention.AXIS,
    compile.AXIS,
    compile.SCOPE,
    cuda_graphs.AXIS,
    optimizer.AXIS,
    checkpointing.AXIS,
    loss.AXIS,
    norm.AXIS,
    rope.AXIS,
    swiglu.AXIS,
    weights.AXIS,
    kv_cache.AXIS,
    masks.AXIS,
    activation.AXIS,
    decode_step.AXIS,
    loader.AXIS,
)
"""In the order of the fields of `Configuration`, and those without one."""
RESERVED = frozenset(
    {
        *("model", "n_layers", "d_model", "d_ff", "n_experts", "n_active_experts", "n_heads"),
        *("n_kv_heads", "batch_size", "seq_len", "pass", "accumulate", "seed", "memory_limit"),
        *("device", "json", "html", "markdown", "force", "db", "baseline", "lever", "budget"),
        *("objective", "max_memory", "numerics", "dry_run", "help", "more"),
    }
)
"""Names of other options, which no axis may take."""


def _names_the_group(entry: Path) -> bool:
    """Whether the metadata of a package in this entry of `sys.path` names the group. An archive may."""
    if entry.is_file():
        return True
    with suppress(OSError):
        for each in entry.iterdir():
            if each.name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
                with suppress(OSError):
                    if f"[{GROUP}]".encode() in (each / "entry_points.txt").read_bytes():
                        return True
    return False


def _bringing() -> tuple[tuple["Distribution", "EntryPoint"], ...]:
    """The installed entry points.

    The text of the metadata is searched first. To import `importlib.metadata` and to list all packages
    costs a start 40 to 80 ms, this look 5, and most installations have no package that brings an axis.
    """
    places = [entry for entry in dict.fromkeys(sys.path) if _names_the_group(Path(entry))]
    if not places:
        return ()
    from importlib.metadata import distributions

    return tuple(
        (each, point)
        for each in distributions(path=places)
        for point in each.entry_points
        if point.group == GROUP
    )


_BRINGING = _bringing()
PLUGINS: tuple[str, ...] = tuple(
    sorted({f"{each.metadata['Name']} {each.version}" for each, _ in _BRINGING})
)
"""The packages that bring levers, with their versions."""


def _loaded(brought: Iterable[tuple["Distribution", "EntryPoint"]]) -> tuple[Axis, ...]:
    found = []
    for each, point in brought:
        said = f"{point.value} of the package {each.metadata['Name']}"
        try:
            axis = point.load()
        except Exception as error:
            raise PeakwardError(
                f"expected an axis of levers in {said}, got {type(error).__name__}: {error}: mend the "
                "package or uninstall it"
            ) from error
        if not isinstance(axis, Axis):
            raise PeakwardError(
                f"expected an axis of levers in {said}, got {type(axis).__name__}: let it be a "
                "peakward.levers.axis.Axis"
            )
        found.append(axis)
    return tuple(sorted(found, key=lambda axis: axis.name))


def check(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes, if their names and those of their levers are free.

    Raises:
        PeakwardError: a name that is taken or is no name, or a lever that does not set its own axis.
    """
    taken: dict[str, str] = dict.fromkeys(RESERVED, "an option")
    levers: set[str] = set()
    checked = tuple(axes)
    for axis in checked:
        if axis.name in taken or not axis.name.isidentifier():
            raise PeakwardError(
                f"expected a name for an axis of levers that is free, got {axis.name!r}, which is "
                f"{taken.get(axis.name, 'no name of an option')}: rename it"
            )
        taken[axis.name] = "another axis"
        for lever in axis.levers:
            if axis.name not in dict(lever.sets):
                raise PeakwardError(
                    f"expected the lever {lever.name} to set its axis {axis.name}, got {dict(lever.sets)}"
                )
            if lever.name in levers:
                raise PeakwardError(
                    f"expected one lever named {lever.name}, got two: rename that of the axis {axis.name}"
                )
            levers.add(lever.name)
    for lever in (each for axis in checked for each in axis.levers):
        if unknown := dict(lever.sets).keys() - {axis.name for axis in checked}:
            raise PeakwardError(
                f"expected the lever {lever.name} to set known axes, got {', '.join(sorted(unknown))}"
            )
    return checked


AXES: tuple[Axis, ...] = check((*BUILT_IN, *_loaded(_BRINGING)))
BY_NAME: dict[str, Axis] = {axis.name: axis for axis in AXES}


def axes_of(configuration: Configuration) -> tuple[Axis, ...]:
    """All axes, and those of the configuration whose package is not installed here: of such an axis nothing
    is known, so it is neither applied nor predicted, but told."""
    names = (name for name, _ in configuration.more if name not in BY_NAME)
    return (*AXES, *(Axis(name=name, default="", help="") for name in names))


def at_work(configuration: Configuration) -> tuple[tuple[Axis, Value], ...]:
    """The axes whose value is not the default, with it."""
    found = ((axis, axis.value(configuration)) for axis in axes_of(configuration))
    return tuple((axis, value) for axis, value in found if value != axis.default)


def _in_order(axes: Iterable[Axis]) -> tuple[Lever, ...]:
    """Orders levers: those that save time, then those that save memory, and last those that pay for it with
    time."""
    found = [
        (lever.saves == "memory", axis.costs_time, lever) for axis in axes for lever in axis.levers
    ]
    return tuple(lever for *_, lever in sorted(found, key=lambda each: each[:2]))


LEVERS: tuple[Lever, ...] = _in_order(AXES)
"""Every lever that an investigation tries, in the order in which it does."""
OF_A_PART: tuple[str, ...] = tuple(
    lever.name for axis in AXES for lever in axis.levers if dict(lever.sets)[axis.name] in axis.work
)
"""Levers that bring other operators for a part of the step: fewer passes over memory, fewer tensors kept.
Rules name them together; a finding shows those of them that are predicted to help."""
AROUND_A_CALL: tuple[Lever, ...] = tuple(each for axis in AXES for each in axis.around_call)
"""Levers of a live step alone, taken back after it."""
