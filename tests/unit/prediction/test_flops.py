"""Model FLOPs against a list of matrix products, and against figures measured elsewhere."""

from typing import Any, get_args

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.flops import (
    OPERATOR_PHASES,
    PHASES,
    attended_pairs,
    forward_flops,
    mean_over_lengths,
    phase_flops,
    recomputed_flops,
    step_flops,
)
from peakward.records.case import (
    Configuration,
    MicroCase,
    ModelCase,
    OperatorCase,
    OperatorPass,
    Pass,
    StepCase,
    Workload,
)
from peakward.records.model_shape import ModelShape

GQA = ModelShape(
    name="gqa",
    vocab_size=101,
    n_layers=3,
    d_model=24,
    d_ff=56,
    n_heads=6,
    n_kv_heads=2,
    head_dim=8,
    max_seq_len=64,
)


def case(shape: ModelShape = GQA, checkpointing: Any = "none", **workload: Any) -> ModelCase:
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 16, **workload}),
        configuration=Configuration(checkpointing=checkpointing),
        device="cpu",
    )


def products(shape: ModelShape, batch: int, seq: int) -> list[tuple[int, int, int]]:
    """(m, n, k) of every product of a forward pass, attention's without a mask counted apart."""
    tokens, query, key = (
        batch * seq,
        shape.n_heads * shape.head_dim,
        shape.n_kv_heads * shape.head_dim,
    )
    visits = tokens * shape.n_active_experts
    block = [
        (tokens, query, shape.d_model),
        (tokens, key, shape.d_model),
        (tokens, key, shape.d_model),
        (tokens, shape.d_model, query),
        *[(visits, shape.d_ff, shape.d_model)] * (2 if shape.gated else 1),
        (visits, shape.d_model, shape.d_ff),
        *[(tokens, shape.n_experts, shape.d_model)] * (shape.n_experts > 1),
    ]
    return block * shape.n_layers + [(tokens, shape.vocab_size, shape.d_model)]


@pytest.mark.parametrize(
    "shape",
    [GQA, model("gpt2"), model("mistral-7b"), model("mixtral-8x7b")],
    ids=lambda s: s.name,
)
def test_every_product_is_counted_and_causal_attention_as_half(shape: ModelShape) -> None:
    batch, seq = 3, 32
    matmuls = sum(2 * m * n * k for m, n, k in products(shape, batch, seq))
    scores = 2 * seq * seq * shape.head_dim * shape.n_heads * batch * shape.n_layers
    assert forward_flops(shape, batch, seq) == matmuls + (scores + scores) / 2


@pytest.mark.parametrize(
    ("name", "batch_size", "seq_len", "tokens_per_s", "tflops"),
    [
        # Forward rates published with both units (H200, this convention): they must agree.
        ("small", 4, 512, 736_000, 185),
        ("xl", 4, 512, 89_900, 363),
        ("2.7B", 4, 512, 79_000, 541),
        ("2.7B", 8, 1024, 73_900, 512),
    ],
)
def test_agrees_with_figures_of_the_same_convention(
    name: str, batch_size: int, seq_len: int, tokens_per_s: float, tflops: float
) -> None:
    per_token = forward_flops(model(name), batch_size, seq_len) / (batch_size * seq_len)
    assert per_token * tokens_per_s == pytest.approx(tflops * 1e12, rel=0.005)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 40])
def test_pairs_are_those_counted_token_by_token_less_half_the_reach(window: int | None) -> None:
    seq = 16
    reach = min(window or seq, seq)
    counted = sum(min(query + 1, reach) for query in range(seq))
    assert attended_pairs(seq, window=window) == counted - reach / 2


def test_a_window_saves_attention_beyond_it_alone() -> None:
    windowed = msgspec.structs.replace(GQA, window=8)
    assert forward_flops(windowed, 1, 8) == forward_flops(GQA, 1, 8)
    saved = forward_flops(GQA, 1, 32) - forward_flops(windowed, 1, 32)
    assert saved == 4 * 6 * 8 * 3 * (32 * 32 / 2 - (32 * 8 - 8 * 8 / 2))


