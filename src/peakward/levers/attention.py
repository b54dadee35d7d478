"""Attention: written out, by one of torch's kernels, or by one of Peakward's own."""

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from peakward.levers.axis import (
    SIXTEEN_BIT,
    Axis,
    Code,
    CodeHint,
    ComputeCapability,
    Needs,
    Undo,
    not_seen,
)
from peakward.records.case import (
    Attention,
    ConfiguredCase,
    DecoderAttention,
    DeviceType,
    ModelCase,
    Pass,
)
from peakward.records.device import spell
from peakward.records.lever import Lever
from peakward.records.op_graph import Operator, OpGraph

if TYPE_CHECKING:
    import torch

NOT_OURS = ("as-written", "naive")
"""Values that leave a module's attention as it is."""
WITHOUT_DECODE: tuple[Pass, ...] = ("forward", "forward_backward", "train_step", "prefill")
"""Passes whose queries are as many as their keys."""
CUDNN = Lever(
    name="sdpa-cudnn",
    summary="scaled_dot_product_attention on cuDNN's kernel",
    sets=(("attention", "sdpa-cudnn"),),
    numerics="reordered",
    # Where it can run on a Hopper, torch takes it by itself: nanoGPT's model (H200) gains nothing over SDPA.
    usual_speedup=1.07,
    device_types=("cuda",),
    vendors=("nvidia",),
    min_compute_capability=(8, 0),
    needs_precision=SIXTEEN_BIT,
)
_BACKENDS: tuple[tuple[str, tuple[DeviceType, ...]], ...] = (
    ("flash", ("cpu", "cuda")),
    ("efficient", ("cuda",)),
    ("math", ("cpu", "cuda")),
)
_IN_CODE = {
    "sdpa-cudnn": "CUDNN_ATTENTION",
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-efficient": "EFFICIENT_ATTENTION",
    "sdpa-math": "MATH",
}
_IN_STEP = "is called in the model: give it as model=, or call {} in its attention"
_CALL_FLASH = _IN_STEP.format("peakward.kernels.flash_attention")


class _Taken(NamedTuple):
    """The cases that one of Peakward's kernels takes."""

    head_dims: tuple[int, ...]
    head_dims_in_words: str
    windows: bool
    compute_capability: ComputeCapability | None
    """The only one that it runs on; None where any younger one will do too."""


_TAKEN: dict[Attention, _Taken] = {
    "flash": _Taken(tuple(range(16, 257)), "from 16 to 256", True, None),
    "flash-hopper": _Taken((64, 80, 96, 128), "of 64, 80, 96 or 128", False, (9, 0)),
    "flash-decode": _Taken(tuple(range(1, 257)), "from 1 to 256", True, None),
}


def _obstacle(case: ConfiguredCase, capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase):
        return None
    attention, shape = case.configuration.attention, case.model
    if attention == "as-written":
        return "attention as-written needs a module of your own: the decoder's is naive"
    taken = _TAKEN.get(attention)
    if taken is None:
        return None
    if shape.head_dim not in taken.head_dims:
        got = shape.head_dim
        return f"attention {attention} needs a head_dim {taken.head_dims_in_words}, got {got}"
    if shape.positions == "alibi":
        # The decoder hands a bias over, (heads, queries, keys); the kernels take slopes.
        return f"attention {attention} needs positions without a bias on the scores, got alibi"
    if shape.window is not None and not taken.windows:
        return f"attention {attention} needs a model without a window, got {shape.window}"
    only = taken.compute_capability
    if case.device == "cuda" and only is not None and capability not in (None, only):
        needed, here = spell(only), spell(capability)
        return f"attention {attention} needs compute capability {needed}, got {here}"
    return None


def _function(value: DecoderAttention) -> Any:
    from peakward.kernels.ops.attention.api import implementation

    return implementation(value)


