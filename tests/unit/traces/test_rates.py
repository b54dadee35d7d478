"""Shares of a datasheet's roof."""

import json

import numpy as np
import pytest

from peakward.hardware.devices import device
from peakward.traces.origins import launched
from peakward.traces.rates import by_operator, compute_type, roof_share, work
from peakward.traces.table import NONE
from peakward.traces.trace import Trace

from .own import COMPILED
from .plain_readers import real
from .rows import Rows

H200 = device("h200-141")


@pytest.mark.parametrize(
    ("dtype", "kernel", "expected"),
    [
        ("c10::BFloat16", "nvjet_sm90_tst_256x128", "bf16"),
        ("float", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_ffma", "fp32"),
        ("float", "cutlass_80_simt_sgemm_256x128_8x4_nt_align1", "fp32"),
        ("float", "cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4", "tf32"),
        ("float", "nvjet_sss_128x64", None),
        ("double", "dgemm", None),
        (None, "gemm", None),
    ],
)
def test_the_type_is_told_by_operands_and_by_kernels_names(dtype, kernel, expected):
    assert compute_type(dtype, [kernel]) == expected


def test_the_roof_is_the_longer_of_two_times():
    # 989 TFLOP/s and 4.8 TB/s: 1 ms of compute, 0.5 ms of memory.
    work = {"flops": 989_000_000_000, "n_bytes": 2_400_000_000}
    assert roof_share(H200, "bf16", **work, time_s=2e-3) == pytest.approx(0.5)
    assert roof_share(H200, "bf16", flops=None, n_bytes=2_400_000_000, time_s=1e-3) == 0.5
    assert roof_share(H200, None, **work, time_s=2e-3) is None, "a type without a known peak"
    assert roof_share(H200, "bf16", **work, time_s=0.9e-3) is None, "beyond the roof"
    assert roof_share(H200, "bf16", flops=None, n_bytes=None, time_s=1.0) is None


def test_matmuls_of_a_real_step_lie_under_the_roof():
    rates = Trace.open(COMPILED).operators(H200)
    matmuls = [each for each in rates if each.name == "aten::mm" and each.flops > 1e11]
    assert len(matmuls) == 6
    assert all(0.3 < each.roof_share < 0.9 for each in matmuls)
    assert all(each.roof_share is None for each in Trace.open(COMPILED).operators())


MM = json.dumps([[[3, 4], [4, 5]], ["float", "float"], ["", ""]])
ADD = json.dumps([[[3, 5], [3, 5]], ["float", "float"], ["", ""]])
MM_FLOPS, MM_BYTES, ADD_BYTES = 120, (12 + 20 + 15) * 4, 3 * 15 * 4


def found(builder):
    table, launches = builder.table()
    answer = work(table, launched(launches))
    names = [table.names[table.host.name[row]] for row in answer.row]
    columns = (answer.flops, answer.n_bytes, answer.kernels, answer.kernel_ns)
    return dict(zip(names, zip(*(column.tolist() for column in columns), strict=True), strict=True))


def test_kernels_belong_to_the_operator_that_launched_them():
    builder = Rows().op("aten::mm", 0, 10, shape=MM).op("aten::add", 20, 30, shape=ADD)
    builder.launch("gemm", 2, gpu=(100, 150)).launch("splitk", 5, gpu=(150, 160))
    builder.launch("add", 25, gpu=(160, 167)).launch("other", 40, gpu=(170, 180))
    assert found(builder) == {
        "aten::mm": (MM_FLOPS, MM_BYTES, 2, 60),
        "aten::add": (NONE, ADD_BYTES, 1, 7),
    }


def test_an_operator_around_another_counts_nothing_twice():
    builder = Rows().op("aten::matmul", 0, 30, shape=MM).op("aten::mm", 10, 20, shape=MM)
    builder.launch("copy", 5, gpu=(100, 110)).launch("gemm", 15, gpu=(110, 150))
    assert found(builder) == {"aten::mm": (MM_FLOPS, MM_BYTES, 1, 40)}


def test_what_a_matmul_copies_for_itself_is_its_own_time():
    builder = Rows().op("aten::mm", 0, 30, shape=MM).op("aten::add", 5, 8, shape=ADD)
    builder.launch("add", 6, gpu=(100, 110)).launch("gemm", 15, gpu=(110, 150))
    assert found(builder) == {"aten::mm": (MM_FLOPS, MM_BYTES, 2, 50)}


def test_operators_that_launch_nothing_and_threads_that_only_wait():
    builder = Rows().op("aten::mm", 0, 30, shape=MM).op("aten::mm", 40, 50)
    builder.launch("k", 5, gpu=(6, 7), thread="other").launch("k", 45, gpu=(50, 60))
    assert found(builder) == {}


def test_rates_of_operators_of_one_shape():
    builder = Rows()
    for at in (0, 100):
        builder.op("aten::mm", at, at + 10, shape=MM).launch("g", at + 5, gpu=(at + 20, at + 40))
    builder.op("aten::add", 50, 60, shape=ADD).launch("a", 55, gpu=(60, 65))
    table, launches = builder.table()
    groups = by_operator(table, work(table, launched(launches)))
    assert [table.names[name] for name in groups.name] == ["aten::mm", "aten::add"]
    assert groups.instances.tolist() == [2, 1]
    assert groups.flops.tolist() == [2 * MM_FLOPS, NONE]
    assert groups.kernel_ns.tolist() == [40, 5]
    assert groups.flops_per_s[0] == 2 * MM_FLOPS / 40e-9
    assert np.isnan(groups.flops_per_s[1])
    assert groups.bytes_per_s.tolist() == [2 * MM_BYTES / 40e-9, ADD_BYTES / 5e-9]


def test_nothing_recorded():
    table, launches = Rows().op("aten::mm", 0, 9).launch("k", 5, gpu=(6, 7)).table()
    answer = work(table, launched(launches))
    assert len(answer.row) == 0
    assert answer.of_gpu.tolist() == [NONE]
    assert len(by_operator(table, answer).name) == 0
    table, launches = Rows().table()
    empty = work(table, launched(launches))
    assert len(empty.row) == len(empty.of_gpu) == 0


def test_a_real_model():
    """BERT small: 4 layers of width 512, 141 tokens, 30,522 words, biases and pooled head apart."""
    table, launches = real("h100_bert_small.json.gz")
    answer = work(table, launched(launches))
    layers = 4 * (4 * 512 * 512 + 2 * 512 * 2048)
    head = 512 * 512 + 512 * 30_522
    attention = 4 * 2 * 2 * 8 * 141 * 141 * 64
    expected = 2 * 141 * (layers + head) + attention
    assert answer.flops[answer.flops != NONE].sum() == expected == 8_192_059_392
    rates = by_operator(table, answer)
    assert np.nanmax(rates.flops_per_s) < 989e12
    assert np.nanmax(rates.bytes_per_s) < 3.35e12