def test_phases_of_each_pass() -> None:
    forward = forward_flops(GQA, 2, 16)
    assert phase_flops(case(pass_="forward")) == {"forward": forward}
    assert phase_flops(case(pass_="forward_backward")) == {
        "forward": forward,
        "backward": 2 * forward,
    }
    assert phase_flops(case(pass_="train_step")) == {
        "forward": forward,
        "backward": 2 * forward,
        "optimizer": 0,
    }


def test_a_step_is_all_its_micro_batches() -> None:
    forward = forward_flops(GQA, 2, 16)
    assert step_flops(case(pass_="forward")) == forward
    assert step_flops(case(pass_="train_step")) == 3 * forward
    assert step_flops(case(pass_="train_step", accumulate=4)) == 12 * forward


@pytest.mark.parametrize("padding", ["none", "to-seq-len"])
def test_varying_lengths_count_by_their_mean_without_padding(padding: str) -> None:
    varying = case(pass_="forward", varying_seq_lens=(4, 16), padding=padding)
    assert step_flops(varying) == (forward_flops(GQA, 2, 4) + forward_flops(GQA, 2, 16)) / 2


def test_a_step_of_unknown_maths_has_none() -> None:
    assert step_flops(StepCase(name="mine", fingerprint="0", device="cpu")) is None


def test_attention_alone() -> None:
    shape: dict[str, Any] = {
        "batch_size": 2,
        "n_heads": 3,
        "seq_len": 16,
        "head_dim": 8,
        "device": "cpu",
    }
    forward = 2 * (2 * 16 * 16 * 8) / 2 * 2 * 3
    assert step_flops(OperatorCase(**shape)) == forward
    assert step_flops(OperatorCase(**shape, pass_="backward")) == 2 * forward
    assert step_flops(OperatorCase(**shape, pass_="forward_backward")) == 3 * forward


@pytest.mark.parametrize("checkpointing", ["every-block", "sqrt"])
def test_recomputing_blocks_runs_them_once_more_without_the_head(checkpointing: str) -> None:
    head = 2 * 2 * 16 * 101 * 24
    blocks = forward_flops(GQA, 2, 16) - head
    assert recomputed_flops(case(checkpointing=checkpointing)) == blocks
    assert recomputed_flops(case(checkpointing=checkpointing, accumulate=3)) == 3 * blocks
    assert recomputed_flops(case(checkpointing=checkpointing, pass_="forward")) == 0


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_keeping_the_products_recomputes_none(checkpointing: str) -> None:
    assert recomputed_flops(case(checkpointing=checkpointing)) == 0


def test_recomputation_is_not_in_the_model_flops() -> None:
    assert step_flops(case(checkpointing="every-block")) == step_flops(case())


def test_of_a_piece_of_code_the_measurement_tells():
    assert step_flops(MicroCase(subject="matmul", piece="torch", sizes=(8,), device="cpu")) is None


# The phases of each pass, and costs averaged over lengths.


def test_every_pass_has_phases_and_begins_with_forward() -> None:
    assert set(PHASES) == set(get_args(Pass))
    assert all(phases[0] == "forward" for phases in PHASES.values())


def test_every_pass_of_an_operator_has_phases() -> None:
    assert set(OPERATOR_PHASES) == set(get_args(OperatorPass))


def test_a_cost_is_averaged_over_a_cycle() -> None:
    fixed = Workload(batch_size=1, seq_len=8)
    varying = Workload(batch_size=1, seq_len=8, varying_seq_lens=(2, 4, 6))
    assert mean_over_lengths(fixed, float) == 8
    assert mean_over_lengths(varying, float) == 4
    assert mean_over_lengths(varying, lambda length: length**2) == (4 + 16 + 36) / 3
