"""What torch makes of a tensor's memory."""

import pytest

VIEWS = ("transpose", "expand", "select", "chunk")


@pytest.mark.parametrize("kind", ["contiguous", "transposed"])
@pytest.mark.parametrize("change", VIEWS)
def test_these_never_copy(change, kind, work):
    found = work("view", f"{change} of {kind}", 6, 8)
    assert (found.result, found.allocated_bytes, found.moved_bytes) == ("view", 0, 0)
    assert found.difference == 0


@pytest.mark.parametrize("change", ["view", "reshape", "contiguous"])
def test_these_are_views_of_what_is_contiguous(change, work):
    assert work("view", f"{change} of contiguous", 6, 8).result == "view"


def test_of_a_transposed_matrix_two_copy_and_one_is_refused(work):
    for change in ("reshape", "contiguous"):
        found = work("view", f"{change} of transposed", 6, 8)
        assert (found.result, found.allocated_bytes) == ("new", 4 * 6 * 8)
        assert found.moved_bytes == 2 * 4 * 6 * 8
    refused = work("view", "view of transposed", 6, 8)
    assert (refused.result, refused.allocated_bytes) == ("refused", 0)
    assert refused.difference is None
