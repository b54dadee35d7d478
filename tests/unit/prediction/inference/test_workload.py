"""A workload that cannot be served is refused in one line that says what to do."""

from typing import Any

import pytest
from hypothesis import given, settings

from peakward.prediction.inference.workload import validate
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload, Speculation, WeightFormat
from peakward.records.model_shape import ModelShape

from .drawn import services
from .served import SMALL, replace, workload


def drafted(draft: ModelShape = SMALL, draft_len: Any = 3, rate: Any = 0.5) -> ServingWorkload:
    return workload(speculation=Speculation(draft=draft, draft_len=draft_len, acceptance_rate=rate))


@settings(max_examples=30)
@given(services())
def test_what_can_be_served_is_let_through(service: tuple[ModelShape, ServingWorkload]) -> None:
    validate(*service)
    validate(SMALL, drafted())


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (workload(batch_size=0), "expected batch_size of at least 1, got 0: give"),
        (workload(prompt_len=-1), "expected prompt_len of at least 1, got -1: give"),
        (workload(output_len=1), "expected output_len of at least 2, got 1: the prefill gives"),
        (workload(prompt_len=60), "expected prompt_len + output_len of at most 64 for the model"),
        (workload(batch_size=1.5), "expected a serving workload, got one that is not: "),
        (workload(cache_type="int4"), "expected a serving workload, got one that is not: "),
        (
            workload(weights=WeightFormat(type="bf16", group_size=64)),
            "expected no group_size for bf16 weights, got 64: only quantised",
        ),
        (
            workload(weights=WeightFormat(type="int4", group_size=0)),
            "expected a group_size of at least 1, got 0: 128",
        ),
        (
            workload(weights=WeightFormat(type="fp8", zero_points=True)),
            "expected no zero_points for fp8 weights, got some: only int8",
        ),
        (drafted(draft_len=0), "expected a draft_len of at least 1, got 0: leave"),
        (drafted(rate=1.1), "expected an acceptance_rate from 0 to 1, got 1.1: it is"),
        (drafted(rate=float("nan")), "expected a"),
        (
            drafted(replace(SMALL, vocab_size=51)),
            "expected a draft of the target's vocabulary of 50, got 51: the target",
        ),
        (drafted(replace(SMALL, max_seq_len=20)), "of at most 20 for the model small-gqa, got 21"),
        (drafted(replace(SMALL, n_heads=3)), "expected n_kv_heads that divide n_heads 3, got 2"),
    ],
)
def test_what_cannot_is_refused(load: ServingWorkload, message: str) -> None:
    with pytest.raises(PeakwardError) as refused:
        validate(SMALL, load)
    assert message in str(refused.value)


def test_a_shape_that_cannot_be_is_refused() -> None:
    with pytest.raises(PeakwardError, match="expected n_layers of at least 1, got 0"):
        validate(replace(SMALL, n_layers=0), workload())
