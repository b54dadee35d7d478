"""What allocations were for, by marks: each rule on a program made by hand."""

import pytest

from peakward.records.errors import PeakwardError
from peakward.records.memory import HeldTensors, MemoryMarks
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.purposes import PHASES, PURPOSES, Moments, held_bytes, purposes
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import Action

from .files import real, stats, written

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
