"""Chains of loads: each implementation follows them as the reference does."""

import importlib
import shutil

import pytest
import torch

from peakward.lab.ops.pointer_chase import native, reference

COMPILER = shutil.which("g++")
CHAIN = torch.tensor([24, 0, 8, 16])
"""In bytes: 0 → 24 → 16 → 8 → 0."""


@pytest.fixture(scope="module")
def compiled():
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    return native.build((COMPILER,))


@pytest.fixture
def interpreted():
    pytest.importorskip("triton")
    module = importlib.import_module("peakward.lab.ops.pointer_chase.triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.reload(module).chase
    importlib.reload(module)


@pytest.fixture(params=["reference", "compiled", "interpreted"])
def chase(request):
    if request.param == "reference":
        return reference.chase
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


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_for_a_gpu_each_load_of_the_loop_waits_for_the_last(capability):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from peakward.lab.ops.pointer_chase.triton import _chase

    source = ASTSource(
        fn=_chase, signature={"table_ptr": "*i8", "position_ptr": "*i64", "n_loads": "i32"}
    )
    target = GPUTarget("cuda", capability, 32)
    text = triton.compile(source, target=target, options={"num_warps": 1}).asm["ptx"]
    lines = [line.split("//")[0].split() for line in text.splitlines()]
    begin = next(i for i, words in enumerate(lines) if words[:1] == ["$L__BB0_2:"])
    loop = lines[begin : begin + next(i for i, w in enumerate(lines[begin:]) if "bra" in w)]
    (address,) = [words for words in loop if words[:1] == ["add.s64"]]
    (load,) = [words for words in loop if words[:1] == ["ld.global.b64"]]
    # The address is made of what the last load gave; the load is from that address.
    assert address[3].rstrip(";") == load[2]
    assert address[1].rstrip(",") == load[5]
