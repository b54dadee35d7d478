"""Plain values come out as Python's own pickle reads them; nothing else comes out at all."""

import builtins
import collections
import contextlib
import copyreg
import gzip
import io
import os
import pickle
import pickletools
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.records.errors import PeakwardError
from peakward.traces.memory import plain_pickle
from peakward.traces.memory.plain_pickle import CHUNK, Malformed, PlainPickle
from peakward.traces.memory.segments import EventCollector
from tiers import in_full

from .files import REAL, plain, real

MANY = 1 << 40


class Nothing:
    """Takes no dict away."""

    n_bytes = 0

    def take(self, found):
        return None


def read(data: bytes, max_bytes: int = MANY):
    return PlainPickle(io.BytesIO(data), Nothing(), max_bytes).read()


def listed(value):
    """Tuples as lists: a list of references comes out as a tuple."""
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list | tuple) else value


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=300),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.lists(inner).map(tuple)
    ),
    max_leaves=40,
)


@given(value=values, protocol=st.sampled_from([3, 4, 5]), optimised=st.booleans())
def test_plain_values_come_out_as_they_went_in(value, protocol, optimised):
    data = pickle.dumps(value, protocol)
    data = pickletools.optimize(data) if optimised else data
    assert listed(read(data)) == listed(value)


@given(
    stacks=st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=40),
    protocol=st.integers(2, 5),
)
def test_shared_frames_and_stacks(stacks, protocol):
    frames = [{"name": f"f{n}", "line": n, "filename": "a.py"} for n in range(21)]
    value = [[frames[n] for n in stack] for stack in stacks] * 2
    assert listed(read(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("chunk", [16, 61, 1000])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_it_does_not_matter_where_a_chunk_ends(chunk, protocol, monkeypatch):
    monkeypatch.setattr(plain_pickle, "CHUNK", chunk)
    value = plain("oom")
    assert listed(read(pickle.dumps(value, protocol))) == listed(value)


def test_long_lists_and_large_dicts_in_several_batches():
    names = [f"name {n}" for n in range(5000)]
    value = [names, list(reversed(names)), {name: n for n, name in enumerate(names)}]
    assert listed(read(pickle.dumps(value))) == value


class Reduced:
    """Runs a command where it is unpickled."""

    def __init__(self, call, *arguments):
        self._made = call, arguments

    def __reduce__(self):
        return self._made


class Stateful:
    """Has a state to set."""

    def __setstate__(self, state):
        os.environ["PEAKWARD_WAS_RUN"] = "1"


class Slotted(Exception):
    """Pickled by NEWOBJ_EX or REDUCE, by protocol."""


class Persistent(pickle.Pickler):
    """Refers to objects outside the file."""

    def persistent_id(self, obj):
        return "outside" if obj == "secret" else None


def persistent(protocol: int) -> bytes:
    file = io.BytesIO()
    Persistent(file, protocol).dump(["secret"])
    return file.getvalue()


def registered() -> bytes:
    copyreg.add_extension("collections", "OrderedDict", 241)
    try:
        return pickle.dumps(collections.OrderedDict, 2)
    finally:
        copyreg.remove_extension("collections", "OrderedDict", 241)


RUN = "import os; os.environ['PEAKWARD_WAS_RUN'] = '1'"
STACK_GLOBAL = b"\x80\x04\x8c\x08builtins\x94\x8c\x04exec\x94\x93\x94\x8c" + bytes([len(RUN)])
HOSTILE = {
    "os.system": pickle.dumps(Reduced(os.system, "touch was_run")),
    "os.system, protocol 2": pickle.dumps(Reduced(os.system, "touch was_run"), 2),
    "eval": pickle.dumps(Reduced(eval, "open('was_run', 'w')")),
    "exec beside values": pickle.dumps({"segments": [], "x": Reduced(exec, RUN)}),
    "setstate": pickle.dumps(Stateful, 4)[:-1] + b")\x81}\x8c\x01a\x94K\x01sb.",
    "stack global": STACK_GLOBAL + RUN.encode() + b"\x85R.",
    "stack global of memoised text": b"\x80\x04]\x94(\x8c\x02os\x94\x8c\x06system\x94eh\x01h\x02\x93.",
    "global": b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.",
    "inst": b"\x80\x02(X\x02\x00\x00\x00idios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nX\x02\x00\x00\x00ido.",
    "newobj": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "newobj of a value": b"\x80\x02})\x81.",
    "reduce of a value": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "build of a dict": b"\x80\x02}}b.",
    "newobj ex": b"\x80\x04\x8c\x08builtins\x8c\x06object\x93)}\x92.",
    "persistent id": persistent(4),
    "persistent id, text": b"\x80\x02Pname\n.",
    "ext1": registered(),
    "ext2": b"\x80\x02\x83\x01\x02.",
    "ext4": b"\x80\x02\x84\x01\x02\x03\x04.",
    "buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05N\x98.",
    "exception": pickle.dumps(Slotted("a")),
    "class": pickle.dumps(builtins.print),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_run_something_is_refused_and_runs_nothing(name, in_tmp, monkeypatch):
    monkeypatch.delenv("PEAKWARD_WAS_RUN", raising=False)

    monkeypatch.setattr("builtins.__import__", _no_new_imports())
    with pytest.raises(PeakwardError, match="nothing of it was run") as refusal:
        read(HOSTILE[name])
    assert "expected plain values alone, got" in str(refusal.value)
    assert "PEAKWARD_WAS_RUN" not in os.environ
    assert list(in_tmp.iterdir()) == []


def _no_new_imports():
    known = builtins.__import__

    def imported(name, *arguments, **more):
        if name in ("os", "posix", "builtins"):
            raise AssertionError(f"{name} was imported")
        return known(name, *arguments, **more)

    return imported


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8f.",  # a set
        b"\x80\x05\x96" + bytes(8) + b".",  # a bytearray
        b"\x80\x02I1\n.",
        b"\x80\x04\xff.",
        b"\x80\x00.",
        b"\x80\x06N.",
        b"\x80\x04.",
        b"\x80\x04NN.",
        b"\x80\x04(N.",
        b"\x80\x04e.",
        b"\x80\x04Ne.",
        b"\x80\x04(NNe.",
        b"\x80\x04}(NNu.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04}\x94(h\x00K\x01u.",
        b"\x80\x04h\x05.",
        b"\x80\x04j\x05\x00\x00\x00.",
        b"\x80\x04Nr\xff\xff\xff\x7f.",
        b"\x80\x04\x8c\x01\xff.",
        b"\x80\x04\x86.",
    ],
)
def test_what_is_no_pickle_of_plain_values_is_malformed(data):
    with pytest.raises(Malformed):
        read(data)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cut_off_anywhere_it_ends_early(protocol):
    data = pickle.dumps(plain("oom"), protocol)
    for end in [*range(200), *range(200, len(data), 997), len(data) - 1]:
        with pytest.raises(Malformed):
            read(data[:end])


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_anywhere_it_is_read_or_refused(data):
    whole = bytearray(OOM)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeakwardError):
        read(bytes(whole), 1 << 28)


