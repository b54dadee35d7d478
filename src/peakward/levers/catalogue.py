"""Levers by name, pulled on a case, and why they cannot be."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, get_args

import msgspec

from peakward.levers.axis import (
    Axis,
    ComputeCapability,
    Needs,
    Part,
    Undo,
    Value,
    Work,
    spoken,
)
from peakward.levers.registry import (
    AROUND_A_CALL,
    AXES,
    BY_NAME,
    LEVERS,
    at_work,
    axes_of,
)
from peakward.levers.workload import workload_obstacle
from peakward.records.case import (
    Configuration,
    ConfiguredCase,
    DeviceType,
    LeverCase,
    ModelCase,
    ModuleCase,
    StepCase,
)
from peakward.records.device import Accelerator, Vendor, spell
from peakward.records.errors import PeakwardError, look_up
from peakward.records.lever import Lever, NumericsClass
from peakward.records.op_graph import OpGraph

__all__ = ["AROUND_A_CALL", "AXES", "LEVERS"]

LEAST_CAPABILITY = (7, 0)
"""The V100's, the oldest that is catalogued."""
_MAKERS: dict[Vendor, str] = {"nvidia": "NVIDIA", "amd": "AMD"}

Leverable = TypeVar("Leverable", bound=LeverCase)


def lever(name: str) -> Lever:
    """The lever of that name.

    Raises:
        PeakwardError: no such lever; names the nearest ones.
    """
    return look_up("a lever", name, {each.name: each for each in (*LEVERS, *AROUND_A_CALL)})


def pull(lever: Lever, case: Leverable) -> Leverable:
    """The case with the lever resolved into it."""
    configuration = with_settings(case.configuration, dict(lever.sets))
    return msgspec.structs.replace(case, configuration=configuration)


def with_settings(configuration: Configuration, settings: Mapping[str, Value]) -> Configuration:
    """The configuration with these values, of which the defaults of axes without a field are left out."""
    changed = configuration.with_settings(settings)
    axes = {axis.name: axis for axis in axes_of(changed)}
    more = tuple((name, value) for name, value in changed.more if axes[name].default != value)
    return msgspec.structs.replace(changed, more=more)


def function(part: Part, configuration: Configuration) -> Any:
    """The implementation of a part of a step that the configuration chooses."""
    chosen = _axis_of(part, configuration)
    assert chosen.function is not None
    return chosen.function(chosen.value(configuration))


def work(part: Part, configuration: Configuration) -> Work | None:
    """The operators of that implementation, or None where prediction knows them itself."""
    chosen = _axis_of(part, configuration)
    return chosen.work.get(chosen.value(configuration))


def _axis_of(part: Part, configuration: Configuration) -> Axis:
    """The axis that chooses the implementation of a part."""
    axes = [axis for axis in AXES if axis.part == part]
    return next((axis for axis, _ in reversed(at_work(configuration)) if axis in axes), axes[0])


def apply_to_module(
    module: Any, configuration: Configuration, *, is_built: bool = False
) -> tuple[Undo, ...]:
    """Apply what is applied to a module that stands, in place: a decoder's or a user's.

    Args:
        is_built: whether it has the implementations of its parts already (`function`).

    Returns:
        What takes each change back, in the order in which they were made.

    Raises:
        PeakwardError: the module has nothing to apply a setting to. It is then as it was.
    """
    undos: list[Undo] = []
    for axis, value in at_work(configuration):
        if axis.to_module is None or (is_built and axis.function is not None):
            continue
        try:
            undos.append(axis.to_module(module, value))
        except PeakwardError:
            for undo in reversed(undos):
                undo()
            raise
    return tuple(undos)


def apply_to_optimizer(
    optimizer: Any, configuration: Configuration, base: Configuration
) -> tuple[Undo, ...]:
    """Apply, in place, what is applied to an optimizer and differs from the base.

    Raises:
        PeakwardError: the optimizer has no such form.
    """
    return tuple(
        axis.to_optimizer(optimizer, value)
        for axis, value in ((axis, axis.value(configuration)) for axis in axes_of(configuration))
        if axis.to_optimizer is not None and value != axis.value(base)
    )


@contextmanager
def around(configuration: Configuration, base: Configuration | None = None) -> Iterator[None]:
    """The settings of torch that a configuration means, as a context; where a base is given, only those
    that differ from the base's."""
    with ExitStack() as stack:
        for axis in AXES:
            value = axis.value(configuration)
            if axis.around is not None and (base is None or value != axis.value(base)):
                stack.enter_context(axis.around(value))
        yield


