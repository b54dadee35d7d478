"""Where kernels run: in Triton's interpreter on the CPU, compiled on a GPU."""

from collections.abc import Iterator

import pytest
import torch

ON_CPU = (torch.float32, torch.float16)
"""The interpreter computes bf16 wrongly."""
ON_CUDA = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> Iterator[torch.device]:
    """Where tensors are made for as long as a test runs.

    On a machine with a GPU nothing is interpreted (tests/conftest.py): only "cuda" runs there.
    """
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("compiled here")
    with torch.device(request.param) as chosen:
        yield chosen


@pytest.fixture(scope="module")
def dtypes(device) -> tuple[torch.dtype, ...]:
    """The types that kernels are tested in on this device."""
    return ON_CUDA if device.type == "cuda" else ON_CPU
