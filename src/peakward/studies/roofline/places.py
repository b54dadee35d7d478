"""The place of each kind of operator of a step on a device's roofline, measured beside predicted.

A step's operators come from two sides: stated in closed form, with modules, and measured in a trace,
without. Products meet by their shapes, all else by phase and category: a kind of operators is the
products of one role, or what is of one category.

A roofline counts the FLOPs of products and one operation for each element and step of all else. Model
FLOPs leave out all that is no product, and would put every other operator at intensity 0. Here such an
operator has one operation for each element of its largest operand and each step of its formula; exp,
square root and division are one each. What they are to show does not hang on it: they came out at 0.1
to 4 operations a byte, their ridges at 5.5 (fp32 on two cores), 12 (fp32 on an H200) and 186 (bf16
there), and four times as many would have moved none of them across.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from peakward.prediction.floor import Ceilings, roof
from peakward.prediction.operators.op_graph import category
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.records.case import ModelCase
from peakward.records.op_graph import Operator, OpGraph
from peakward.records.profile import CaseProfile, KernelGroup, OperatorRate
from peakward.studies.readings import ratio
from peakward.studies.values import groups
from peakward.traces.row_categories import shaping

ATTENTION_PRODUCTS = "attention products"
ELEMENTWISE = "elementwise and copies"
OPTIMISER = "optimiser"
ROLES = ("qkv", ATTENTION_PRODUCTS, "out", "up", "down", "head")
"""The roles of products, in the order of a forward pass."""
COARSE = ("elementwise", "copy", "reduction", "memory")
"""Between these the names of operators and of kernels draw the line differently: a fill, a cast and a
sum count together."""
INSIDE = {"sort": "embedding"}
"""Kernels by the operator around them: a dense model sorts nothing but the indices of its embedding's
backward pass."""
WITHOUT_PLACE = ("matmul", "framework", "other")
"""Categories of a trace: products, which go by shape; views and autograd's nodes on a host; and what
no rule names."""
SIDES = {"mm": 0, "bmm": 0, "addmm": 1, "_scaled_mm": 0}
"""Products, and where among their tensors the two matrices begin."""
FILLED = ("aten.nll_loss_backward", "aten.embedding_dense_backward")
"""Both set their result to zero before they write a few values in each row of it. The fill is inside of
them: a trace counts it as an operator of its own, the closed form as bytes of the one around it. Of 129
µs that the loss's backward pass of 8,192 × 10,000 took an H100, the fill took 99."""
FILLS = ("aten::fill_", "aten::zero_")
"""The operators that fill a tensor: on a GPU the first launches the kernel; on a CPU either may do the
work."""
STEPS = {
    "_softmax": 5,  # maximum, difference, exp, sum, division
    "_safe_softmax": 5,
    "_log_softmax": 5,  # maximum, difference, exp, sum, difference of the logarithm
    "_softmax_backward_data": 4,  # y (g - Σ g y)
    "_log_softmax_backward_data": 4,  # g - exp(y) Σ g
    "_fused_rms_norm": 4,  # square, sum, times its root, times the weight
    "_fused_rms_norm_backward": 9,
    "native_layer_norm": 7,
    "native_layer_norm_backward": 11,
    "silu": 4,  # x / (1 + exp(-x))
    "silu_backward": 7,
    "lerp_": 3,
    "addcmul_": 3,
    "addcdiv_": 3,
    "_foreach_lerp_": 3,
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_fused_adamw_": 14,  # decay 1, two moments 3 and 4, root, correction, epsilon, update 3
    "peakward.adamw": 14,
    "peakward.adamw_8bit": 14,
    "peakward.adamw_bf16": 14,
}
"""Operations an element, by the formula of each; one of what is not named."""
MODEL_SHARE_BACKWARD = 4 / 5
"""One of fused attention's five products backward makes the scores anew, which is never counted."""
NS = 1e-9


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of one kind in a step."""

    kind: str
    is_layer: bool
    """Whether they are products of a linear layer."""
    n_calls: int
    operations: float
    bytes: int
    """Operands, each moved once."""
    floor_s: float | None
    """The roofline's least time; None where the matmul rate is unknown."""
    bound: Literal["compute", "memory"] | None
    """The side of the ridge."""
    measured_s: float | None
    """The time of kernels, on a CPU of operators by their self time; None where the trace has other calls
    than the graph, or none."""
    predicted_s: float | None
    """None on a CPU, and on a device without a time model."""

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return ratio(self.operations, self.bytes) or 0.0

    @property
    def rate(self) -> float | None:
        """Operations a second."""
        return ratio(self.operations, self.measured_s)

    @property
    def roof_share(self) -> float | None:
        """The least time over the measured; the study's notes say what one above 1 may come of."""
        return ratio(self.floor_s, self.measured_s)

    @property
    def over_predicted(self) -> float | None:
        """Measured over predicted time."""
        return ratio(self.measured_s, self.predicted_s)

    @property
    def lost_s(self) -> float:
        """The measured time above the least; 0 where one is unknown."""
        if self.measured_s is None or self.floor_s is None:
            return 0.0
        return self.measured_s - self.floor_s