def lacking(lever: Lever, on: Accelerator) -> str | None:
    """Why the lever does not exist on GPUs of this kind, or None where it does.

    What is not known of the GPU counts as the least that any catalogued one has.
    """
    vendors = get_args(Vendor) if on.vendor is None else (on.vendor,)
    if not set(vendors) <= set(lever.vendors):
        return f"needs a GPU by {' or '.join(_MAKERS[each] for each in lever.vendors)}"
    if on.vendor == "amd":
        return None
    known, least, most = (
        on.compute_capability,
        lever.min_compute_capability,
        lever.max_compute_capability,
    )
    if least is not None and (known or LEAST_CAPABILITY) < least:
        return f"needs compute capability {spell(least)}, got {spell(known)}"
    if most is not None and (known is None or known > most):
        return f"needs compute capability {spell(most)}, got {spell(known)}"
    return None


def numerics_class(lever: Lever, candidate: LeverCase) -> NumericsClass:
    """Returns what pulling the lever may do to the numbers of this candidate.

    A compiler fuses, and so rounds, a recomputed block otherwise than a kept one.
    """
    compiled = candidate.configuration.compile != "none"
    return "reordered" if lever.numerics == "exact" and compiled else lever.numerics


def changes(lever: Lever, case: LeverCase) -> bool:
    """Whether pulling the lever makes another case of it."""
    return pull(lever, case) != case


def obstacle(
    lever: Lever,
    case: LeverCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool,
) -> str | None:
    """Why the lever cannot apply to the case on this machine, or None where it can. Of a module of the
    user's, that it cannot from outside is said before what the machine lacks."""
    candidate = pull(lever, case)
    return (
        _outside(candidate)
        or _without_effect(lever, candidate)
        or _unmet(
            lever, candidate, compute_capability=compute_capability, has_compiler=has_compiler
        )
    )


def _without_effect(lever: Lever, candidate: LeverCase) -> str | None:
    """Says which setting computes all that the lever changes, or None where none does."""
    for axis, value in at_work(candidate.configuration):
        if {name for name, _ in lever.sets} <= set(axis.replaces):
            return f"does nothing beside {spoken(axis.name, value)}, which computes that itself"
    return None


def case_obstacle(
    case: LeverCase, *, compute_capability: ComputeCapability | None, has_compiler: bool
) -> str | None:
    """Why a setting of the case cannot apply on this machine, or None. Defaults always can."""
    if (outside := _outside(case)) is not None:
        return outside
    for axis, _ in at_work(case.configuration):
        reason = setting_obstacle(
            axis.name, case, compute_capability=compute_capability, has_compiler=has_compiler
        )
        if reason is not None:
            return reason
    if isinstance(case, StepCase):
        return None
    return together_obstacle(case, compute_capability=compute_capability)


def together_obstacle(
    case: ConfiguredCase, *, compute_capability: ComputeCapability | None
) -> str | None:
    """Why the settings of a case do not go together, or not with its workload or model, or None.

    Args:
        compute_capability: of the device; None where it is not known, and then no obstacle.
    """
    if isinstance(case, ModelCase) and (reason := workload_obstacle(case)) is not None:
        return reason
    working = at_work(case.configuration)
    for axis, value in working:
        if axis.name not in BY_NAME:
            return f"{spoken(axis.name, value)} needs the package that brings it, which is not installed"
        reason = None if axis.obstacle is None else axis.obstacle(case, compute_capability)
        if reason is not None:
            return reason
    for part in get_args(Part):
        rivals = [spoken(axis.name, value) for axis, value in working if axis.part == part]
        if len(rivals) > 1:
            return f"{' and '.join(rivals)} exclude each other: each replaces the {part}"
    return None


def _outside(case: LeverCase) -> str | None:
    """Why a setting cannot be applied to what the user wrote, or None."""
    if isinstance(case, StepCase):
        return step_obstacle(case)
    return outside_obstacle(case) if isinstance(case, ModuleCase) else None


def step_obstacle(case: StepCase) -> str | None:
    """Why a setting that the step was not written with can be applied neither around its call nor through
    what was given with it, or None."""
    for axis in axes_of(case.configuration):
        value = axis.value(case.configuration)
        hint = axis.hints.get(value)
        if hint is not None and hint.handle in case.handles:
            continue
        why = None if hint is None else hint.for_step
        if why is None and not axis.is_field and axis.around is None:
            why = "is no setting around a call: apply it in the step's own code"
        if value != axis.value(case.written) and why is not None:
            return f"{spoken(axis.name, value)} {why}"
    return None


