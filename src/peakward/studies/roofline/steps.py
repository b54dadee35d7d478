"""The steps of the study `roofline`, each with the places of its operators."""

from collections.abc import Iterator
from itertools import product

from peakward.hardware import devices
from peakward.prediction.floor import Ceilings, ceilings, compute_type
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.planning.site import site
from peakward.records.case import Attention, Compile, ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import OpGraph
from peakward.studies.cases import model_case
from peakward.studies.engine import Point, Row, View
from peakward.studies.readings import ratio
from peakward.studies.roofline.places import Place, places
from peakward.studies.setting import Setting
from peakward.studies.values import groups

SEQ_LEN = {"small": 128, "corners": 512, "full": 512}
BATCHES = {"small": (1, 4), "corners": (1, 4, 16), "full": (1, 4, 16)}
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "small": ("fp32", "bf16-mixed"),
    "corners": ("fp32", "bf16-mixed"),
    "full": ("fp32", "tf32", "bf16-mixed", "bf16"),
}
EAGER = "eager"
FUSIONS: dict[str, tuple[Attention, Compile]] = {
    EAGER: ("naive", "none"),
    "fused attention": ("sdpa", "none"),
    "compiled": ("sdpa", "default"),
}
"""How much is one kernel."""
ON_CPU = (EAGER, "fused attention")
LEAST_SHARE = 0.01
"""The share of the measured time from which on a kind of operators is shown where room is short."""
NS = 1e-9


class Step(Point[ModelCase], frozen=True, kw_only=True):
    """A training step of the grid."""

    fusion: str

    @property
    def precision(self) -> Precision:
        """The case's."""
        return self.case.configuration.precision

    @property
    def batch_size(self) -> int:
        """The case's."""
        return self.case.workload.batch_size

    @property
    def settings(self) -> tuple[str, str, str]:
        """All that differs from step to step but the batch."""
        return self.case.model.name, self.precision, self.fusion


class Placed(Row[Step], frozen=True, kw_only=True):
    """A step with the places of its operators."""

    on: Ceilings | None
    """None without a calibration or datasheet."""
    stated: OpGraph | str
    """Its operators in closed form, or why they are not stated."""
    places: tuple[Place, ...]
    """Empty without ceilings, and where the operators are not stated."""

    @property
    def ridge(self) -> float | None:
        """Operations a byte at which the roof bends; None where the matmul rate is unknown."""
        return None if self.on is None else ratio(self.on.matmul_flops_per_s, self.on.bytes_per_s)

    @property
    def work_s(self) -> float | None:
        """Profiled work of a step."""
        if self.profile is None:
            return None
        total_ns = sum(each.total_ns for each in self.profile.profile.categories)
        return total_ns * NS / self.profile.n_steps

    @property
    def placed_s(self) -> float | None:
        """The part of it that has a place with a roof; None where nothing has."""
        return sum(measured_s for measured_s, _ in self._under_roof) or None

    @property
    def floor_s(self) -> float | None:
        """The least time of the operators of `placed_s`."""
        return sum(floor_s for _, floor_s in self._under_roof) or None

    @property
    def _under_roof(self) -> list[tuple[float, float]]:
        return [
            (each.measured_s, each.floor_s)
            for each in self.places
            if each.measured_s is not None and each.floor_s is not None
        ]

    @property
    def right_s(self) -> float | None:
        """Measured time of the operators right of the ridge."""
        if self.placed_s is None:
            return None
        return sum(each.measured_s or 0.0 for each in self.places if each.bound == "compute")

    @property
    def n_bytes(self) -> int:
        """Bytes of operands."""
        return sum(each.bytes for each in self.places)

    @property
    def rest(self) -> tuple[Place, ...]:
        """All but the linear layers."""
        return tuple(each for each in self.places if not each.is_layer)

    @property
    def rest_bytes(self) -> int:
        """Bytes of all but the linear layers."""
        return sum(each.bytes for each in self.rest)

    @property
    def rest_s(self) -> float | None:
        """Measured time of all but the linear layers; None where none was measured."""
        return sum(each.measured_s for each in self.rest if each.measured_s is not None) or None

    @property
    def notable(self) -> tuple[Place, ...]:
        """The places that took at least `LEAST_SHARE` of what was placed, the longest first."""
        least_s = LEAST_SHARE * sum(each.measured_s or 0.0 for each in self.places)
        return tuple(
            each
            for each in self.places
            if each.measured_s is not None and each.measured_s >= least_s
        )

    @property
    def longest_layer(self) -> Place | None:
        """The linear layer that took longest; None where none was measured."""
        return next((each for each in self.places if each.is_layer and each.measured_s), None)

    def place_of(self, kind: str) -> Place | None:
        """The place of a kind; None where the step has none of it."""
        return next((each for each in self.places if each.kind == kind), None)


