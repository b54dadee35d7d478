"""A module as it was, whatever running it did to its attributes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Afterwards every attribute of every submodule is what it was, and so is what is in its lists
    and dictionaries: caches that a forward pass fills, and counters, are as before."""
    before = [(each, _copied(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes in before:
            vars(each).clear()
            vars(each).update({name: _restored(*found) for name, found in attributes.items()})


def _copied(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, and a copy of what it holds where that may change."""
    return {
        name: (value, value.copy() if isinstance(value, dict | list | set) else None)
        for name, value in attributes.items()
    }


def _restored(value: Any, held: Any) -> Any:
    """The same object with what it held."""
    if isinstance(value, dict | set):
        value.clear()
        value.update(held)
    elif isinstance(value, list):
        value[:] = held
    return value
