"""Sweeps of a working set: every value as often as asked, past the L1."""

import importlib

import pytest
import torch

from peakward.lab.ops.sweep import reference


@pytest.fixture
def interpreted():
    pytest.importorskip("triton")
    module = importlib.import_module("peakward.lab.ops.sweep.triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(module)
    importlib.reload(module)


def test_the_reference_by_hand():
    assert reference.sweep(torch.tensor([1.0, 2.0, 4.0]), 3).item() == 21.0


@pytest.mark.parametrize(
    ("n_blocks", "n_sweeps", "n_programs"), [(1, 1, 1), (3, 1, 5), (3, 4, 5), (4, 3, 2), (5, 0, 2)]
)
def test_every_value_is_read_as_often_as_asked(interpreted, n_blocks, n_sweeps, n_programs):
    # A block's number in each of its values: whole numbers, which fp32 adds up exactly.
    values = torch.arange(n_blocks, dtype=torch.float32).repeat_interleave(interpreted.BLOCK) + 1
    sums = interpreted.sweep(values, n_sweeps, n_programs)
    assert sums.shape == (n_programs, interpreted.BLOCK)
    assert sums.sum() == reference.sweep(values, n_sweeps)


def test_programs_read_side_by_side_what_lies_side_by_side(interpreted):
    values = torch.arange(4, dtype=torch.float32).repeat_interleave(interpreted.BLOCK)
    sums = interpreted.sweep(values, 2, 4)
    assert sums[:, 0].tolist() == sums[:, -1].tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_for_a_gpu_all_reads_are_of_16_bytes_and_past_the_l1(capability):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from peakward.lab.ops.sweep.triton import BLOCK, N_WARPS, _sweep

    counts = ("n_blocks", "n_reads", "n_programs")
    signature = {"values_ptr": "*fp32", "sums_ptr": "*fp32"} | dict.fromkeys(counts, "i32")
    source = ASTSource(
        fn=_sweep,
        signature=signature | {"BLOCK": "constexpr"},
        constexprs={"BLOCK": BLOCK},
        attrs={(0,): [["tt.divisibility", 16]]},
    )
    target = GPUTarget("cuda", capability, 32)
    text = triton.compile(source, target=target, options={"num_warps": N_WARPS}).asm["ptx"]
    loads = [word for word in text.split() if word.startswith("ld.global")]
    assert set(loads) == {"ld.global.cg.v4.b32"}
    assert len(loads) == BLOCK * 4 // (16 * 32 * N_WARPS)