class Product(NamedTuple):
    """A product by what a trace and a graph both say of it."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]


def places(
    case: ModelCase,
    graph: OpGraph,
    on: Ceilings,
    profile: CaseProfile | None,
    model: DeviceModel | None,
) -> tuple[Place, ...]:
    """The place of every kind in the graph of the case's step, those that took longest first."""
    role_of = roles(graph)
    measured = {} if profile is None else measured_s(profile, graph, role_of)
    found = []
    for members in groups(graph.operators, lambda each: kind(each, role_of)):
        name = kind(members[0], role_of)
        computed = sum(each.count * operations(each) for each in members)
        moved = sum(each.count * (each.bytes_read + each.bytes_written) for each in members)
        least = roof(computed, moved, on)
        found.append(
            Place(
                kind=name,
                is_layer=product(members[0]) is not None and name != ATTENTION_PRODUCTS,
                n_calls=sum(each.count for each in members),
                operations=computed,
                bytes=moved,
                floor_s=least.floor_s,
                bound=least.bound,
                measured_s=measured.get(name),
                predicted_s=None if model is None else predicted_s(case, members, model),
            )
        )
    return tuple(sorted(found, key=lambda each: -(each.measured_s or each.floor_s or 0.0)))


def operations(operator: Operator) -> float:
    """The operations of one call. Fused attention counts half under a causal mask, as model FLOPs do."""
    if operator.flops:
        if category(operator.name) != "attention":
            return float(operator.flops)
        needed = MODEL_SHARE_BACKWARD if "backward" in operator.name else 1.0
        return operator.flops * (0.5 if operator.causal else 1.0) * needed
    names = operator.fused or (operator.name,)
    computing = (each for each in names if category(each) not in ("copy", "embedding"))
    steps = sum(STEPS.get(each.removeprefix("aten."), 1) for each in computing)
    written = sum(each.n_elements for each in operator.outputs)
    return float(steps * max((written, *(each.n_elements for each in operator.inputs))))


def predicted_s(case: ModelCase, members: Iterable[Operator], model: DeviceModel) -> float | None:
    """Seconds of a step in these operators; None where one of them cannot be predicted."""
    setting = of_case(case)
    times = [(each.count, cost(each, setting, model).device_s) for each in members]
    known = [n * device_s for n, device_s in times if device_s is not None]
    return sum(known) if len(known) == len(times) else None


def product(operator: Operator) -> Product | None:
    """The product that an operator of a graph is; None where it is none."""
    name = operator.name.removeprefix("aten.")
    if name not in SIDES:
        return None
    a, b = operator.inputs[SIDES[name] :][:2]
    return Product(name, a.shape, b.shape)


def traced_product(rate: OperatorRate) -> Product | None:
    """The product that operators of a trace are; None where they are none, or without shapes."""
    name = rate.name.removeprefix("aten::")
    if name not in SIDES or not rate.dims:
        return None
    shapes = [tuple(int(side) for side in each.split("×")) for each in rate.dims.split(", ")]
    sides = shapes[SIDES[name] :][:2]
    return Product(name, *sides) if len(sides) == 2 else None


