"""Study `hierarchy`: levels, ways and sentences of a made-up calibration, by hand."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.records.calibration import LevelRate, Rates, TrafficRate
from peakward.records.errors import PeakwardError
from peakward.studies.hierarchy import STUDY, SUBJECTS, TENSORS, WEIGHTS
from peakward.studies.hierarchy.levels import fits_into, read
from peakward.studies.readings import Readings

KIB, MIB, GIB = 2**10, 2**20, 2**30
H200 = device("h200-141")
LEVELS, WAYS, SETS, PASSES = range(4)
"""The tables."""


@pytest.fixture
def parts(calibration, setting):
    """Makes the parts of a CPU's or a GPU's calibration with other rates."""

    def make(kind, h200=False, **changes):
        measured, here, readings = calibration(kind, **changes), setting(device=kind), Readings()
        env = measured.environment
        if h200:
            name = {"device_name": "NVIDIA H200", "device_memory_bytes": 150_754_820_096}
            env = msgspec.structs.replace(env, **name)
        readings.calibration = msgspec.structs.replace(measured, environment=env)
        return STUDY.parts(readings, msgspec.structs.replace(here, environment=env))

    return make


@pytest.fixture
def by_name(parts, rows):
    """Makes the rows of a table by their first cell."""

    def make(i, kind, **changes):
        found = parts(kind, **changes).tables[i]
        name = found.columns[0].name
        return {row[name]: row for row in rows(found)}

    return make


@pytest.fixture
def told(parts):
    """Makes the sentences that begin so."""
    return lambda start, *args, **changes: [
        each for each in parts(*args, **changes).conclusions if each.text.startswith(start)
    ]


def copy_rates(*rates):
    return tuple(
        TrafficRate(operation="copy", size_bytes=size, bytes_per_s=rate) for size, rate in rates
    )


def test_the_full_calibration_is_measured_and_no_case(setting):
    asked = []

    class Lab:
        calibrate, measure_all = asked.extend, asked.extend

    STUDY.gather(Lab(), setting())
    assert tuple(asked) == SUBJECTS


def test_a_cpu_s_levels_at_their_best(by_name):
    found = by_name(LEVELS, "cpu")
    assert list(found) == ["L1", "L2", "L3", "memory", "disk", "page cache"]
    assert list(found["L3"].values()) == ["L3", 32 * MIB, 45e9, 15e-9, None, None]
    assert list(found["memory"].values())[1:4] == [80 * GIB, 20e9, 100e-9]


def test_a_transfer_s_latency_is_that_of_its_smallest(by_name):
    found = by_name(LEVELS, "cpu")
    assert found["disk"]["latency"] == pytest.approx(1e-4)
    assert found["disk"]["rate"] == 2e9
    assert found["page cache"]["latency"] is None, "one size was measured"
    link = by_name(LEVELS, "cuda")["host link (pinned, to device)"]
    assert link["latency"] == pytest.approx(4096 / 2e9)


def test_shares_are_of_the_datasheet(by_name, told):
    found = by_name(LEVELS, "cuda", h200=True)
    assert found["memory"]["share"] == pytest.approx(4.2 / 4.8)
    assert found["host link (pinned, to host)"]["share"] == pytest.approx(50 / 64)
    assert found["L2"]["share"] is None
    (said,) = told("Of the datasheet", "cuda", h200=True)
    assert said.text.startswith("Of the datasheet: memory 87.5% of 4,800 GB/s, host link (pinned,")
    assert said.evidence[0].from_ids[1:] == ("h200-141",)
    assert told("Of the datasheet", "cuda") == []


def test_more_than_the_datasheet_is_refused(parts):
    too_fast = (LevelRate(level="memory", working_set_bytes=GIB, bytes_per_s=4.9e12),)
    with pytest.raises(
        PeakwardError, match=r"memory to be no faster than .* 4,800 GB/s, got 4,900"
    ):
        parts("cuda", h200=True, levels=too_fast)


@pytest.mark.parametrize(
    ("both_bytes", "level"),
    [(32 * MIB, "L2"), (50 * MIB, "L2"), (2**28, None), (GIB, "memory")],
)
def test_the_level_that_can_hold_the_tensors_of_a_copy(both_bytes, level):
    l2 = {"level": "L2", "capacity_bytes": 50 * MIB}
    rates = Rates(
        levels=(
            LevelRate(**l2, working_set_bytes=4 * MIB, bytes_per_s=8e12),
            LevelRate(level=None, working_set_bytes=2**28, bytes_per_s=3e12),
            LevelRate(level="memory", working_set_bytes=GIB, bytes_per_s=3e12),
        )
    )
    assert fits_into(rates, both_bytes) == level
    assert fits_into(Rates(), both_bytes) is None, "nothing is known of the levels"


def test_the_tensors_by_hand():
    sizes = [each.size_bytes for each in TENSORS]
    assert sizes[:5] == [KIB, MIB, 64 * MIB, GIB, 4 * 512 * 768 * 4]
    block = 4 * 2560**2 + 3 * 2560 * 10_240 + 2 * 2560
    assert WEIGHTS.size_bytes == 2 * (2 * 10_000 * 2560 + 32 * block + 2560)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "cpu",
            "L1 → cores, L2 → cores, L3 → cores, memory → cores, memory → memory, disk → memory, "
            "page cache → memory, disk → cores",
        ),
        (
            "cuda",
            "L2 → multiprocessors, memory → multiprocessors, memory → memory, "
            "host memory, pinned → memory, memory → host memory, pinned, "
            "host memory, pageable → memory, memory → host memory, pageable, "
            "disk → host memory, page cache → host memory, disk → memory",
        ),
    ],
)
def test_every_way(by_name, kind, expected):
    assert ", ".join(by_name(WAYS, kind)) == expected


def test_a_read_is_a_latency_and_then_the_rate_and_hops_come_one_after_another(by_name):
    found = by_name(WAYS, "cpu")
    memory, disk = 100e-9 + GIB / 20e9, 1e-4 + GIB / 2e9
    assert found["memory → cores"]["1 GiB"] == pytest.approx(memory)
    assert found["disk → cores"]["1 GiB"] == pytest.approx(disk + memory)
    sent = 4096 / 2e9 + GIB / 50e9
    assert by_name(WAYS, "cuda")["disk → memory"]["1 GiB"] == pytest.approx(disk + sent)


def test_a_copy_takes_as_long_as_copies_of_that_size_took(by_name):
    copy = by_name(WAYS, "cuda")["memory → memory"]
    assert copy["1 KiB"] == pytest.approx(2 * 4096 / 4e9), "a launch"
    assert copy["1 GiB"] == pytest.approx(2 * GIB / 20e9)


def test_a_place_that_cannot_hold_the_tensor_has_no_time(by_name):
    assert by_name(WAYS, "cpu")["L1 → cores"]["1 KiB"] is not None
    assert by_name(WAYS, "cpu")["L1 → cores"]["1 MiB"] is None


def test_a_copy_needs_room_for_two(calibration, setting):
    small = msgspec.structs.replace(setting(device="cpu").environment, device_memory_bytes=GIB)
    readings = Readings()
    readings.calibration = msgspec.structs.replace(calibration("cpu"), environment=small)
    table = STUDY.parts(readings, setting(device="cpu")).tables[WAYS]
    found = {row[0]: row for row in table.rows}
    assert found["memory → cores"][4] is not None
    assert found["memory → memory"][4] is None


def test_what_was_not_measured_is_not_known_or_no_way(by_name):
    assert by_name(WAYS, "cpu")["page cache → memory"]["1 GiB"] is None
    assert by_name(WAYS, "cpu", latency=())["disk → cores"]["1 GiB"] is None
    found = by_name(WAYS, "cuda", link=(), traffic=())
    assert {"disk → memory", "memory → memory"}.isdisjoint(found)
    assert by_name(WAYS, "cpu", disk=(), levels=()) == {}


def test_every_working_set_has_a_row(by_name):
    found = by_name(SETS, "cpu")
    assert [row["level"] for row in found.values()] == [
        *("L1", "L2", "L2", "L3", "L3", None, "memory")
    ]
    assert list(found[8192].values()) == [8192, "L1", 100e9, 1e-9]
    assert [row["a load"] for row in by_name(SETS, "cuda", latency=()).values()] == [None] * 3
    assert [row["read"] for row in by_name(SETS, "cuda", levels=()).values()] == [None] * 3


def test_copies_name_the_level_that_can_hold_their_tensors(parts, rows):
    found = rows(parts("cpu").tables[PASSES])
    assert [row["operation"] for row in found] == ["add"] * 3 + ["copy"] * 3
    copies = [(row["all tensors"], row["fit into"]) for row in found[3:]]
    assert copies == [(8192, "L3"), (4 * MIB, "L3"), (512 * MIB, "memory")]


def test_curves(parts):
    bandwidth, latency = parts("cpu").plots
    assert [(each.name, len(each.points)) for each in bandwidth.series] == [
        ("read", 7),
        ("copy", 3),
        ("add", 3),
    ]
    (line,) = latency.series
    assert [each.y for each in line.points] == [1e-9, 4e-9, 5e-9, 15e-9, 60e-9, 90e-9, 100e-9]


def test_the_descent(told, figures):
    (said,) = told("Reading", "cpu")
    assert said.text == (
        "Reading: L1 100 GB/s at 1.00 ns a load, L2 50.0 GB/s at 4.00 ns a load, L3 45.0 GB/s at "
        "15.0 ns a load, memory 20.0 GB/s at 100 ns a load; L1 is 5.00× as fast as memory, whose "
        "loads take 100× the time."
    )
    assert figures(said)["rates, first over last"] == 5
    (said,) = told("Reading", "cuda", latency=())
    assert said.text == "Reading: L2 12,000 GB/s, memory 4,200 GB/s; L2 is 2.86× as fast as memory."


def test_bytes_on_their_way(told, figures):
    (said,) = told("To read memory", "cpu")
    assert figures(said)["bytes on their way at once"] == pytest.approx(20e9 * 100e-9)
    assert told("To read memory", "cpu", latency=()) == []


def test_a_cache_that_does_not_reach_as_far_as_it_says(told):
    (said,) = told("L", "cpu")
    assert said.text == (
        "L3 slows down before it is full: said to hold 32.0 MiB, slow working set 8.00 MiB, its loads over "
        "the quickest 4.00×, quick working set 2.00 MiB, its loads 15.0 ns."
    )


def test_where_a_copy_reaches_half_of_memory_s_rate(told, figures):
    (half,) = told("Copies out", "cpu")
    known = figures(half)
    assert known["at tensors of"] == 256 * MIB
    assert known["the smallest tensors of half of it or more"] == 2 * MIB
    assert known["their share of it"] == pytest.approx(4 / 20)
    (highest,) = told("The quickest copy", "cpu")
    assert highest.text == (
        "The quickest copy is not memory's, as L3 can hold its tensors: rate 30.0 GB/s, each tensor "
        "2.00 MiB, both tensors 4.00 MiB, capacity of L3 32.0 MiB."
    )


def test_copies_whose_fastest_is_memory_s_or_the_smallest(told):
    large = (256 * MIB, 20e9)
    slow_first = {"traffic": copy_rates((4096, 1e9), large)}
    assert len(told("Copies out", "cpu", **slow_first)) == 1
    assert told("The quickest copy", "cpu", **slow_first) == []
    (half,) = told("Copies out", "cpu", traffic=copy_rates((4096, 40e9), large))
    assert half.text.endswith("the smallest tensors 4.00 KiB, their share of it 200%.")
    none_in_memory = copy_rates((4096, 1e9), (MIB, 20e9))
    assert told("Copies out", "cpu", traffic=none_in_memory) == []


def test_the_ways_of_the_weights_from_the_quickest(told, figures):
    (said,) = told("Weights", "cpu")
    times = list(figures(said).items())[1:-1]
    assert [name for name, _ in times] == [
        "memory → cores",
        "memory → memory",
        "disk → memory",
        "disk → cores",
    ]
    assert [time_s for _, time_s in times] == sorted(time_s for _, time_s in times)
    assert figures(said)["slowest over quickest"] == pytest.approx(times[-1][1] / times[0][1])


def test_of_nothing_nothing_is_said(parts, calibration, setting):
    assert parts("cpu", levels=(), latency=(), traffic=(), disk=()).conclusions == ()
    quick = Readings()
    quick.calibration = msgspec.structs.replace(calibration("cpu"), rates=None)
    for readings in (Readings(), quick):
        found = STUDY.parts(readings, setting(device="cpu"))
        assert (found.conclusions, found.notes) == ((), ())
    assert read(quick.calibration, None) == ()


def test_what_was_measured_beside_other_work_says_so(parts):
    doubts = ("traffic: other work took 20% of the cores", "products: other work took 30%")
    said = parts("cpu", doubts=doubts)
    marked = [each.text for each in said.conclusions if "beside other work" in each.text]
    assert len(marked) == 3, "two of copies, and of the ways that hold one"
    assert all(
        each.endswith(" (Measured beside other work: traffic; see the notes.)") for each in marked
    )
    assert "Traffic: other work took 20% of the cores: its figures may be too slow." in said.notes
    assert not any("30%" in each for each in said.notes)
    assert "Not measured: link: a reason." in said.notes
