"""A name for a live step that changes when its code or its parameters do."""

import ctypes
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def fingerprint(step: Callable[..., object], model: nn.Module | None) -> str:
    """16 digits that depend on the source of the step and of the model's class, and on the content of
    its parameters."""
    digest = hashlib.sha256(source(step).encode())
    if model is not None:
        digest.update(source(type(model)).encode())
        for name, parameter in model.named_parameters():
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
            _add_content(digest, parameter)
    return digest.hexdigest()[:16]


def source(thing: object) -> str:
    """The source text; the name where there is none (built in, typed at a prompt, a callable object)."""
    try:
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        kind = thing if hasattr(thing, "__qualname__") else type(thing)
        return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _add_content(digest: Any, tensor: Tensor) -> None:
    """Adds every byte, read in place: 2 GB/s, without NumPy."""
    host = tensor.detach().cpu().contiguous()
    n_bytes = host.numel() * host.element_size()
    if n_bytes:
        digest.update((ctypes.c_char * n_bytes).from_address(host.data_ptr()))
