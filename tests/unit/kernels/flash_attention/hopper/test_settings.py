"""What the tiles of Hopper's backward pass must be for a multiprocessor to take them."""

import pytest

pytest.importorskip("triton")
from peakward.kernels.ops.flash_attention.hopper.refusals import HEAD_DIMS
from peakward.kernels.ops.flash_attention.hopper.settings import (
    KEYS,
    ROWS,
    backward_settings_for,
    columns_of,
)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_columns_are_powers_of_two_that_make_up_head_dim(head_dim):
    main, rest = columns_of(head_dim)
    assert main + rest == head_dim
    assert main & (main - 1) == rest & (rest - 1) == 0
    # What one product takes at once of operands that lie by rows, 16 values.
    assert main % 16 == rest % 16 == 0


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_dq_is_halved_between_the_warpgroups(head_dim):
    """By 64 queries each, or by 64 of head_dim, transposed: then there must be no rest."""
    settings = backward_settings_for(head_dim)
    assert settings.queries == 2 * ROWS or (settings.queries == ROWS and head_dim == 2 * ROWS)
    assert settings.queries % settings.at_once == 0


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_tiles_fit_shared_memory(head_dim):
    """Two of queries and of gradients on their way, keys and values, dscores, and dk and dv to write;
    for each query of the former two figures."""
    settings = backward_settings_for(head_dim)
    rows = 2 * 2 * settings.queries + 2 * settings.kv_stages * KEYS + 2 * KEYS
    n_bytes = 2 * rows * head_dim + 2 * KEYS * settings.queries + 4 * 2 * 2 * settings.queries
    assert n_bytes < 227 << 10
