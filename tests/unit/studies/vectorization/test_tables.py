"""The tables of `vectorization`."""

import msgspec
import pytest

from peakward.records.calibration import MatmulRate
from peakward.studies import pieces, vectorization
from peakward.studies.vectorization import tables


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


def test_shares_are_of_the_calibrated_device_and_type(setting, calibration, gathered):
    here = setting("corners", "cuda")
    rates = tuple(
        MatmulRate(compute_type=kind, size=8192, flops_per_s=rate)
        for kind, rate in (("fp32", 4e12), ("bf16", 8e12))
    )
    of = msgspec.structs.replace(calibration("cuda"), matmul=rates)
    timed = pieces.read(vectorization.plan(here), gathered(vectorization, here))
    shares = {
        (each.case.piece, each.case.precision): tables.square_share(each, of) for each in timed
    }
    assert shares["torch", "fp32"] == pytest.approx(2e9 / 4e12)
    assert shares["torch", "bf16"] == pytest.approx(4e9 / 8e12)
    assert shares["torch", "tf32"] is None, "not calibrated"
    assert shares["numpy", "fp32"] is None, "on another device"
