"""Shortens reasons for tables. The record keeps them whole."""

import re

SIZE = r"([\d.]+ [KMG]iB)"
TORCH_OUT_OF_MEMORY = re.compile(
    rf"CUDA out of memory\. Tried to allocate {SIZE}\..*?"
    rf"(?:{SIZE} allowed; )?Of the allocated memory {SIZE} is allocated by PyTorch"
)
CAPACITY = re.compile(rf"total capacity of {SIZE}")


def brief(reason: str | None) -> str | None:
    """Torch's paragraph about CUDA memory in one line; any other reason unchanged."""
    if reason is None or "CUDA out of memory. " not in reason:
        return reason
    found = TORCH_OUT_OF_MEMORY.search(reason)
    if found is None:
        return reason.partition(". ")[0].removeprefix("torch.OutOfMemoryError: ")
    wanted, allowed, allocated = found.groups()
    capacity = CAPACITY.search(reason)
    of = f" of {allowed} allowed" if allowed else f" of {capacity[1]}" if capacity else ""
    return f"CUDA out of memory: tried to allocate {wanted} with {allocated} allocated{of}"
