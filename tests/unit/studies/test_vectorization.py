"""What `vectorization` plans, tables and concludes from known figures."""

import msgspec
import pytest

from peakward.records.calibration import MatmulRate
from peakward.records.measurement import Validity
from peakward.studies import doubts, vectorization


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return vectorization.STUDY.parts(gathered(vectorization.STUDY, here, **options), here)

    return make


def test_what_it_says(made, figures):
    conclusions = made().conclusions
    said = [each.text for each in conclusions]
    assert said[0] == (
        "A product of 128 × 128: python loops takes 500× the time of numpy (493× to 507× within "
        "one process of each)."
    )
    assert said[2].startswith("A product of 2048 × 2048: numpy takes 2.00× the time of torch")
    assert figures(conclusions[3])["exponent"] == pytest.approx(3)
    # A slope of three known to 1% each, over a factor of 4: the ends are ±√2 % / ln 4 away.
    assert figures(conclusions[3])["exponent, high end"] == pytest.approx(3.01, abs=0.001)
    assert said[-1].startswith("The difference of torch in fp32 from fp64 is 1.00e-7 of")


def test_an_exponent_of_doubtful_times_says_so(setting, gathered):
    here = setting("small", "cpu")
    readings = gathered(vectorization.STUDY, here)
    parts = vectorization.STUDY.parts(readings, here)
    shaky = [
        msgspec.structs.replace(each, validity=Validity(verdict="unstable", reasons=("a reason",)))
        for each in readings
    ]
    (grown,) = [each for each in doubts.marked(parts.conclusions, shaky) if "power of" in each.text]
    assert grown.text.endswith("(Both times behind it are unstable or throttled.)")


def test_shares_are_said_to_be_of_a_measured_product(setting, calibration, gathered, figures):
    here = setting("small", "cpu")
    rates = tuple(
        MatmulRate(compute_type="fp32", size=n, flops_per_s=rate)
        for n, rate in ((1024, 2e9), (2048, 4e9))
    )
    readings = gathered(vectorization.STUDY, here)
    readings.calibration = msgspec.structs.replace(calibration("cpu"), matmul=rates)
    parts = vectorization.STUDY.parts(readings, here)
    *_, (said) = [each for each in parts.conclusions if "square product" in each.text]
    assert (
        "beside the fastest square product of torch measured here in fp32: rate 2.00 GFLOP/s, n 32, of the "
        "square product 50.0%, the square product's rate 4.00 GFLOP/s, the square product's n 2,048."
    ) in said.text
    assert figures(said)["of the square product"] == pytest.approx(figures(said)["rate"] / 4e9)
    assert not any("peak" in each.text for each in parts.conclusions)


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()


def test_loops_stay_small_and_numpy_stays_on_the_cpu(setting):
    for device in ("cpu", "cuda"):
        plan = vectorization.STUDY.plan(setting("full", device))
        loops = [case for case, _ in plan if case.piece == "python loops"]
        assert max(case.sizes[0] for case in loops) == 256
        assert {case.device for case, _ in plan if case.piece == "numpy"} == {"cpu"}


def test_a_row_for_each_way_and_size(made, rows):
    (table,) = made().tables
    found = rows(table)
    assert [row["n"] for row in found if row["by"] == "python loops"] == [32, 64, 128]
    assert len(found) == 3 + 7 + 7
    assert found[0]["rate"] == pytest.approx(2e9 / 1000)
    assert {row["of the square product"] for row in found} == {None}, "no rate was calibrated"


def test_on_a_gpu_no_table_mixes_devices(made, rows):
    found = made("cuda", "corners")
    cpu, gpu = found.tables
    assert (cpu.title, gpu.title) == ("Products on the CPU", "Products on the GPU")
    assert {row["by"] for row in rows(cpu)} == {"python loops", "numpy"}
    assert {row["by"] for row in rows(gpu)} == {"torch"}
    assert any("run on the CPU, whatever the device" in note for note in found.notes)


def test_shares_are_of_the_calibrated_device_and_type(setting, calibration, gathered, rows):
    here = setting("corners", "cuda")
    rates = tuple(
        MatmulRate(compute_type=kind, size=8192, flops_per_s=rate)
        for kind, rate in (("fp32", 4e12), ("bf16", 8e12))
    )
    of = msgspec.structs.replace(calibration("cuda"), matmul=rates)
    readings = gathered(vectorization.STUDY, here)
    readings.calibration = of
    tables = vectorization.STUDY.parts(readings, here).tables
    shares = {
        (row["by"], row["precision"]): row["of the square product"]
        for table in tables
        for row in rows(table)
    }
    assert shares["torch", "fp32"] == pytest.approx(2e9 / 4e12)
    assert shares["torch", "bf16"] == pytest.approx(4e9 / 8e12)
    assert shares["torch", "tf32"] is None, "not calibrated"
    assert shares["numpy", "fp32"] is None, "on another device"