def roles(graph: OpGraph) -> dict[Product, str]:
    """Each product of the graph with the layer that it is for, forward and backward alike.

    Layers of one shape have one name, as "out + down": a trace cannot tell them apart.
    """
    found: dict[Product, set[str]] = {}
    for each in graph.operators:
        if key := product(each):
            own = (each.module or "").rpartition(".")[2] or "no module"
            found.setdefault(key, set()).add(ATTENTION_PRODUCTS if own == "attention" else own)
    alike: list[set[str]] = []
    for names in found.values():
        shared = [each for each in alike if each & names]
        alike = [each for each in alike if each not in shared] + [names.union(*shared)]
    title = {name: " + ".join(sorted(each, key=_rank)) for each in alike for name in each}
    return {key: title[next(iter(names))] for key, names in found.items()}


def _rank(role: str) -> tuple[int, str]:
    return (ROLES.index(role) if role in ROLES else len(ROLES), role)


def kind(operator: Operator, role_of: Mapping[Product, str]) -> str:
    """The kind of an operator of the graph that the roles are of."""
    if key := product(operator):
        return role_of[key]
    if operator.phase == "optimizer":
        return OPTIMISER
    shaped = shaping(tuple(each.removeprefix("aten.") for each in operator.fused))
    return _coarse(category(operator.name) if shaped is None else str(shaped))


def traced_kind(group: KernelGroup) -> str | None:
    """The kind of a category of a trace in one phase; None of products and of what has no place."""
    named = group.category
    if named is None or named in WITHOUT_PLACE:
        return None
    return OPTIMISER if group.phase == "optimizer" else _coarse(INSIDE.get(named, named))


def _coarse(named: str) -> str:
    return ELEMENTWISE if named in COARSE else named


def measured_s(
    profile: CaseProfile, graph: OpGraph, role_of: Mapping[Product, str]
) -> dict[str, float]:
    """Seconds of a step by kind, as far as the trace has the calls of the graph."""
    sums: dict[str, float] = defaultdict(float)
    for group in profile.profile.categories:
        if named := traced_kind(group):
            sums[named] += group.total_ns * NS / profile.n_steps
    for named, filling_s in fills_s(profile, graph).items():
        if filling_s is None:
            sums.pop(named, None)
        else:
            sums[named] += filling_s
            sums[ELEMENTWISE] -= filling_s
    return {**sums, **products_s(profile, graph, role_of)}


def products_s(
    profile: CaseProfile, graph: OpGraph, role_of: Mapping[Product, str]
) -> dict[str, float]:
    """Seconds of a step in the roles whose calls the trace has all of, and no others."""
    n_calls, seen, total_s = Counter[str](), Counter[str](), defaultdict[str, float](float)
    for each in graph.operators:
        if key := product(each):
            n_calls[role_of[key]] += each.count
    for rate in profile.profile.operators:
        key = traced_product(rate)
        if key is not None and key in role_of:
            seen[role_of[key]] += rate.n
            total_s[role_of[key]] += rate.kernel_ns * NS / profile.n_steps
    return {role: total_s[role] for role, n in n_calls.items() if seen[role] == n * profile.n_steps}


def fills_s(profile: CaseProfile, graph: OpGraph) -> dict[str, float | None]:
    """Seconds of a step in fills inside of other operators, by the kind of these; None where the trace has
    not as many fills of the result's shape as the graph has such operators."""
    wanted: Counter[tuple[int, ...]] = Counter()
    shapes: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for each in graph.operators:
        if each.name in FILLED:
            (result,) = each.outputs
            wanted[result.shape] += each.count * profile.n_steps
            shapes[kind(each, {})].append(result.shape)
    found: dict[str, float | None] = {}
    for name, own in shapes.items():
        times = [_fill_s(profile, shape, wanted[shape]) for shape in own]
        known = [each for each in times if each is not None]
        found[name] = sum(known) if len(known) == len(times) else None
    return found


def _fill_s(profile: CaseProfile, shape: tuple[int, ...], n: int) -> float | None:
    own = [each for each in profile.profile.operators if _filled_shape(each) == shape]
    if not own or any(each.n != n for each in own):
        return None
    return sum(each.kernel_ns for each in own) * NS / profile.n_steps


def _filled_shape(rate: OperatorRate) -> tuple[int, ...] | None:
    if rate.name not in FILLS or not rate.dims:
        return None
    return tuple(int(side) for side in rate.dims.partition(", ")[0].split("×"))
