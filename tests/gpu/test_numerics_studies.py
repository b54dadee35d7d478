"""What the studies of numerics look at on a GPU, at sizes that take seconds."""

import pytest
import torch

from peakward.lab.debugging import story
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import probe
from peakward.lab.micro import formats
from peakward.lab.micro.work import piece_work
from peakward.lab.numerics import subjects
from peakward.records.case import MicroCase, NumericsCase, Source
from peakward.studies.scope import micro

pytestmark = pytest.mark.gpu
TEXT = Source("python-topics")
BOUNDS = {"fp32": 2**-18, "tf32": 2**-9, "fp16": 2**-9, "bf16": 2**-6, "fp8 e4m3": 2**-2}
BOUNDS |= {"fp8 e5m2": 2**-1, "int8": 4 / 127}


def look(subject, way, *sizes, **fields):
    case = NumericsCase(subject=subject, way=way, sizes=sizes, device="cuda", **fields)
    return subjects.look(case)


@pytest.mark.parametrize("piece", formats.PIECES)
def test_a_product_in_each_format(piece):
    precision = "tf32" if piece == "tf32" else "fp32"
    case = MicroCase(
        subject="matmul-formats", piece=piece, sizes=(256,), precision=precision, device="cuda"
    )
    with prepare(case) as step:
        step.step()
        assert piece_work(step.piece).difference < BOUNDS[piece]


@pytest.mark.parametrize("piece", list(formats.FLOATS))
def test_scores_in_each_type(piece):
    precision = "tf32" if piece == "tf32" else "fp32"
    sizes = (2, 4, 128, 64)
    case = MicroCase(subject="scores", piece=piece, sizes=sizes, precision=precision, device="cuda")
    with prepare(case) as step:
        step.step()
        assert piece_work(step.piece).difference < BOUNDS[piece]


@pytest.mark.parametrize("way", ["fp16", "bf16"])
def test_a_gpus_autocast_keeps_exponentials_and_norms_in_fp32(way):
    narrow = {"fp16": "float16", "bf16": "bfloat16"}[way]
    found = {(each.where, each.given): each.dtype for each in look("operators", way).types}
    assert found["torch.mm", "float32"] == narrow
    assert found["torch.exp", narrow] == "float32"
    assert found["torch.nn.functional.layer_norm", narrow] == "float32"
    assert torch.ones(1, device="cuda").sum() == 1, "no call has broken the context"


def test_types_of_the_decoder():
    found = look("types", "bf16", 2, 16, model=micro()).types
    assert {each.dtype for each in found if each.kind == "logits"} == {"bfloat16"}
    assert {each.dtype for each in found if each.kind in ("loss", "gradient")} == {"float32"}


def test_roundings_of_a_trained_decoder():
    found = {
        (each.format, each.of, each.scaling): each.error
        for each in look("rounding", "trained", 1, 64, 32, 4, 20, text=TEXT).roundings
    }
    for kind in ("activations", "weights", "gradients"):
        order = ("fp32", "tf32", "bf16")
        errors = [found[name, kind, "none"] for name in order]
        assert errors == sorted(errors)


@pytest.mark.parametrize("way", ["tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8"])
def test_drift_stays_within_its_class(way):
    for each in look("drift", way, 2, 64, model=micro()).drifts:
        assert each.error <= each.bound


def test_the_story_turns_and_is_mended(monkeypatch):
    monkeypatch.setattr(story, "WARM_UP_STEPS", 20)

    def run(way):
        case = NumericsCase(
            subject="hunt", way=way, sizes=(2, 32, 32, 4, 60), text=TEXT, device="cuda"
        )
        return story.look(case, probe.environment("cuda"))

    found = run(story.AS_WRITTEN)
    assert found.hunt.outcome == "found"
    assert found.hunt.replayed_bitwise
    assert found.hunt.fault.operator == "aten.div.Tensor"
    assert found.zero_share[-1] == 1.0
    assert run(story.WITH_EPSILON).hunt.outcome == "finite"
