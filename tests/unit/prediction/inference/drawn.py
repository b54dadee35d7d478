"""Random valid shapes, and workloads that they can serve."""

from typing import get_args

from hypothesis import strategies as st

from peakward.records.inference import ServingWorkload, WeightFormat
from peakward.records.model_shape import Activation, ModelShape, Norm, Positions


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    n_kv_heads = draw(st.integers(1, 4))
    n_experts = draw(st.integers(1, 6))
    return ModelShape(
        name="drawn",
        vocab_size=draw(st.integers(1, 500)),
        n_layers=draw(st.integers(1, 5)),
        d_model=draw(st.integers(1, 64)),
        d_ff=draw(st.integers(1, 128)),
        n_heads=n_kv_heads * draw(st.integers(1, 4)),
        n_kv_heads=n_kv_heads,
        head_dim=2 * draw(st.integers(1, 32)),
        max_seq_len=512,
        norm=draw(st.sampled_from(get_args(Norm))),
        activation=draw(st.sampled_from(get_args(Activation))),
        gated=draw(st.booleans()),
        positions=draw(st.sampled_from(get_args(Positions))),
        window=draw(st.none() | st.integers(1, 600)),
        tied_head=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        bias=n_experts == 1 and draw(st.booleans()),
        n_experts=n_experts,
        n_active_experts=draw(st.integers(1, n_experts)),
    )


@st.composite
def formats(draw: st.DrawFn) -> WeightFormat:
    kind = draw(st.sampled_from(("fp32", "bf16", "fp16", "fp8", "int8", "int4")))
    quantised = kind in ("fp8", "int8", "int4")
    return WeightFormat(
        type=kind,
        group_size=draw(st.none() | st.integers(1, 256)) if quantised else None,
        zero_points=kind in ("int8", "int4") and draw(st.booleans()),
    )


@st.composite
def services(draw: st.DrawFn) -> tuple[ModelShape, ServingWorkload]:
    """A shape and a workload that it can serve."""
    return draw(shapes()), ServingWorkload(
        batch_size=draw(st.integers(1, 64)),
        prompt_len=draw(st.integers(1, 256)),
        output_len=draw(st.integers(2, 256)),
        weights=draw(formats()),
        cache_type=draw(st.sampled_from(("fp32", "bf16", "fp16", "fp8", "int8"))),
    )
