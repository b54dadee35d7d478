"""Each list of frames and each frame is looked through once, however often the file names it."""

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.memory.segments import MAX_FRAMES, MAX_NAME, EventCollector


class Looked(dict):
    """A frame that counts how often it is asked for its file."""

    n = 0

    def get(self, key, default=None):
        Looked.n += key == "filename"
        return super().get(key, default)


@pytest.fixture
def frames():
    Looked.n = 0
    return [Looked(filename="a.py", line=n, name="f") for n in range(200)]


def collected(*stacks):
    collector = EventCollector()
    for stack in stacks:
        collector.take({"action": "alloc", "addr": 0, "size": 1, "frames": stack})
    return collector


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("n_events", [10, 10_000])
def test_a_stack_that_many_events_share(kind, n_events, frames):
    found = collected(kind(frames), *[shared := kind(frames)] * n_events)
    assert Looked.n == 200
    assert len(found.stacks.stacks) == 1
    assert set(found.events([n_events + 1]).stack) == {found.stacks.position(shared)} == {0}


def test_a_frame_that_many_stacks_share(frames):
    found = collected(*[frames[n:] for n in range(200)])
    assert Looked.n == 200
    assert len(found.stacks.frames) == 200
    assert [len(stack) for stack in found.stacks.stacks] == list(range(200, 0, -1))


def test_more_stacks_than_were_once_remembered(frames):
    """The first 2**18 were, and every further event looked through its whole stack again."""
    others = [tuple(frames[:1]) for _ in range((1 << 18) + 1)]
    found = collected(*others, *[shared := list(frames)] * 3)
    assert Looked.n == 200
    assert found.stacks.position(shared) == 1


def test_a_stack_that_is_let_go_is_no_other_s(frames):
    """Their ids would be equal, were the first not kept."""
    collector = EventCollector()
    positions = [collector.stacks.position([frames[n]]) for n in range(200)]
    assert positions == list(range(200))


def test_what_is_remembered_is_counted(frames):
    few, many = collected(frames), collected(*[list(frames) for _ in range(1000)])
    assert many.n_bytes - few.n_bytes >= 999 * 150


def test_long_names_are_cut_before_they_are_looked_through():
    name = "\x1b" * (4 * MAX_NAME)
    found = collected([{"filename": name, "line": 1, "name": name}])
    ((filename, _, shown),) = found.stacks.frames
    assert filename == shown == r"\x1b" * MAX_NAME
    assert found.stacks.n_bytes > len(filename) + len(shown)


def test_a_stack_deeper_than_any_program_is_refused(frames):
    with pytest.raises(PeakwardError, match=f"at most {MAX_FRAMES:,} frames, got one of 16,385"):
        collected([frames[0]] * (MAX_FRAMES + 1))
    assert Looked.n == 0
