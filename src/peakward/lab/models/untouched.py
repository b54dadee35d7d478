"""Keeps a module's attributes unchanged, whatever running it does to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Restores, on leaving, every attribute of every submodule and the contents of its lists and
    dictionaries: caches that a forward pass fills, and counters."""
    before = [(each, _copied(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes in before:
            vars(each).clear()
            vars(each).update({name: _restored(*found) for name, found in attributes.items()})


def _copied(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, with a copy of its content where that may change."""
    return {
        name: (value, value.copy() if isinstance(value, dict | list | set) else None)
        for name, value in attributes.items()
    }


def _restored(value: Any, held: Any) -> Any:
    """The same object with its former content."""
    if isinstance(value, dict | set):
        value.clear()
        value.update(held)
    elif isinstance(value, list):
        value[:] = held
    return value