def outside_obstacle(case: ModuleCase) -> str | None:
    """Why a setting of the case cannot be applied to its module from outside, or None."""
    from_factory = not case.source.startswith("hf:")
    for axis in axes_of(case.configuration):
        value = axis.value(case.configuration)
        hint = axis.hints.get(value)
        why = None if hint is None else hint.module or (hint.factory if from_factory else None)
        inner = axis.to_module is None and axis.around is None and axis.part not in OUTER_PARTS
        if why is None and not axis.is_field and inner:
            why = "is a part of the decoder: call it in the module's own code"
        if value != axis.as_written() and why is not None:
            return f"{spoken(axis.name, value)} {why}"
    work = case.workload
    if work.caches:
        return f"the pass {work.pass_} needs the decoder's key-value cache: take forward"
    if work.varying_seq_lens:
        return "varying lengths need the decoder's own batches: give one batch of each length"
    return None


OUTER_PARTS: tuple[Part | None, ...] = ("loss", "optimizer")
"""Parts of a step that a user's module runs in too."""


def needless(lever: Lever, case: ModuleCase, graph: OpGraph) -> str | None:
    """Why the case's module, with these operators, cannot take what the lever has set in it, or None."""
    hooks = (BY_NAME[name].needless for name, _ in lever.sets)
    told = (hook(graph, case) for hook in hooks if hook is not None)
    return next((reason for reason in told if reason is not None), None)


def own_values(graph: OpGraph) -> dict[str, Value]:
    """The values that a module's code has by itself, by axis, where its operators tell."""
    told = {axis.name: axis.own_value(graph) for axis in AXES if axis.own_value is not None}
    return {name: value for name, value in told.items() if value is not None}


def unseen(case: ModuleCase) -> str | None:
    """Why a capture of the module's operators would be of another case, or None where it is of this one."""
    for axis in axes_of(case.configuration):
        value = axis.value(case.configuration)
        if value != axis.as_written():
            reason = axis.unseen(case, axis.name, value)
            if reason is not None:
                return reason
    work = case.workload
    if work.accumulate != 1:
        return f"{work.accumulate} micro-batches are not seen by operators: a capture runs one"
    return f"pass {work.pass_} is none that a module has: take forward" if work.caches else None


def setting_obstacle(
    name: str,
    case: LeverCase,
    *,
    compute_capability: ComputeCapability | None,
    has_compiler: bool = True,
) -> str | None:
    """Why the case's value on that axis cannot be what it is on this machine, or None."""
    axis = next(each for each in axes_of(case.configuration) if each.name == name)
    value = axis.value(case.configuration)
    needs = axis.needs(value)
    if needs is None or value == axis.default:
        return None
    reason = _unmet(needs, case, compute_capability=compute_capability, has_compiler=has_compiler)
    said = name.replace("_", "-") if value is True else spoken(name, value)
    return None if reason is None else f"{said} {reason}"


DEVICES: dict[DeviceType, str] = {"cpu": "a CPU", "cuda": "a CUDA GPU"}
"""The devices in words."""


def _unmet(
    needs: Lever | Needs,
    case: LeverCase,
    *,
    compute_capability: tuple[int, int] | None,
    has_compiler: bool,
) -> str | None:
    device, precision = case.device, case.configuration.precision
    # What a live step does, and in which types, is its own to know: where a kernel refuses, it raises.
    live = isinstance(case, StepCase)
    pass_ = None if isinstance(case, StepCase) else case.workload.pass_
    least = needs.min_compute_capability
    reasons = (
        (
            pass_ is not None and pass_ not in needs.passes,
            f"needs the pass {' or '.join(needs.passes)}, got {pass_}",
        ),
        (
            device not in needs.device_types,
            f"needs {' or '.join(DEVICES[each] for each in needs.device_types)}, got {DEVICES[device]}",
        ),
        (
            device == "cuda"
            and not live
            and needs.needs_precision
            and precision not in needs.needs_precision,
            f"needs the precision {' or '.join(needs.needs_precision)}, got {precision}",
        ),
        (
            device == "cuda"
            and least is not None
            and compute_capability is not None
            and compute_capability < least,
            f"needs compute capability {spell(least)}, got {spell(compute_capability)}",
        ),
        (needs.needs == "compiler" and not has_compiler, "needs a C++ compiler on the PATH"),
    )
    return next((reason for failed, reason in reasons if failed), None)
