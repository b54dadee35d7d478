"""What CUDA dispatches otherwise than a CPU, for which the closed form is written."""

import msgspec
import pytest

from peakward.lab.levers.capture import capture

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_it_is_the_norms_alone(norm, precision, make_case):
    on_cuda = make_case(shape={"norm": norm}, precision=precision)
    on_cpu = msgspec.structs.replace(on_cuda, device="cpu")
    captured, expected = (
        {each for each in capture(case).operators if not (each.module or "").endswith("norm")}
        for case in (on_cuda, on_cpu)
    )
    assert captured == expected