def _to_module(module: "torch.nn.Module", value: Attention) -> Undo:
    from peakward.lab.rewriting.rewriting import nothing, replace_part

    return nothing if value in NOT_OURS else replace_part(module, "attention", value)


def backend_alone(attention: Attention) -> AbstractContextManager[None]:
    """Inside, torch's attention runs on the named backend alone, where one is named."""
    from torch.nn.attention import sdpa_kernel

    from peakward.kernels.ops.attention.sdpa import BACKENDS

    backend = BACKENDS.get(attention)
    return nullcontext() if backend is None else sdpa_kernel(backend)


def _within(backend: str) -> Code:
    # The backward pass too: what is recomputed there chooses its kernel again.
    return Code(
        imports=("from torch.nn.attention import SDPBackend, sdpa_kernel",),
        around_step=f"with sdpa_kernel(SDPBackend.{backend}):",
    )


class _Seen(NamedTuple):
    """The attention in a module's forward pass."""

    fused: tuple[Operator, ...]
    """Calls of one of torch's fused kernels."""
    by_math: bool
    """Whether scaled_dot_product_attention takes no fused kernel somewhere."""
    written: tuple[Operator, ...]
    """Softmaxes of scores in the module's own code."""
    drops: bool
    """Whether something drops probabilities that were written out."""


def _seen(graph: OpGraph) -> _Seen:
    """A softmax is attention's if a batched product takes its result: the probabilities of a router are not
    multiplied with a matrix for each head. torch's own math path has a softmax of another name."""
    forward = [each for each in graph.operators if each.phase == "forward"]
    taken = {each.inputs[0].shape for each in forward if each.name == "aten.bmm"}
    dropped = {each.inputs[0].shape for each in forward if each.name == "aten.native_dropout"}
    softmaxes = [each for each in forward if each.name == "aten._softmax"]
    shapes = {each: each.inputs[0].shape for each in softmaxes}
    written = [
        each
        for each, (*outer, n_queries, n_keys) in shapes.items()
        if outer and (prod(outer), n_queries, n_keys) in taken
    ]
    return _Seen(
        fused=tuple(each for each in forward if each.name.startswith("aten._scaled_dot_product")),
        by_math=any(each.name == "aten._safe_softmax" for each in forward),
        written=tuple(written),
        drops=any(shapes[each] in dropped for each in written),
    )


def n_attentions(graph: OpGraph) -> int:
    """The number of attentions in a module's forward pass: most often of its layers."""
    seen = _seen(graph)
    by_math = [each for each in graph.operators if each.name == "aten._safe_softmax"]
    return sum(each.count for each in (*seen.fused, *seen.written, *by_math))


def _own_value(graph: OpGraph) -> Attention | None:
    seen = _seen(graph)
    if seen.written:
        return "naive"
    return "sdpa" if seen.fused or seen.by_math else None


def _needless(graph: OpGraph, case: ConfiguredCase) -> str | None:
    """Every attention must refuse the value: where one does not, its module is tried."""
    seen, value = _seen(graph), case.configuration.attention
    if not (seen.fused or seen.by_math or seen.written):
        return "needs attention, got a module whose operators have none"
    if value in ("sdpa", *_IN_CODE):
        masked = any(len(each.inputs) > 3 for each in seen.fused)
        called = value == "sdpa" and not (seen.written or seen.by_math or masked)
        return (
            "needs attention written out, got calls of scaled_dot_product_attention alone"
            if called
            else None
        )
    if seen.by_math:
        return None
    if all(each.drops for each in seen.fused) and (seen.drops or not seen.written):
        return f"attention {value} needs attention without dropout, got dropout in it"
    widths = {each.inputs[0].shape[-1] for each in seen.fused}
    taken = _TAKEN.get(value)
    if taken is not None and not seen.written and widths.isdisjoint(taken.head_dims):
        got = ", ".join(map(str, sorted(widths)))
        return f"attention {value} needs a head_dim {taken.head_dims_in_words}, got {got}"
    return None


