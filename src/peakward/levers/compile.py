"""Compilation: the mode of torch.compile, and how much of the model it is given at once."""

from typing import get_args

from msgspec.structs import replace

from peakward.levers.axis import Axis, CodeHint, Needs, Value, seen, spoken
from peakward.records.case import CompileScope, Configuration, ConfiguredCase, ModuleCase
from peakward.records.lever import Lever


def _unseen(case: ModuleCase, name: str, value: Value) -> str | None:
    """Fusion in the default mode follows from the order of operators
    (`prediction.operators.compiled_module`); other modes, and what is kept of a recomputed block, do not."""
    if value != "default":
        return f"{spoken(name, value)} is not seen by operators: what fuses is told of the default mode"
    mode = case.configuration.checkpointing
    if mode == "none":
        return None
    together = f"{spoken(name, value)} with checkpointing {mode}"
    return f"{together} is not seen by operators: what compiled code keeps of a block is not known"


_ON_CUDA = Needs(device_types=("cuda",), needs="compiler")

AXIS = Axis(
    name="compile",
    default="none",
    help="none, or a mode of torch.compile: default, reduce-overhead, max-autotune.",
    metavar="MODE,…",
    levers=(
        Lever(
            name="compile",
            summary="torch.compile of the repeated block and of the loss",
            sets=(("compile", "default"),),
            numerics="reordered",
            usual_speedup=1.16,
            min_compute_capability=(7, 0),
            needs="compiler",
        ),
    ),
    # On a CPU the first is the default mode by another name; the second builds C++ for minutes.
    others={"reduce-overhead": _ON_CUDA, "max-autotune": _ON_CUDA},
    hints={
        "default": CodeHint(
            step="outlasts the call: give the model as model=, or call .compile() on each of its repeated "
            "blocks before the loop, in a fresh process",
            handle="model",
        ),
    },
    unseen=_unseen,
    predicted={"cuda": ("default",)},
)


def compiled_before(configuration: Configuration, scope: CompileScope | None) -> Configuration:
    """The configuration as it starts for a module that its caller or its factory compiled.

    Args:
        scope: the part that is compiled; None where nothing is.

    Returns:
        That part in torch's default mode, unless the configuration asks for a mode itself.
    """
    if scope is None or configuration.compile != "none":
        return configuration
    return replace(configuration, compile="default", compile_scope=scope)


def told_of(scope: CompileScope | None) -> tuple[str, ...]:
    """The note on a start that its caller or its factory compiled; none where nothing is compiled."""
    if scope is None:
        return ()
    part = "as a whole" if scope == "model" else "by blocks"
    return (
        f"The module came compiled {part}: the baseline is compiled so too, in torch's default mode, and "
        "levers are tried on top of that.",
    )


def in_one_piece(case: ConfiguredCase) -> bool:
    """Whether the whole model is compiled as one graph: as it is asked for, or because its loss is replaced,
    whose graph is that of the whole module. nanoGPT's model (H200) takes 22.0 ms with chunked-loss by blocks
    and 22.1 as a whole. A transformers model calls its blocks in a module beside the loss, which stays out of
    that graph."""
    configuration = case.configuration
    calls_blocks = isinstance(case, ModuleCase) and not case.source.startswith("hf:")
    of_loss = calls_blocks and configuration.loss != "torch"
    return configuration.compile != "none" and (of_loss or configuration.compile_scope == "model")


def fuses_by_itself(case: ConfiguredCase, what: str) -> str | None:
    """Why a kernel for parts of a module is not tried on a compiled step, or None where it is not compiled.
    On compiled steps of `2.7B` (H200) such kernels left 0.985 to 0.997."""
    if case.configuration.compile == "none":
        return None
    return f"torch.compile fuses {what} by itself: it is tried without compilation alone"


SCOPE = Axis(
    name="compile_scope",
    default="block",
    help="What is compiled: the repeated block, or the whole model.",
    metavar="SCOPE,…",
    # nanoGPT's own model, whose loss is inside, takes 24.1 ms so and 25.8 by blocks (H100, bf16); a Llama of
    # 16 layers 149 and 133 (H200). Usually it gains as the blocks do, and its compilation is several times as
    # long: it is tried in their place once they are proved.
    levers=(
        Lever(
            name="compile-model",
            summary="torch.compile of the whole model in one piece, with the loss that it computes",
            sets=(("compile", "default"), ("compile_scope", "model")),
            numerics="reordered",
            usual_speedup=1.16,
            min_compute_capability=(7, 0),
            needs="compiler",
        ),
    ),
    unseen=seen,
    predicted={"cpu": get_args(CompileScope), "cuda": get_args(CompileScope)},
)
