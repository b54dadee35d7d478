"""A recorded step on a real recording: what an H100 held adds up however it is told apart."""

import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.records.memory import HeldTensors, MemoryMarks
from peakward.traces.memory.case_memory import (
    N_STRETCHES,
    PHASES,
    PURPOSES,
    Moments,
    held_bytes,
    part,
    purposes,
    recorded,
)
from peakward.traces.memory.memory import Memory, memory
from peakward.traces.memory.origins import CATEGORIES
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import Action

from .files import real, stats, written


@pytest.fixture(scope="module")
def train():
    return memory(real("train"))


@pytest.fixture(scope="module")
def marks(train):
    """All of the recording as one step; the optimiser's state is what stacks tell, by its addresses."""
    (device,) = train.devices
    found = device.lifetimes
    is_state = device.origins.category == CATEGORIES.index("optimizer_state")
    counted = np.isin(device.events.action, (Action.ALLOC, Action.FREE_REQUESTED))
    n_events = int(counted.sum())
    state = HeldTensors(
        purpose="optimizer_state",
        at=int(counted[: int(found.born[is_state].max())].sum()),
        addresses=tuple(found.address[is_state].tolist()),
    )
    return MemoryMarks(
        begin=0,
        end=n_events,
        phases=((0, "forward"),),
        modules=(),
        held=(state,),
        cleared=(n_events, n_events),
        peak_allocated_bytes=stats("train")["allocated_bytes.all.peak"],
    )


def test_the_peak_is_what_torch_counted(train, marks):
    found = recorded(train, marks, "cuda")
    assert found.peak_bytes == marks.peak_allocated_bytes
    assert found.reserved_bytes == stats("train")["reserved_bytes.all.peak"]
    (peak,) = found.phases
    assert peak.allocated_bytes == sum(each.n_bytes for each in peak.purposes) == found.peak_bytes


def test_the_categories_of_pointers_are_those_of_stacks(train, marks):
    (peak,) = recorded(train, marks, "cuda").phases
    by_stack = {each.name: each.n_bytes for each in train.devices[0].record().peak.categories}
    by_pointer = {each.name: each.n_bytes for each in peak.purposes}
    assert by_pointer["optimizer_state"] == by_stack["optimizer_state"] > 0


def test_the_timeline_keeps_the_maximum(train, marks):
    found = recorded(train, marks, "cuda")
    assert len(found.timeline) <= N_STRETCHES + 2
    assert max(sum(each.n_bytes) for each in found.timeline) == found.phases[0].allocated_bytes
    assert {len(each.n_bytes) for each in found.timeline} == {len(PURPOSES)}


def test_the_largest_have_their_lines(train, marks):
    largest = recorded(train, marks, "cuda").largest
    assert [each.n_bytes for each in largest] == sorted(
        (each.n_bytes for each in largest), reverse=True
    )
    lines = [each.source for each in largest if each.source]
    assert any("decoder.py" in each for each in lines), lines[:5]


def test_what_is_alike_in_all_blocks():
    assert part("blocks.31.attention.softmax") == "blocks.*.attention.softmax"
    assert part("readout.head") == "readout.head"
    assert part("blocks.0") == "blocks.*"


def test_a_snapshot_of_two_devices_is_refused(tmp_path, marks):
    event = {"action": "alloc", "addr": 4096, "size": 1, "time_us": 1}
    path = written(tmp_path, {"segments": [], "device_traces": [[event], [dict(event)]]})
    with pytest.raises(PeakwardError, match="expected a snapshot of one device, got one of 2"):
        recorded(Memory(read(path)), marks, "cuda")


PROGRAM = ("+w", "|forward", ">m", "+a", "+t", "-t", "<", "|backward", "+g", "+d", "-d", "-a")
AGAIN = (">m", "+r", "+u", "-u", "<", "-r", "|optimizer", "+s", "+k", "-k", "!", "+c", "-c", "!")
"""+x allocates, -x frees, | begins a phase, > a module, < ends it, ! is around what clears."""


@pytest.fixture
def device(tmp_path):
    """The program's device, its marks, and which letter each allocation is."""
    events, phases, modules, cleared, addresses = [], [], [], [], {}
    for move in (*PROGRAM, *AGAIN):
        kind, name = move[0], move[1:]
        if kind == "|":
            phases.append((len(events), name))
        elif kind in "><":
            modules.append((len(events), name))
        elif kind == "!":
            cleared.append(len(events))
        else:
            at = addresses.setdefault(name, 4096 * (len(addresses) + 1))
            action = "alloc" if kind == "+" else "free_requested"
            events.append({"action": action, "addr": at, "size": 100, "time_us": len(events)})
    own = {"parameters": "w", "gradients": "g", "optimizer_state": "s"}
    marks = MemoryMarks(
        begin=1,
        end=len(events) - 2,
        phases=tuple(phases),
        modules=tuple(modules),
        held=tuple(
            HeldTensors(purpose=purpose, at=len(events) - 2, addresses=(addresses[name],))
            for purpose, name in own.items()
        ),
        cleared=(len(events) - 2, len(events)),
        peak_allocated_bytes=None,
    )
    snapshot = read(written(tmp_path, {"segments": [], "device_traces": [events]}))
    (found,) = Memory(snapshot).devices
    letters = {at: name for name, at in addresses.items()}
    return found, marks, [letters[at] for at in found.lifetimes.address.tolist()]


def test_each_rule(device):
    found, marks, letters = device
    told = purposes(found.lifetimes, Moments(found.events, marks))
    by_letter = dict(zip(letters, [PURPOSES[each] for each in told.purpose], strict=True))
    assert by_letter == {
        "w": "parameters",
        "a": "activations",
        "t": "temporaries",
        "g": "gradients",
        "d": "temporaries",
        "r": "activations",
        "u": "temporaries",
        "s": "optimizer_state",
        "k": "temporaries",
        "c": "workspace",
    }


def test_where_each_was_made(device):
    found, marks, letters = device
    told = purposes(found.lifetimes, Moments(found.events, marks))
    made = {
        name: (PHASES[phase], told.modules[module])
        for name, phase, module in zip(letters, told.phase, told.module, strict=True)
    }
    assert made["w"] == ("build", "")
    assert made["a"] == made["t"] == ("forward", "m")
    assert made["g"] == ("backward", "")
    assert made["r"] == ("backward", "m")
    assert made["s"] == ("optimizer", "")


def test_what_is_held_adds_up(device):
    found, marks, _ = device
    told = purposes(found.lifetimes, Moments(found.events, marks))
    n_bytes = found.lifetimes.requested_bytes
    parts = [
        held_bytes(found.lifetimes, n_bytes, told.purpose == each) for each in range(len(PURPOSES))
    ]
    assert sum(parts).tolist() == found.balances.requested.tolist()


def test_a_snapshot_that_lacks_events_is_refused(device):
    found, marks, _ = device
    with pytest.raises(PeakwardError, match=r"expected 17 allocations and frees .* got 16"):
        Moments(found.events.of(slice(0, 16)), marks)


@pytest.mark.parametrize("name", ["train", "allstacks", "expandable"])
def test_torch_counts_what_it_records(name):
    """On which a mark on a GPU rests: its counters, recorded from the first allocation on."""
    action, counted = read(real(name)).events.action, stats(name)
    assert (action == Action.ALLOC).sum() == counted["allocation.all.allocated"]
    assert (action == Action.FREE_REQUESTED).sum() == counted["allocation.all.freed"]
