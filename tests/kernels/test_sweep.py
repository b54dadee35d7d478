"""Sweeps of a working set: every value as often as asked, past the L1."""

import pytest
import torch

from ahead_of_time import compiled, entries
from peakward.kernels.ops.sweep import reference
from tiers import in_full

kernel = pytest.importorskip("peakward.kernels.ops.sweep.triton")


def test_the_reference_by_hand():
    assert reference.sweep(torch.tensor([1.0, 2.0, 4.0]), 3).item() == 21.0


@pytest.mark.parametrize(
    ("n_blocks", "n_sweeps", "n_programs"), [(1, 1, 1), (3, 1, 5), (3, 4, 5), (4, 3, 2), (5, 0, 2)]
)
def test_every_value_is_read_as_often_as_asked(device, n_blocks, n_sweeps, n_programs):
    # A block's number in each of its values: whole numbers, which fp32 adds up exactly.
    values = torch.arange(n_blocks, dtype=torch.float32).repeat_interleave(kernel.BLOCK) + 1
    sums = kernel.sweep(values, n_sweeps, n_programs)
    assert sums.shape == (n_programs, kernel.BLOCK)
    assert sums.sum() == reference.sweep(values, n_sweeps)


def test_programs_read_side_by_side_what_lies_side_by_side(device):
    values = torch.arange(4, dtype=torch.float32).repeat_interleave(kernel.BLOCK)
    sums = kernel.sweep(values, 2, 4)
    assert sums[:, 0].tolist() == sums[:, -1].tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize("capability", [90, *in_full([80])])
def test_compiled_for_a_gpu_all_reads_are_of_16_bytes_and_past_the_l1(capability, tmp_path):
    compiled("sweep", capability, ptx=tmp_path)
    text = entries(tmp_path, "_sweep")[-1]
    loads = [word for word in text.split() if word.startswith("ld.global")]
    assert set(loads) == {"ld.global.cg.v4.b32"}
    assert len(loads) == kernel.BLOCK * 4 // (16 * 32 * kernel.N_WARPS)