AXIS = Axis(
    name="attention",
    default="naive",
    help="naive, sdpa, or one backend of it: sdpa-cudnn, sdpa-flash, sdpa-efficient, sdpa-math; or "
    "Peakward's own kernels: flash, flash-hopper, flash-decode. Of a module: as-written.",
    levers=(
        Lever(
            name="sdpa",
            summary="torch's scaled_dot_product_attention, the backend that it chooses",
            sets=(("attention", "sdpa"),),
            numerics="reordered",
            usual_speedup=1.08,
        ),
        CUDNN,
        Lever(
            name="flash",
            summary="attention without a score matrix in Peakward's own kernel, for any such GPU",
            sets=(("attention", "flash"),),
            numerics="reordered",
            usual_speedup=1.08,
            passes=WITHOUT_DECODE,
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
        Lever(
            name="flash-hopper",
            summary="attention without a score matrix in Peakward's own kernel for Hopper alone",
            sets=(("attention", "flash-hopper"),),
            numerics="reordered",
            # 1.02 over SDPA's own choice: nanoGPT's model (H200, compiled, in a graph) takes 22.5 ms for
            # 22.9, minGPT's, whose attention is written out, 23.8 for 24.0.
            usual_speedup=1.10,
            passes=WITHOUT_DECODE,
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(9, 0),
            max_compute_capability=(9, 0),
            needs_precision=SIXTEEN_BIT,
        ),
        Lever(
            name="flash-decode",
            summary="attention of one new token to a long cache in Peakward's own kernel",
            sets=(("attention", "flash-decode"),),
            numerics="reordered",
            passes=("decode",),
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    # The last three choose a kernel for attention that the user wrote; where the attention is ours to
    # choose, these are settings and no levers.
    around_call=(
        CUDNN,
        *(
            Lever(
                name=f"sdpa-{backend}",
                summary=f"scaled_dot_product_attention on its {backend} kernel",
                sets=(("attention", f"sdpa-{backend}"),),
                numerics="reordered",
                device_types=device_types,
            )
            for backend, device_types in _BACKENDS
        ),
    ),
    others={
        # torch 2.13 has no memory-efficient kernel for a CPU; its flash kernel takes every precision on a
        # CPU, and 16-bit inputs alone on a GPU.
        "sdpa-efficient": Needs(device_types=("cuda",), min_compute_capability=(5, 0)),
        "sdpa-flash": Needs(min_compute_capability=(8, 0), needs_precision=SIXTEEN_BIT),
    },
    obstacle=_obstacle,
    part="attention",
    function=_function,
    to_module=_to_module,
    around=backend_alone,
    hints={
        "naive": CodeHint(factory="is the module's own choice: what it does is as-written"),
        "sdpa": CodeHint(
            step=_IN_STEP.format("torch.nn.functional.scaled_dot_product_attention")
            + ", where it computes softmax(q·kᵀ)·v itself",
            handle="model",
        ),
        "flash": CodeHint(step=_CALL_FLASH, handle="model"),
        "flash-hopper": CodeHint(step=_CALL_FLASH, handle="model"),
        "flash-decode": CodeHint(
            module="is called by the module: call peakward.kernels.decode_attention in its attention"
        ),
    },
    code={
        "sdpa": Code(
            once=(
                "# Of a model of transformers; attention of your own calls",
                "# torch.nn.functional.scaled_dot_product_attention in its forward pass.",
                'model.set_attn_implementation("sdpa")',
            )
        ),
        **{value: _within(backend) for value, backend in _IN_CODE.items()},
    },
    leaves_alone=("optimizer",),
    unseen=not_seen("a capture has the attention that the module calls"),
    own_value=_own_value,
    needless=_needless,
    predicted={"cpu": ("sdpa", "sdpa-flash"), "cuda": get_args(DecoderAttention)},
    own_kernels=("flash", "flash-hopper", "flash-decode"),
)
