"""The time of rows out of tables and into the order of experts, on a device of round figures, by hand."""

import pytest

from peakward.prediction.time.row_operators import A_PASS_S, BY_ROWS, TOPK_S, row_time

from .round_device import US, device, operator, tensor

LAUNCH_S = 2 * US


def seconds(name, inputs, outputs):
    return row_time(name, operator(name, inputs, outputs), device())


def places(n):
    return tensor(n, dtype="int64")


def test_a_short_sort_is_a_block():
    """Keys and indices, 16 bytes of each visit, read and written in every launch."""
    found = seconds("sort", [places(4096)], [places(4096)] * 2)
    assert found == (pytest.approx(3 * (LAUNCH_S + 32 * 4096 / 1e12)), 3)


@pytest.mark.parametrize(("n", "pass_s"), [(8192, A_PASS_S), (1_000_000, LAUNCH_S + 32e6 / 1e12)])
def test_a_long_sort_passes_over_digits(n, pass_s):
    found, n_launches = seconds("sort", [places(n)], [places(n)] * 2)
    assert n_launches == 22
    assert found == pytest.approx(8 * pass_s + 6 * LAUNCH_S)


def test_topk_is_a_choice_and_an_order():
    given, share, chosen = tensor(1000, 8), tensor(1000, 2), tensor(1000, 2, dtype="int64")
    assert seconds("topk", [given], [share, chosen]) == (TOPK_S, 2.0)
    given = tensor(10_000_000, 8)
    moved = given.n_bytes + share.n_bytes + chosen.n_bytes
    found, _ = seconds("topk", [given], [share, chosen])
    assert found == pytest.approx(2 * LAUNCH_S + moved / 1e12)


@pytest.mark.parametrize("name", sorted(BY_ROWS))
def test_rows_are_moved_element_by_element(name):
    rows = tensor(10_000, 4096, dtype="bfloat16")
    found, n_launches = seconds(name, [rows, places(10_000)], [rows])
    assert n_launches == 1.0
    assert found == pytest.approx(1.65 * (LAUNCH_S + (4 * 10_000 * 4096 + 80_000) / 1e12))
    few = tensor(4, 8, dtype="bfloat16")
    assert seconds(name, [few, places(4)], [few])[0] == pytest.approx(1.65 * LAUNCH_S, rel=1e-3)


@pytest.mark.parametrize(("n_rows", "read_rows"), [(50_000, 10_000), (1000, 1000)])
def test_rows_of_a_table_are_copied(n_rows, read_rows):
    """A table that is smaller than what is made of it is read once."""
    table, made = (tensor(n, 64, dtype="bfloat16") for n in (n_rows, 10_000))
    moved = (10_000 + read_rows) * 128 + 80_000
    for name in ("embedding", "index", "index_select"):
        found = seconds(name, [table, places(10_000)], [made])
        assert found == (pytest.approx(LAUNCH_S + moved / 1e12), 1.0)


def test_rows_that_are_no_16_bytes_and_other_places_are_no_copy_of_rows():
    narrow = seconds("index", [tensor(100, 3), places(50)], [tensor(50, 3)])
    columns = seconds("index", [tensor(100, 64), places(50)], [tensor(100, 50)])
    assert narrow is None
    assert columns is None


@pytest.mark.parametrize(("width", "a_token_s"), [(768, 33e-9), (2048, 49e-9)])
def test_a_tables_gradient_is_zeros_and_one_kernel_that_goes_from_token_to_token(width, a_token_s):
    few = seconds(
        "embedding_dense_backward",
        [tensor(2, 1000, width), tensor(2, 1000, dtype="int64")],
        [tensor(50_000, width)],
    )
    filled_s = 0.9 * (LAUNCH_S + 50_000 * width * 4 / 1e12)
    assert few == (pytest.approx(filled_s + LAUNCH_S + 2000 * a_token_s, rel=1e-3), 2.0)


def test_many_tokens_are_sorted_first():
    rows, table = tensor(4, 1000, 64), tensor(50_000, 64)
    many = seconds("embedding_dense_backward", [rows, tensor(4, 1000, dtype="int64")], [table])
    filled_s = 0.9 * (LAUNCH_S + table.n_bytes / 1e12)
    summed_s = 2 * (LAUNCH_S + rows.n_elements / (100 * 140e9 / 132))
    assert many == (pytest.approx(filled_s + 8 * A_PASS_S + 15 * US + summed_s), 30.0)


def test_the_gradient_of_a_loss_is_zeros_and_a_number_in_each_row():
    logits = tensor(2000, 50_000)
    given = [tensor(1), logits, tensor(2000, dtype="int64"), tensor(1)]
    found = seconds("nll_loss_backward", given, [logits])
    assert found == (pytest.approx(0.9 * (LAUNCH_S + logits.n_bytes / 1e12) + 9 * US), 2.0)


def test_the_gradient_of_indexing_sorts_its_places_and_adds_rows():
    """Fifteen launches make the places and sort them with their order; each reads and writes 16 bytes of a
    place."""
    rows = tensor(10_000, 4096, dtype="bfloat16")
    found, n_launches = seconds("_index_put_impl_", [rows, places(10_000), rows], [rows])
    assert n_launches == 16.0
    places_s = 15 * (LAUNCH_S + 4 * 80_000 / 1e12)
    rows_s = 1.65 * (LAUNCH_S + (6 * 10_000 * 4096 + 80_000) / 1e12)
    assert found == pytest.approx(places_s + rows_s)


def test_all_else_moves_no_rows():
    assert seconds("mul", [tensor(4)], [tensor(4)]) is None