OOM = pickle.dumps(plain("oom")["device_traces"][0][:5])


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60),
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
        b"\x80\x04X" + struct.pack("<I", 0xFFFFFFFF),
        b"\x80\x04B" + struct.pack("<I", 0x7FFFFFFF),
        b"\x80\x04\x8b" + struct.pack("<i", 0x7FFFFFFF),
        b"\x80\x04\x8b" + struct.pack("<i", -1),
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"\x8d" + struct.pack("<Q", 1 << 62),
        b"\x80\x04Nr" + struct.pack("<I", 0xFFFFFFFF),
    ],
)
def test_a_claimed_size_takes_no_memory(data):
    tracemalloc.start()
    with pytest.raises(Malformed):
        read(data + bytes(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # What is read at once, and its copy.
    assert peak < 3 * CHUNK


def test_a_frame_that_lies_about_its_length_is_not_believed():
    for length in (0, 3, 1 << 62):
        assert read(b"\x80\x04\x95" + struct.pack("<Q", length) + b"K\x07.") == 7


PIECE = 1 << 14
"""A chunk for these, since tracemalloc makes a million objects slow."""
BOMBS = {
    "empty lists": b"]" * (16 * PIECE),
    "empty lists, kept": b"]\x94" * (8 * PIECE),
    "empty dicts": b"}" * (16 * PIECE),
    "Nones in lists": (b"](" + b"N" * 998 + b"e") * (16 * PIECE // 1000),
    "memo": b"N" + b"\x94" * (32 * PIECE),
    "texts": b"\x8c\x01a" * (8 * PIECE),
    "tuples": b")\x85\x85" * (8 * PIECE),
    "texts, each across the end of a chunk": (
        b"X" + struct.pack("<I", PIECE - 5) + b"a" * (PIECE - 5)
    )
    * 512,
    "texts of one wide character": (
        b"X" + struct.pack("<I", 4 * PIECE) + "\U0001f600".encode() + b"a" * (4 * PIECE - 4)
    )
    * 8
    + b"N" * (16 * PIECE),
    "integers in dicts": b"".join(
        b"}(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(100)) + b"u"
        for _ in range(16 * PIECE // 602)
    ),
}


QUICK = (
    "empty dicts",
    "integers in dicts",
    "texts, each across the end of a chunk",
    "texts of one wide character",
)


@pytest.mark.parametrize("name", [*QUICK, *in_full(each for each in BOMBS if each not in QUICK)])
def test_what_is_held_is_bounded(name, monkeypatch):
    """By the bound, and what a chunk of opcodes can make: 64 bytes and a slot or two for each."""
    monkeypatch.setattr(plain_pickle, "CHUNK", PIECE)
    bound = 2 << 20
    data = b"\x80\x04" + BOMBS[name]
    tracemalloc.start()
    with pytest.raises(PeakwardError, match=r"fits into 0\.00 GiB"):
        PlainPickle(io.BytesIO(data), Nothing(), bound).read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bound + 100 * PIECE


def test_a_stack_that_grows_by_a_frame_between_events_is_refused():
    """Each event names the same list, one frame longer: 16 bytes of the file for 80 KB."""
    words = [b"filename", b"a", b"line", b"name", b"b", b"action", b"alloc", b"frames"]
    data = b"".join(b"\x8c" + bytes([len(each)]) + each + b"\x94" for each in words)
    data += b"}\x94(h\x00h\x01h\x02K\x01h\x03h\x04u"  # 8: a frame
    data += b"]\x94h\x08a(" + b"h\x08" * 10_000 + b"e"  # 9: a stack
    data += b"h\x09h\x08a}(h\x05h\x06h\x07h\x09u" * 3000
    with pytest.raises(PeakwardError, match="that stays as an event had it, got one that grows"):
        PlainPickle(io.BytesIO(b"\x80\x04" + data), EventCollector(), 32 << 20).read()


def test_an_event_that_is_taken_again_counts_again():
    """The bound is not lowered by a dict that is still there."""
    words = [b"action", b"alloc"]
    data = b"".join(b"\x8c" + bytes([len(each)]) + each + b"\x94" for each in words)
    data += b"}\x94\x94" + b"h\x02(h\x00h\x01u" * 200_000
    with pytest.raises(PeakwardError, match="fits into"):
        PlainPickle(io.BytesIO(b"\x80\x04" + data), EventCollector(), 12 << 20).read()


def test_a_billion_laughs_are_a_few_lists():
    data = b"\x80\x04]\x94" + b"".join(
        b"]\x94(" + b"h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(100)
    )
    # Never expanded, and never hashed: as a key such a thing is refused.
    found = read(data[:2] + b"]\x94(" + data[2:] + b"e.")
    assert len(found) == 101
    with pytest.raises(Malformed):
        read(b"\x80\x04}(" + data[2:] + b"Nu.")


def test_nesting_without_marks_is_a_chain_and_with_marks_is_refused():
    n = 100_000
    found = read(b"\x80\x04" + b"]" * n + b"a" * (n - 1) + b".")
    depth = 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == n - 1
    with pytest.raises(Malformed, match="nested deeper"):
        read(b"\x80\x04" + b"](" * n)
    with pytest.raises(Malformed):
        read(b"\x80\x04})" + b"\x85" * n + b"Ns.")


def test_what_is_taken_away_is_not_held():
    class Taker:
        n_bytes = 0
        n = 0

        def take(self, found):
            self.n += "addr" in found
            return "taken" if "addr" in found else None

    events = [{"addr": n, "text": f"{n}" * 50} for n in range(30_000)]
    taker = Taker()
    found = PlainPickle(io.BytesIO(pickle.dumps([events, events[:2]])), taker, 12 << 20).read()
    assert taker.n == 30_000 and found[0] == ["taken"] * 30_000
    assert [each is plain_pickle.SPENT for each in found[1]] == [True, True]
    with pytest.raises(PeakwardError, match="fits into"):
        read(pickle.dumps(events), 6 << 20)


@pytest.mark.parametrize("name", REAL)
def test_recordings_come_out_as_python_reads_them(name):
    assert listed(read(gzip.decompress(real(name).read_bytes()))) == listed(plain(name))


class Counted(io.BytesIO):
    """Counts what is read of it."""

    n_read = 0

    def read(self, n_bytes=-1):
        found = super().read(n_bytes)
        self.n_read += len(found)
        return found


@pytest.mark.parametrize("made", [b"]", *in_full([b"}", b"]\x94", b")\x85"])])
def test_what_no_recording_holds_is_refused_early_however_much_memory_is_free(made):
    file = Counted(b"\x80\x04(" + made * (32 << 20))
    with pytest.raises(PeakwardError, match="more than 16 times as much: such a file is made to"):
        PlainPickle(file, Nothing(), MANY).read()
    assert file.n_read < 12 << 20


def test_a_protocol_stands_at_the_beginning_alone():
    with pytest.raises(Malformed, match="begins again near byte"):
        read(b"\x80\x04\x80\x04N.")
