"""Tables and plots of `hierarchy`."""

from peakward.hardware.devices import device
from peakward.studies.hierarchy import tables
from peakward.studies.hierarchy.levels import read
from peakward.studies.hierarchy.moves import routes, tensors

MIB = 2**20


def test_levels_beside_the_datasheet(calibration, rows):
    found = rows(tables.levels(read(calibration("cuda"), device("h200-141"))))
    l2, memory, *_ = found
    assert (l2["holds"], l2["datasheet"], l2["share"]) == (50 * MIB, None, None)
    assert (memory["rate"], memory["datasheet"], memory["share"]) == (4.2e12, 4.8e12, 0.875)


def test_every_working_set_has_a_row(calibration, rows):
    found = rows(tables.working_sets(calibration("cpu").rates))
    assert [each["level"] for each in found] == ["L1", "L2", "L2", "L3", "L3", None, "memory"]
    assert found[0] == {"working set": 8192, "level": "L1", "read": 100e9, "a load": 1e-9}


def test_a_working_set_of_one_figure_has_a_row_too(calibration, rows):
    found = rows(tables.working_sets(calibration("cuda", latency=()).rates))
    assert [each["a load"] for each in found] == [None, None, None]
    found = rows(tables.working_sets(calibration("cuda", levels=()).rates))
    assert [each["read"] for each in found] == [None, None, None]


def test_copies_name_the_level_that_can_hold_their_tensors(calibration, rows):
    found = rows(tables.passes(calibration("cpu").rates))
    copies = [(each["all tensors"], each["fit into"]) for each in found[3:]]
    assert copies == [(8192, "L3"), (4 * MIB, "L3"), (512 * MIB, "memory")]
    assert {each["operation"] for each in found[:3]} == {"add"}


def test_a_row_a_way_and_a_column_a_tensor(calibration, rows):
    measured = calibration("cpu")
    ways = routes(read(measured, None), measured.rates.traffic, "cpu")
    found = rows(tables.moves(ways, tensors()))
    assert [each["from → to"] for each in found] == [each.name for each in ways]
    assert found[0]["64 MiB"] is None, "an L1 holds less"
    assert found[3]["1 KiB"] == 100e-9 + 1024 / 20e9


def test_curves(calibration):
    rates = calibration("cpu").rates
    bandwidth, latency = tables.bandwidth(rates), tables.latency(rates)
    assert [(each.name, len(each.points)) for each in bandwidth.series] == [
        ("read", 7),
        ("copy", 3),
        ("add", 3),
    ]
    assert bandwidth.log_x and bandwidth.log_y
    (line,) = latency.series
    assert [each.y for each in line.points] == [1e-9, 4e-9, 5e-9, 15e-9, 60e-9, 90e-9, 100e-9]
