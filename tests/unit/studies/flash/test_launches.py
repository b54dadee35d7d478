"""Times that are the host's launches."""

import msgspec
import pytest

from peakward.records.measurement import Interval
from peakward.studies import flash
from peakward.studies.flash import conclusions
from peakward.studies.flash.grid import read
from peakward.studies.flash.launches import host_bound, said
from peakward.studies.scope import Scope


def host(readings, seconds):
    """Every time is at least this long, as where a GPU waits for its host."""
    for each in tuple(readings):
        if each.summary is None:
            continue
        step_s = max(seconds, each.summary.median_s.estimate)
        median = Interval(estimate=step_s, low=step_s * 0.99, high=step_s * 1.01)
        summary = msgspec.structs.replace(each.summary, median_s=median)
        readings.add(msgspec.structs.replace(each, summary=summary))
    return readings


def told(read_flash, seconds, **options):
    here, readings = read_flash(**options)
    return read(host(readings, seconds), here)


def test_where_work_takes_the_time_nothing_is_said(read_flash):
    cells = told(read_flash, 0.0)
    assert host_bound(cells) == frozenset()
    assert said(cells) == ()


def test_what_takes_no_longer_than_the_shortest_is_the_hosts(read_flash):
    cells = told(read_flash, 2e-4)
    bound = host_bound(cells)
    assert {each.seq_len for each in bound} == {128, 4096}
    assert all(each.seq_len < 65536 for each in bound)
    (found,) = said(cells)
    timed = sum(cell.attempt.status == "ok" for cell in cells)
    assert found.text.startswith(f"In {len(bound)} of {timed} times, of lengths up to 4,096, ")


def test_such_times_are_compared_in_no_sentence(read_flash):
    cells = told(read_flash, 2e-4)
    bound = host_bound(cells)
    ids = {cell.attempt.measurement.id for cell in cells if cell.attempt.case in bound}
    claims = (
        *conclusions.best(cells, None),
        *conclusions.against(cells),
        *conclusions.crossovers(cells),
    )
    assert claims
    assert not any(set(each.from_ids) & ids for one in claims for each in one.evidence)


@pytest.mark.parametrize(("roof", "is_bound"), [(1e18, True), (1e12, False)])
def test_of_a_call_timed_at_one_length_the_share_of_the_roof_tells(read_flash, roof, is_bound):
    roofs = {"fp32": roof, "tf32": roof, "bf16": roof}
    cells = told(read_flash, 0.0, scope=Scope("corners", seq_lens=(4096,)), roofs=roofs)
    known = {cell.attempt.case for cell in cells if cell.roof_share is not None}
    assert host_bound(cells) == (frozenset(known) if is_bound else frozenset())


def test_a_cpu_has_no_launches(read_flash):
    here, readings = read_flash(scope="small", device="cpu", roofs={"fp32": 1e18})
    assert host_bound(read(host(readings, 1.0), here)) == frozenset()
    parts = flash.parts(readings, here)
    assert not any("launches" in each.text for each in parts.conclusions)
    assert not any("host" in each for each in parts.notes)
