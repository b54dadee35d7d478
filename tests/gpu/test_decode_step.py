"""The fused step of decode, compiled, launched with dependences, and replayed from a graph."""

import msgspec
import pytest

from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics.verify import verify
from peakward.models import presets
from peakward.records.case import Configuration, ModelCase, Workload

pytestmark = pytest.mark.gpu
FUSED = (("decode_step", "fused"),)
SEPARATE = {"attention": "flash-decode", "norm": "fused", "rope": "fused", "swiglu": "fused"}


def case(model, weights, **configuration):
    return ModelCase(
        model=msgspec.structs.replace(presets.model(model), n_layers=4),
        workload=Workload(batch_size=1, seq_len=777, pass_="decode"),
        configuration=Configuration(precision="bf16", weights=weights, **configuration),
        device="cuda",
    )


@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
@pytest.mark.parametrize("model", ["small", "2.7B"])
def test_it_errs_no_more_than_separate_kernels_do(model, weights):
    found = verify(case(model, weights, **SEPARATE), case(model, weights, more=FUSED), "reordered")
    assert found.verdict == "holds", found


@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
def test_replays_on_each_others_heels_are_equal(weights):
    """A kernel that read before its wait would read another's results, now and then."""
    with prepare(case("2.7B", weights, more=FUSED, cuda_graphs=True)) as step:
        for _ in range(8):
            for _ in range(100):
                step.step()
            found = step.outputs()
            assert found.n_nonfinite == 0
            assert found.repeats
