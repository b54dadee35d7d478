"""A matmul a group of rows, by torch's kernel and by the loop, against one matmul a row."""

import pytest
import torch

from peakward.kernels.ops.grouped_matmul import api, reference

CPU = torch.device("cpu")
SIZES = {
    "even": (4, 4, 4),
    "uneven": (1, 9, 2),
    "first empty": (0, 5, 7),
    "middle empty": (6, 0, 3),
    "last empty": (3, 4, 0),
    "one for all": (0, 12, 0),
    "one group": (8,),
}


@pytest.fixture(params=SIZES.values(), ids=SIZES.keys())
def inputs(request):
    """draw(dtype, d_in, d_out): x, weight and ends, the same values in every dtype."""

    def draw(dtype, d_in=16, d_out=24):
        sizes = request.param
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(sum(sizes), d_in, generator=generator)
        weight = torch.randn(len(sizes), d_out, d_in, generator=generator)
        ends = torch.tensor(sizes).cumsum(0).int()
        # Rounded to bf16, so that each dtype is given the same numbers.
        both = (each.bfloat16().to(dtype).requires_grad_() for each in (x, weight))
        return (*both, ends)

    return draw


def row_by_row(x, weight, ends):
    group = torch.searchsorted(ends, torch.arange(len(x)), right=True)
    return torch.einsum("ni,noi->no", x, weight[group])


def outcome(function, x, weight, ends):
    """Result and both gradients, under a gradient that differs in every element."""
    y = function(x, weight, ends)
    y.backward(torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(y.dtype))
    return y.detach(), x.grad, weight.grad


def check(found, expected, *, roundings):
    for mine, wanted in zip(found, expected, strict=True):
        assert mine.shape == wanted.shape
        limit = roundings * torch.finfo(mine.dtype).eps * wanted.norm()
        assert (mine.double() - wanted).norm() <= limit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("widths", [(16, 24), (5, 3)], ids=str)
@pytest.mark.parametrize("function", [reference.grouped_matmul, api.grouped_matmul])
def test_rows_meet_the_matrix_of_their_group(function, dtype, widths, inputs):
    """In fp32 and wider within a rounding for each of up to 24 terms; narrower ones add in fp32
    and round once."""
    expected = outcome(row_by_row, *inputs(torch.float64, *widths))
    roundings = 24 if dtype in (torch.float64, torch.float32) else 1
    check(outcome(function, *inputs(dtype, *widths)), expected, roundings=roundings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_may_be_expanded(dtype, inputs):
    """As a sum's is, which torch's own backward refuses."""
    x, weight, ends = inputs(dtype)
    api.grouped_matmul(x, weight, ends).sum().backward()
    wide, weights, _ = inputs(torch.float64)
    row_by_row(wide, weights, ends).sum().backward()
    check((x.grad, weight.grad), (wide.grad, weights.grad), roundings=24)


def test_autocast_is_followed(inputs):
    x, weight, ends = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        y = api.grouped_matmul(x, weight, ends)
    assert y.dtype == torch.bfloat16
    narrow = [each.detach().bfloat16() for each in (x, weight)]
    assert torch.equal(y, api.grouped_matmul(*narrow, ends))
    y.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "widths", "expected"),
    [
        (torch.bfloat16, (8, 64), True),
        (torch.bfloat16, (12, 64), False),
        (torch.bfloat16, (64, 12), False),
        (torch.float16, (64, 64), False),
        (torch.float32, (64, 64), False),
        (torch.float64, (64, 64), False),
    ],
)
def test_one_kernel_where_there_is_one(dtype, widths, expected, monkeypatch):
    assert api.in_one_kernel(dtype, widths, CPU) == expected
    looped = []
    monkeypatch.setattr(
        reference, "grouped_matmul", lambda *given: looped.append(given) or given[0]
    )
    d_out, d_in = widths
    x, weight = torch.ones(6, d_in, dtype=dtype), torch.ones(2, d_out, d_in, dtype=dtype)
    api.grouped_matmul(x, weight, torch.tensor([2, 6], dtype=torch.int32))
    assert bool(looped) != expected


@pytest.mark.parametrize(("major", "expected"), [(7, False), (8, False), (9, True), (10, True)])
def test_on_cuda_the_capability_decides(major, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    found = api.in_one_kernel(torch.bfloat16, (64, 64), torch.device("cuda"))
    assert found == expected
