"""What precision, batch size and fusion do to a place."""

import pytest

from peakward.studies.roofline import moves


def value(figures, said, part):
    return next(each for name, each in figures(said).items() if part in name)


def test_precision_moves_ridge_and_layer(cells, figures, roofed):
    eager, *others = moves.precision(cells, roofed())
    assert len(others) == 2
    assert "From fp32 to bf16-mixed (micro, eager, batch 16)" in eager.text
    assert figures(eager)["ridge, fp32"] == pytest.approx(50)
    assert figures(eager)["ridge, bf16-mixed"] == pytest.approx(800)
    assert "operations/byte, the layer " in eager.text
    assert "the ridge passes" in eager.text
    assert "(compute to memory)" in eager.text


def test_batch_moves_layers_and_leaves_what_is_elementwise(cells, figures, roofed):
    said, *others = moves.batch(cells, roofed())
    assert len(others) == 5
    assert "From batch 1 to 16 (micro, fp32, eager) the layer " in said.text
    found = figures(said)
    layers = [found[name] for name in found if name.startswith("operations/byte of ")][:2]
    assert layers[1] > 1.5 * layers[0]
    before, after = (found[name] for name in found if "elementwise" in name)
    assert after == pytest.approx(before, rel=0.1)


def test_one_batch_says_nothing_of_batches(cells, roofed):
    assert list(moves.batch(cells[:1], roofed())) == []


def test_fusion_saves_bytes(cells, figures):
    found = list(moves.fusion(cells))
    assert len(found) == 4
    for said in found:
        assert figures(said)["bytes"] < figures(said)["bytes, eager"]
        assert value(figures, said, "bytes but of linear layers") < 1
        assert "fused attention" in said.text or "compiled" in said.text
