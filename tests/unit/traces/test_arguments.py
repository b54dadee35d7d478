import pytest

from peakward.traces.arguments import NotRecordedError, parsed

ARGUMENTS = parsed(
    '[[[2, 3], [], [[2], [3]], [4.5]], ["float", "c10::Half", "TensorList", "odd"], '
    '["", "True", "[1, 2]", "[true, False]"]]'
)


def test_what_is_recorded():
    assert ARGUMENTS.shape(0) == (2, 3)
    assert ARGUMENTS.shape(1, rank=0) == ()
    assert ARGUMENTS.n_bytes(0) == 24
    assert ARGUMENTS.item_bytes(1) == 2
    assert [ARGUMENTS.is_tensor(i) for i in range(5)] == [True, True, False, False, False]
    assert ARGUMENTS.boolean(1) is True
    assert ARGUMENTS.listed(2) == [1, 2]
    assert ARGUMENTS.listed(3) == [True, False]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ARGUMENTS.shape(2),
        lambda: ARGUMENTS.shape(3),
        lambda: ARGUMENTS.shape(9),
        lambda: ARGUMENTS.shape(0, rank=3),
        lambda: ARGUMENTS.item_bytes(2),
        lambda: ARGUMENTS.boolean(0),
        lambda: ARGUMENTS.listed(1),
    ],
)
def test_what_is_not(ask):
    with pytest.raises(NotRecordedError):
        ask()


@pytest.mark.parametrize("shape", ["", "{}", "null", "[]", "[null, null, null]", "[1, 2]", "[[["])
def test_anything_may_stand_where_shapes_do(shape):
    with pytest.raises(NotRecordedError):
        parsed(shape).shape(0)
