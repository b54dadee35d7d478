"""Chains of loads: each implementation follows them as the reference does."""

import shutil

import pytest
import torch

from peakward.kernels.ops.pointer_chase import native, reference

COMPILER = shutil.which("g++")
CHAIN = torch.tensor([24, 0, 8, 16])
"""In bytes: 0 → 24 → 16 → 8 → 0."""


@pytest.fixture(scope="module")
def compiled():
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    return native.build((COMPILER,))


@pytest.fixture(params=["reference", "compiled", "interpreted"])
def chase(request):
    if request.param == "reference":
        return reference.chase
    if request.param == "interpreted":
        return pytest.importorskip("peakward.kernels.ops.pointer_chase.triton").chase
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(("n", "end"), [(0, 0), (1, 24), (2, 16), (3, 8), (4, 0), (7, 8)])
def test_the_chain_by_hand(chase, n, end):
    position = torch.zeros(1, dtype=torch.int64)
    chase(CHAIN, position, n)
    assert position.item() == end


def test_it_goes_on_where_it_was_left(chase):
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0)) * 8
    table = torch.empty(100, dtype=torch.int64)
    table[order // 8] = order.roll(-1)
    position, whole = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for n in (17, 1, 40):
        chase(table, position, n)
    reference.chase(table, whole, 58)
    assert position.item() == whole.item() != 0


def test_a_compiler_that_fails_is_quoted():
    with pytest.raises(RuntimeError, match="false ended with 1"):
        native.build(("false",))
    with pytest.raises(OSError, match="no-such-compiler"):
        native.build(("no-such-compiler",))
