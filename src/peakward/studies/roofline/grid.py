"""The grid of `roofline`: training steps by precision, by what is fused, and by batch size."""

import msgspec

from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Attention, Compile, ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import OpGraph
from peakward.studies.cases import model_case
from peakward.studies.readings import Planned
from peakward.studies.setting import Setting

SEQ_LEN = {"small": 128, "corners": 512, "full": 512}
BATCHES = {"small": (1, 4), "corners": (1, 4, 16), "full": (1, 4, 16)}
PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "small": ("fp32", "bf16-mixed"),
    "corners": ("fp32", "bf16-mixed"),
    "full": ("fp32", "tf32", "bf16-mixed", "bf16"),
}


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """How much is one kernel."""

    name: str
    attention: Attention = "naive"
    compile: Compile = "none"


EAGER = Fusion(name="eager")
ATTENTION = Fusion(name="fused attention", attention="sdpa")
COMPILED = Fusion(name="compiled", attention="sdpa", compile="default")
_UNSTATED = (
    "Not run: compiled steps, as what a compiler fuses on a CPU is not stated in closed form.",
)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × precision × fusion × batch."""
    return tuple(planned(case, setting) for case, _ in grid(setting))


def planned(case: ModelCase, setting: Setting) -> Planned:
    """The case with the study's protocol."""
    return case, setting.protocol(phases=False)


def grid(setting: Setting) -> tuple[tuple[ModelCase, Fusion], ...]:
    """What can run here, each case with what is fused in it."""
    return tuple(each for each in _wanted(setting) if setting.obstacle(each[0]) is None)


def refusals(setting: Setting) -> tuple[str, ...]:
    """Why cases were left out, and why others have no places; each reason once."""
    graphs = [stated(case, setting) for case, _ in grid(setting)]
    unplaced = [f"Without places: {each}." for each in graphs if isinstance(each, str)]
    return (
        *(_UNSTATED if setting.device == "cpu" else ()),
        *setting.refusals(case for case, _ in _wanted(setting)),
        *dict.fromkeys(unplaced),
    )


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


def _wanted(setting: Setting) -> list[tuple[ModelCase, Fusion]]:
    scope = setting.scope
    batches = (scope.batch_size,) if scope.batch_size else BATCHES[scope.name]
    return [
        (_case(shape, batch_size, precision, fusion, setting), fusion)
        for shape in _models(setting)
        for precision in scope.precisions or PRECISIONS[scope.name]
        for fusion in _fusions(setting)
        for batch_size in batches
    ]


def _models(setting: Setting) -> tuple[ModelShape, ...]:
    """One size, but for the full scope's two ends; all that the user names."""
    own = setting.grid.models
    if setting.scope.models:
        return own
    return (own[0], own[-1]) if setting.scope.name == "full" else own[:1]


def _fusions(setting: Setting) -> tuple[Fusion, ...]:
    return (EAGER, ATTENTION, COMPILED) if setting.device == "cuda" else (EAGER, ATTENTION)


def _case(
    shape: ModelShape, batch_size: int, precision: Precision, fusion: Fusion, setting: Setting
) -> ModelCase:
    return model_case(
        shape,
        batch_size,
        max(setting.scope.seq_lens, default=SEQ_LEN[setting.scope.name]),
        "train_step",
        setting.device,
        precision=precision,
        attention=fusion.attention,
        compile=fusion.compile,
    )
