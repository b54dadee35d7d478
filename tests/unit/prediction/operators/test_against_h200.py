"""The closed form against steps that ran on a GPU, operator by operator.

`data/h200-torch-2.11.jsonl.gz` was recorded by `lab.levers.capture` on an NVIDIA H200 with torch
2.11.0+cu130: one JSON object a line, a case with its graph, or with the error by which torch
refused it. `tests/gpu/test_capture.py` does the same with live steps.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from peakward.levers.attention import AXIS as ATTENTION
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Checkpointing, DecoderAttention, ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import READ_BY_HOST, OpGraph

RECORDED = Path(__file__).parent / "data" / "h200-torch-2.11.jsonl.gz"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: ModelCase
    graph: OpGraph | None = None
    error: str | None = None


def steps() -> Iterator[Step]:
    with gzip.open(RECORDED, "rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=Step)


@pytest.fixture(scope="module")
def ran():
    # Since then linear layers in fp8 have kernels of their own, and tokens are multiplied beside sinusoids.
    return [
        each
        for each in steps()
        if each.graph is not None
        and each.case.configuration.precision != "fp8"
        and each.case.model.positions != "sinusoidal"
    ]


@pytest.fixture(scope="module")
def refused():
    return [each for each in steps() if each.error is not None]


def named(case):
    return msgspec.json.encode(case).decode()


def test_it_is_equal(ran):
    """Each operator with its count; only their order may differ, and a capture has what makes or changes a
    tensor: no read by the host."""
    differing = {}
    for each in ran:
        closed = {one for one in op_graph(each.case).operators if one.name != READ_BY_HOST}
        captured = set(each.graph.operators)
        if closed != captured:
            differing[named(each.case)] = (closed - captured, captured - closed)
    assert differing == {}


def test_what_torch_refused_is_refused_by_the_name_of_the_kernel(refused):
    accepted = []
    for each in refused:
        assert each.error == "RuntimeError: No available kernel. Aborting execution."
        kernel = each.case.configuration.attention.removeprefix("sdpa-")
        line = f"^expected inputs that torch's {kernel} attention takes, got "
        try:
            with pytest.raises(PeakwardError, match=line):
                op_graph(each.case)
        except pytest.fail.Exception:
            accepted.append(named(each.case))
    assert accepted == []


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("precision", tuple(each for each in get_args(Precision) if each != "fp8")),
        (
            "attention",
            tuple(each for each in get_args(DecoderAttention) if each not in ATTENTION.own_kernels),
        ),
        ("checkpointing", get_args(Checkpointing)),
    ],
)
def test_every_setting_of_torchs_was_recorded(ran, setting, values):
    assert {getattr(each.case.configuration, setting) for each in ran} == set(values)


@pytest.mark.parametrize("kernel", ["cudnn", "flash", "efficient"])
@pytest.mark.parametrize("direction", ["", "_backward"])
def test_every_fused_kernel_was_recorded(ran, kernel, direction):
    name = f"aten._scaled_dot_product_{kernel}_attention{direction}"
    assert any(each.name == name for step in ran for each in step.graph.operators)
