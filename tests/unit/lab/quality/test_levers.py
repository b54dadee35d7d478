"""A real model as levers leave it, of a small file, on a CPU."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gguf_files import small_model
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference import pretrained
from peakward.lab.inference.quantised import linears, load_quantised
from peakward.lab.models.decoder import build as build_decoder
from peakward.lab.models.layers import QuantisedLinear
from peakward.lab.quality import levers, positions, subjects, weights
from peakward.levers.registry import AXES
from peakward.levers.weights import CALIBRATED, SIZES, TEXT
from peakward.records.case import QualityCase, Source
from peakward.records.errors import PeakwardError


def sums(numbers):
    return "".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in numbers)


@pytest.fixture
def text_of(tmp_path):
    def make(numbers):
        path = tmp_path / "text.txt"
        path.write_text(sums(numbers))
        return Source(str(path))

    return make


@pytest.fixture
def read(tmp_path, text_of):
    text = text_of(range(200))
    model = str(small_model(tmp_path / "small.gguf"))

    def losses(way, sizes=(3, 32), named=model):
        case = QualityCase(
            subject="levers",
            way=way,
            sizes=sizes,
            text=text,
            model=named,
            device="cpu",
        )
        return subjects.build(case).run(lambda _n: None).quality.losses[0].losses

    return losses


def test_a_way_for_every_value_of_both_axes():
    values = {axis.name: {axis.default} for axis in AXES if axis.name in ("weights", "kv_cache")}
    for axis in AXES:
        for each in axis.levers:
            for field, value in each.sets:
                if field in values:
                    values[field].add(value)
    both = {
        f"{each}, {kept}" for each in values["weights"] for kept in values["kv_cache"] - {"none"}
    }
    assert both == set(levers.WAYS)


def test_fewer_bits_of_weights_and_of_the_cache_each_change_the_loss(read):
    dense, weights, cache, both = (
        read(way) for way in ("dense, static", "int8, static", "dense, int8", "int8, int8")
    )
    assert len(dense) == 3
    assert len({dense, weights, cache, both}) == 4
    for each in (weights, cache, both):
        assert each == pytest.approx(dense, abs=0.05)


@pytest.fixture
def bytes_read(text_of, monkeypatch):
    """Reads with a decoder of bytes, 128 wide, as a way keeps it."""

    def losses(way, *, rows=4):
        model = build_decoder(
            positions.shape_of("rope", 2, 128, 32),
            attention=implementation("sdpa"),
            device="cpu",
            dtype=torch.float32,
            seed=0,
        )
        words = SimpleNamespace(
            encode=lambda text: np.frombuffer(text.encode(), np.uint8).astype(int)
        )
        loaded = SimpleNamespace(model=model.requires_grad_(False).eval(), words=words)
        monkeypatch.setattr(levers, "load", lambda *_, **__: loaded)
        case = QualityCase(
            subject="levers",
            way=way,
            sizes=(rows, 32),
            text=text_of(range(600)),
            model="of bytes",
            device="cpu",
        )
        found = subjects.build(case).run(lambda _n: None).quality.losses[0].losses
        return found, loaded.model

    return losses


@pytest.mark.parametrize("group", [32, 128])
def test_calibrated_weights_read_nearer_to_the_dense_model(group, bytes_read, monkeypatch):
    nearest = partial(weights.to_int4, group=group)
    monkeypatch.setitem(levers.WEIGHTS, "int4:128", nearest)
    (dense, plain), (_, rounded), (read, calibrated) = (
        bytes_read(f"{way}, static") for way in ("dense", "int4:128", f"int4:{group}-calibrated")
    )
    assert len(read) == len(dense) == 4
    ids = torch.tensor([list(sums([40, 41]).encode())])
    exact, by_nearest, by_text = (each.float()(ids) for each in (plain, rounded, calibrated))
    assert (by_text - exact).norm() < 0.95 * (by_nearest - exact).norm()
    scale = calibrated.blocks[0].ff.up.weight.float().unflatten(1, (-1, group))
    assert {len(each.unique()) <= 16 for each in scale.flatten(0, 1)} == {True}


def test_calibration_sees_rows_that_are_not_read(bytes_read, monkeypatch):
    given = []
    way = "int4:128-calibrated"
    monkeypatch.setitem(levers.WEIGHTS, way, lambda _model, each: given.append(each.seen))
    bytes_read(f"{way}, static", rows=3)
    (seen,) = given
    assert seen.shape == (levers.SEEN, 33)
    every = "".join(chr(each) for each in seen.flatten())
    assert every == sums(range(600))[3 * 33 :][: seen.numel()]


def test_what_cannot_be_read_is_refused(read):
    with pytest.raises(PeakwardError, match="expected a real model"):
        read("dense, static", named=None)
    with pytest.raises(PeakwardError, match="expected a way of levers"):
        read("int3, static")


@pytest.mark.parametrize("way", ["int8", "int4:32-calibrated"])
def test_a_text_is_generated_with_the_weights_that_are_judged(way, tmp_path, monkeypatch):
    name, loaded = str(small_model(tmp_path / "small.gguf")), []

    def load(*named, **how):
        loaded.append(pretrained.load(*named, **how))
        return loaded[-1]

    monkeypatch.setattr(levers, "load", load)
    subjects.build(
        QualityCase(
            subject="levers", way=f"{way}, static", sizes=SIZES, text=TEXT, model=name, device="cpu"
        )
    )
    made = load_quantised(
        name,
        way,
        text=TEXT if way in CALIBRATED else None,
        attention="sdpa",
        device="cpu",
        dtype=torch.bfloat16,
    ).model
    judged = [each.weight for each in linears(loaded[0].model.blocks)]
    kept = [each for each in made.blocks.modules() if isinstance(each, QuantisedLinear)]
    assert len(kept) == len(judged) == 8
    for each, weight in zip(kept, judged, strict=True):
        assert torch.equal(each.dequantised(torch.float32), weight)
        assert each.scale.dtype == torch.bfloat16
    assert {each.dtype for each in made.parameters()} == {torch.bfloat16}
    assert made.readout.head.weight is made.embedding.weight
