import gzip
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.readers.pieces import Truncated, gunzipped, is_gzip, plain


@given(st.lists(st.binary(max_size=300), min_size=1), st.integers(1, 100), st.integers(0, 20))
def test_members_of_gzip(texts, n_bytes, n_zeros):
    data = b"".join(gzip.compress(text) + bytes(n_zeros) for text in texts)
    pieces = list(gunzipped(BytesIO(data), n_bytes))
    assert b"".join(pieces) == b"".join(texts)
    assert all(len(piece) == n_bytes for piece in pieces[:-1])


def test_cut_gzip():
    data = gzip.compress(bytes(range(256)))
    for end in range(len(data)):
        with pytest.raises(Truncated):
            list(gunzipped(BytesIO(data[:end]), 10))


@given(st.binary(), st.integers(1, 100), st.integers(0, 99))
def test_plain_up_to_a_stop(data, n_bytes, stop):
    file = BytesIO(data)
    assert b"".join(plain(file, n_bytes, stop)) == data[:stop]
    assert b"".join(plain(file, n_bytes)) == data[stop:]


def test_gzip_is_known_by_its_start():
    file = BytesIO(gzip.compress(b""))
    assert is_gzip(file)
    assert file.tell() == 0
    assert not is_gzip(BytesIO(b"{}"))
