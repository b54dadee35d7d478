"""A real model as levers leave it, of a small file, on a CPU."""

import pytest

from gguf_files import small_model
from peakward.lab.quality import levers, subjects
from peakward.levers.registry import AXES
from peakward.records.case import QualityCase, Source
from peakward.records.errors import PeakwardError


@pytest.fixture
def read(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in range(200)))
    model = str(small_model(tmp_path / "small.gguf"))

    def losses(way, sizes=(3, 32), named=model):
        case = QualityCase(
            subject="levers",
            way=way,
            sizes=sizes,
            text=Source(str(text)),
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


def test_what_cannot_be_read_is_refused(read):
    with pytest.raises(PeakwardError, match="expected a real model"):
        read("dense, static", named=None)
    with pytest.raises(PeakwardError, match="expected a way of levers"):
        read("int3, static")
