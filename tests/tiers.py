"""What the fast tier leaves to the full one: long parameters of a test, and what hypothesis draws for it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import Phase, settings


def in_full(values: Iterable[Any]) -> list[Any]:
    """Parameters of the full tier alone."""
    return [pytest.param(each, marks=pytest.mark.full) for each in values]


def rows_in_full(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameters of the full tier alone, of several names each."""
    return [pytest.param(*each, marks=pytest.mark.full) for each in rows]


def drawn_in_full(max_examples: int) -> settings:
    """So many draws in the full tier; in the fast one the test's `@example`s, written out, stand for them.

    For tests of which a draw takes a tenth of a second and more.
    """
    is_fast = settings.get_current_profile_name() == "same"
    phases = (Phase.explicit,) if is_fast else (Phase.explicit, Phase.generate)
    return settings(max_examples=max_examples, phases=phases)
