"""Losses on real text, on a CPU at the smallest sizes: exact caches agree, and what is kept is counted."""

from types import SimpleNamespace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

from peakward.kernels.ops.attention.api import implementation
from peakward.kernels.ops.quantized_matmul import reference
from peakward.lab.data.tokenizer import ByteTokenizer
from peakward.lab.inference.quantised import linears
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.models import decoder
from peakward.lab.models.layers import SCALE_DTYPE
from peakward.lab.quality import caches, positions, subjects
from peakward.lab.quality.score import WARM_UP_STEPS, by_stretch
from peakward.records.case import QualityCase, Source
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import Positions
from peakward.studies.positions import SCALED


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in range(600)))
    return Source(str(path))


def case(text, subject, way, sizes):
    return QualityCase(subject=subject, way=way, sizes=sizes, text=text, device="cpu")


def score(found):
    return subjects.build(found).run(lambda _n: None)


def test_caches_read_one_text_with_one_model(text, monkeypatch):
    monkeypatch.setitem(caches.TRAINED, "cpu", (1, 64, 4, 30))
    found = {
        way: score(case(text, "cache", way, (2, 32, 32, 16)))
        for way in ("contiguous", "paged", "int4", "window")
    }
    losses = {way: each.quality.losses[0].losses for way, each in found.items()}
    assert len(losses["contiguous"]) == 2
    assert losses["paged"] == pytest.approx(losses["contiguous"], rel=1e-5)
    assert losses["int4"] != losses["contiguous"] != losses["window"]
    kept = {way: each.quality.kept_bytes for way, each in found.items()}
    # Keys and values of 64 tokens in fp32: one layer, two heads of 32; a ring keeps 16 of them.
    assert kept["contiguous"] == 2 * 64 * 2 * 32 * 4
    assert kept["window"] == kept["contiguous"] // 4
    assert kept["int4"] < kept["contiguous"] / 4
    assert len(found["paged"].run.steps_s) == 32 - 3


def test_weights_beside_a_cache_are_those_that_kernels_multiply_by(text, monkeypatch):
    """Rounded before they are cut to the compute type, with the scales' own type."""
    shape, loaded, read = positions.shape_of("rope", 1, 64, 64), [], []

    def load(_name, *, dtype, attention, device):
        made = decoder.build(
            shape, attention=implementation(attention), device=device, dtype=dtype, seed=0
        )
        loaded.append([each.weight.clone() for each in linears(made.blocks)])
        return SimpleNamespace(model=made, words=ByteTokenizer())

    monkeypatch.setattr(caches, "load", load)
    monkeypatch.setitem(caches.TYPES, "cpu", torch.bfloat16)
    monkeypatch.setattr(caches, "read", lambda model, *_: read.append(linears(model.blocks)))
    found = case(text, "cache", caches.RECIPE, (1, 8, 8, 4))
    subjects.build(replace(found, model="a real one")).run(lambda _n: None)
    for old, each in zip(loaded[0], read[0], strict=True):
        stored, scale = reference.int4_weight(old, group=64)
        exact = reference.int4_dequantized(
            stored, scale.to(SCALE_DTYPE), None, torch.bfloat16, group=64
        )
        assert torch.equal(each.weight, exact)
        before = reference.int4_rounded(old.bfloat16(), group=64)  # As it was.
        assert not torch.equal(each.weight, before.bfloat16())


@pytest.mark.parametrize("way", caches.WAYS)
def test_no_timed_step_of_a_cache_is_the_first_of_its_sizes(text, monkeypatch, way):
    """cuDNN's attention is planned at the first call of each sizes and strides, for longer than a step."""
    monkeypatch.setitem(caches.TRAINED, "cpu", (1, 64, 2, 1))
    at_step, known = [], set()

    def heard(*tensors, attn_mask=None, **others):
        given = (each for each in (*tensors, attn_mask) if each is not None)
        known.add(tuple((each.shape, each.stride()) for each in given))
        return attention(*tensors, attn_mask=attn_mask, **others)

    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", heard)
    work = subjects.build(case(text, "cache", way, (2, 32, 32, 16)))
    run = work.run(lambda _n: at_step.append(len(known))).run
    assert len(run.steps_s) == len(at_step) - WARM_UP_STEPS == 29
    assert known, "the prompt at least is attended to by torch"
    assert at_step[-1] == at_step[WARM_UP_STEPS - 1]


def test_a_text_that_a_cache_cannot_hold_is_refused_before_it_is_read():
    shape = positions.shape_of("rope", 1, 64, 64)
    model = decoder.build(
        shape, attention=implementation("sdpa"), device="cpu", dtype=torch.float32, seed=0
    )
    cache = ContiguousCache(shape, n_rows=1, capacity=40, device="cpu", dtype=torch.float32)
    with pytest.raises(PeakwardError, match="at most 40 tokens"):
        caches.read(model, cache, torch.zeros((1, 65), dtype=torch.int64), 32, lambda _n: None)
    assert cache.lengths == [0]


def test_positions_are_trained_and_read_beyond_their_length(text):
    found = score(case(text, "positions", "alibi", (1, 32, 16, 4, 4, 40)))
    places = [each.where for each in found.quality.losses]
    assert places == ["0 to 16", "16 to 32", "32 to 64"]
    within = torch.tensor(found.quality.losses[0].losses).mean()
    assert within < 4.5, "bytes drawn at random would take 5.5 nats"
    assert len({len(each.losses) for each in found.quality.losses}) == 1


def test_each_kind_of_positions_has_a_way():
    assert sorted(positions.WAYS.values()) == sorted(get_args(Positions))
    assert positions.WAYS[SCALED] == "sinusoidal"


def test_no_byte_read_was_trained_on(text):
    found = case(text, "positions", "rope", (1, 32, 16, 2, 4, 1))
    seen, held_out = positions.tokens(found, 32)
    apart = positions.tokens(found, 32, n_rows=3)[1]
    assert held_out.shape[1] == apart.shape[1] == 33
    assert apart.shape[0] == 3
    whole = seen.tolist()
    last = whole[-100:]
    assert all(row.tolist() != last[: len(row)] for row in held_out)


@pytest.mark.parametrize(
    ("subject", "way", "sizes", "said"),
    [
        ("cache", "none", (1, 1, 1, 1), "expected a way of cache"),
        ("cache", "int8", (1, 1), "expected 4 positive sizes"),
        ("positions", "rope", (1, 33, 16, 2, 4, 1), "divides by 32"),
        ("positions", "rope", (1, 32, 16_000, 2, 4, 1), "name a longer one"),
    ],
)
def test_what_cannot_be_read_is_refused(text, subject, way, sizes, said):
    with pytest.raises(PeakwardError, match=said):
        subjects.build(case(text, subject, way, sizes)).run(lambda _n: None)


def test_stretches_are_whole():
    found = by_stretch(torch.arange(10.0).reshape(2, 5), 2)
    assert found == (0.5, 2.5, 5.5, 7.5)