Seen = View[Step]


def wanted(setting: Setting) -> Iterator[Step]:
    """Size × precision × fusion × batch: one size, but for the full scope's two ends; all that the user
    names."""
    scope, shapes = setting.scope, setting.grid.models
    if not scope.models:
        shapes = (shapes[0], shapes[-1]) if scope.name == "full" else shapes[:1]
    for shape, precision, fusion, n in product(
        shapes,
        scope.precisions or PRECISIONS[scope.name],
        FUSIONS if setting.device == "cuda" else ON_CPU,
        (scope.batch_size,) if scope.batch_size else BATCHES[scope.name],
    ):
        attention, compiled = FUSIONS[fusion]
        case = model_case(
            shape,
            n,
            max(scope.seq_lens, default=SEQ_LEN[scope.name]),
            "train_step",
            setting.device,
            precision=precision,
            attention=attention,
            compile=compiled,
        )
        yield Step(
            case=case,
            protocol=setting.protocol(phases=False),
            name=f"{shape.name}, {precision}, {fusion}, batch {n}",
            fusion=fusion,
            also="profile",
        )


def points(setting: Setting) -> tuple[Step, ...]:
    """The steps that can run here."""
    return tuple(each for each in wanted(setting) if setting.obstacle(each.case) is None)


def stated(case: ModelCase, setting: Setting) -> OpGraph | str:
    """The operators of the case's step in closed form, or why they are not stated."""
    capability = setting.compute_capability
    if case.model.n_experts > 1:
        return (
            "expected a dense model, whose products have the same shapes in a trace, got "
            f"{case.model.n_experts} experts: how many rows each multiplies is in the values"
        )
    try:
        if capability is None:
            return op_graph(case)
        return op_graph(case, compute_capability=capability)
    except PeakwardError as refusal:
        return str(refusal)


def placed(view: Seen) -> Iterator[Placed]:
    """Each step with its roof and its places."""
    where, of = view.setting.environment, view.calibration
    device = devices.match(where.device_name, where.device_memory_bytes)
    # No time is predicted on a CPU, or on a GPU that is not catalogued.
    model = site(device, calibration=of).model if view.on_gpu and device is not None else None
    for row in view.rows:
        case, graph = row.point.case, stated(row.point.case, view.setting)
        on: Ceilings | None = None
        found: tuple[Place, ...] = ()
        if of is not None or device is not None:
            on = ceilings(compute_type(case), of, device)
        if on is not None and isinstance(graph, OpGraph):
            found = places(case, graph, on, row.profile, model)
        yield Placed(
            point=row.point,
            measurement=row.measurement,
            profile=row.profile,
            calibration=of,
            on=on,
            stated=graph,
            places=found,
        )


def steps(view: Seen) -> tuple[Placed, ...]:
    """The rows of the study, as `placed` made them."""
    return tuple(each for each in view.rows if isinstance(each, Placed))


def profiled(view: Seen) -> tuple[Placed, ...]:
    """The steps with places and a profile."""
    return tuple(each for each in steps(view) if each.places and each.profile is not None)


def by_batch(view: Seen) -> tuple[tuple[Placed, ...], ...]:
    """The profiled steps that are alike but for the batch together, the smallest batch first."""
    found = sorted(profiled(view), key=lambda each: each.point.batch_size)
    return groups(found, lambda each: each.point.settings)


def largest(view: Seen) -> tuple[Placed, ...]:
    """The largest batch that was profiled, of each size, precision and fusion."""
    found = {group[-1].name for group in by_batch(view)}
    return tuple(each for each in steps(view) if each.name in found)
