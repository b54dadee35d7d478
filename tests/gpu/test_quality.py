"""Rounded weights on a GPU: the kernels multiply what is read, and every way reads a text in bf16."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gguf_files import small_model
from peakward.kernels import int4_matmul
from peakward.kernels.ops.quantized_matmul import calibrated, reference
from peakward.lab.micro import stored_weights
from peakward.lab.micro.subjects import build
from peakward.lab.micro.work import piece_work
from peakward.lab.quality import caches, subjects, weights
from peakward.records.case import MicroCase, QualityCase, Source

pytestmark = pytest.mark.gpu


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}. " for n in range(600)))
    return Source(str(path))


def case(text, subject, way, sizes, model=None):
    return QualityCase(subject=subject, way=way, sizes=sizes, text=text, model=model, device="cuda")


def losses(found):
    return subjects.build(found).run(lambda _n: None).quality.losses[0].losses


@pytest.mark.parametrize("group", [32, 128])
def test_the_kernel_multiplies_calibrated_weights(group):
    generator = torch.Generator("cuda").manual_seed(0)
    weight, x = (
        torch.randn(n, 512, generator=generator, device="cuda", dtype=torch.bfloat16)
        for n in (256, 4)
    )
    inputs = torch.randn(1024, 512, generator=generator, device="cuda").cumsum(1)
    held = calibrated.int4_weight(weight, inputs.mT @ inputs, group=group)
    exact = reference.int4_matmul(x.double(), *held)
    error = (int4_matmul(x, *held).double() - exact).norm() / exact.norm()
    # The result is rounded once to bf16, whose unit roundoff is 2^-8; sums are in fp32.
    assert float(error) < 2.0**-8
    nearest = reference.int4_weight(weight, group=group)
    wide, wanted = inputs.double(), inputs.double() @ weight.double().mT
    lost = [float((reference.int4_matmul(wide, *each) - wanted).norm()) for each in (held, nearest)]
    assert lost[0] < 0.5 * lost[1]


def test_a_model_is_trained_to_the_same_bits(text, monkeypatch):
    """Each way of a study is read in its own process, which trains the model."""
    monkeypatch.setitem(caches.TRAINED, "cuda", (4, 256, 32, 40))
    once, again = (
        caches.trained(case(text, "cache", "contiguous", ()), 4, 224)[0] for _ in range(2)
    )
    for name, parameter in once.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name]), name


def test_every_way_of_rounding_reads_a_text(text, monkeypatch):
    monkeypatch.setitem(caches.TRAINED, "cuda", (2, 64, 8, 60))
    found = {way: losses(case(text, "weights", way, (4, 64, 16, 4))) for way in weights.WAYS}
    assert {len(each) for each in found.values()} == {8}
    for way, each in found.items():
        assert each == pytest.approx(found["dense"], abs=0.5), way
    assert found["int8"] == pytest.approx(found["dense"], abs=0.05)
    assert found["int4"] != found["int4, calibrated"] != found["dense"]


def test_levers_are_read_with_a_real_model(text, tmp_path):
    model = str(small_model(tmp_path / "small.gguf"))
    ways = ("dense, static", "int8, static", "dense, int8", "dense, fp8", "int8, int8")
    found = {way: losses(case(text, "levers", way, (4, 32), model)) for way in ways}
    assert len(set(found.values())) == len(ways)
    for each in found.values():
        assert each == pytest.approx(found["dense, static"], abs=0.2)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("piece", stored_weights.PIECES)
def test_a_product_is_one_launch_and_as_near_fp64_as_its_rounding(piece, rows):
    found = MicroCase(
        subject="stored-weights",
        piece=piece,
        sizes=(rows, 1024, 512),
        precision="bf16",
        device="cuda",
    )
    made = build(found)
    made.run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        made.run()
    counts = {each.key: each.count for each in seen.key_averages()}
    assert counts["cudaGraphLaunch"] == 1
    assert not {"cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync"} & counts.keys()
    # Half a step of a largest of some 3 in 127 or in 7, over 1,024 products; dense: bf16's roundings.
    most = {"dense": 2.0**-7, "int4": 0.25}.get(piece, 0.03)
    assert 0 < piece_work(made).difference < most
