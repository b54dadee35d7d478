"""CUDA graphs: the whole step captured once, and replayed."""

from peakward.hardware import devices
from peakward.levers.axis import Axis, CodeHint, ComputeCapability, not_seen
from peakward.levers.compile import in_one_piece
from peakward.records.case import ConfiguredCase, ModelCase
from peakward.records.device import spell
from peakward.records.lever import Lever
from peakward.records.op_graph import WAITS, OpGraph


def _obstacle(case: ConfiguredCase, capability: ComputeCapability | None) -> str | None:
    configuration = case.configuration
    if configuration.compile in ("reduce-overhead", "max-autotune"):
        return (
            f"cuda-graphs and compile {configuration.compile}, which captures graphs of its own, "
            "exclude each other: use compile default"
        )
    if configuration.optimizer == "adamw-loop":
        # Its capturable form divides by the rate, so the set-up step of rate 0 gives 0/0.
        return (
            "cuda-graphs needs an optimiser that can be set up without a step, got adamw-loop: "
            "use adamw-foreach, adamw-fused or adamw-triton"
        )
    if configuration.precision == "fp16-mixed" and case.workload.trains:
        return (
            "cuda-graphs needs a step without decisions on the host, got fp16-mixed, whose loss "
            "scaling makes them: use bf16-mixed"
        )
    if isinstance(case, ModelCase):
        return _of_experts(case, capability)
    if configuration.checkpointing != "none":
        return "cuda-graphs need a step that puts no random state back, as checkpointing does"
    return None


def _of_experts(case: ModelCase, capability: ComputeCapability | None) -> str | None:
    """In other cases the host waits, each time, to learn how many tokens each expert has."""
    shape, precision = case.model, case.configuration.precision
    if shape.n_experts == 1:
        return None
    captured = "cuda-graphs on needs, for experts that the host need not wait for,"
    if precision not in devices.PRECISIONS:
        return f"{captured} the precision {' or '.join(devices.PRECISIONS)}, got {precision}"
    if shape.d_model % devices.WIDTHS or shape.d_ff % devices.WIDTHS:
        widths = f"d_model {shape.d_model} and d_ff {shape.d_ff}"
        return f"{captured} widths that divide by {devices.WIDTHS}, got {widths}"
    if capability is not None and capability[0] not in devices.CAPABILITIES:
        majors = " or ".join(str(major) for major in devices.CAPABILITIES)
        return f"{captured} compute capability {majors}, got {spell(capability)}"
    return None


def _needless(graph: OpGraph, case: ConfiguredCase) -> str | None:
    """A model of transformers that leaves its masks out, or is traced in one piece, waits no more."""
    of_model = [each for each in graph.operators if each.phase in ("forward", "backward")]
    n_waits = sum(each.count for each in of_model if each.name in WAITS)
    if not n_waits or in_one_piece(case) or dict(case.configuration.more).get("masks"):
        return None
    return f"cuda-graphs need a step for which the host does not wait, got {n_waits} waits in the module"


AXIS = Axis(
    name="cuda_graphs",
    default=False,
    help="The whole step captured as one CUDA graph.",
    metavar="on|off,…",
    levers=(
        Lever(
            name="cuda-graphs",
            summary="the whole step captured as one CUDA graph",
            sets=(("cuda_graphs", True),),
            numerics="reordered",
            # Of a compiled step, whose few kernels wait for the host. nanoGPT's model by blocks takes 23.4 ms
            # for 24.4, compiled whole 22.9 for 23.3 (H200).
            usual_speedup=1.04,
            device_types=("cuda",),
        ),
    ),
    obstacle=_obstacle,
    hints={
        True: CodeHint(
            step="needs inputs at fixed addresses: capture the step by torch.cuda.graph in a fresh "
            "process, on buffers that each batch is copied to"
        ),
    },
    needless=_needless,
    unseen=not_seen("a capture runs each operator by itself"),
    predicted={"cuda": (True,)},
)
