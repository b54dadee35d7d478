"""What a trace's report says first, and what it leaves out."""

from pathlib import Path

import msgspec
import pytest

from peakward.records.profile import Job, Rank
from peakward.report.document import Fact, Note, TableBlock
from peakward.report.profile import job, summary, whole
from peakward.report.profile.rank_tables import ranks
from peakward.traces.trace import Trace

TRACES = Path(__file__).parents[3] / "data" / "traces"


@pytest.fixture(scope="module")
def compiled():
    return Trace.open(TRACES / "h200_decoder_compiled.json.gz")


def titles(document):
    inside = [block for section in document.sections for block in section.blocks]
    return [
        each.table.title for each in (*document.blocks, *inside) if isinstance(each, TableBlock)
    ]


def test_the_headline_names_the_greatest_cause_of_idleness(compiled):
    assert summary(compiled.profile()).headline == (
        "GPU busy 15.0% of 34.1 ms; most of the idle time: the host had not launched yet, "
        "83.0% of the span"
    )


def test_of_several_gpus_it_is_said_whose_times_are_shown(compiled):
    found = compiled.profile()
    twice = msgspec.structs.replace(found.breakdown, devices=found.breakdown.devices * 2)
    both = msgspec.structs.replace(found, breakdown=twice)
    said = "2: times are sums over them, those of findings of the mean one"
    assert Fact(name="GPUs", value=said) in summary(both).blocks[0].facts
    assert "GPUs" not in {each.name for each in summary(found).blocks[0].facts}


def test_a_part_has_no_idle_causes_and_no_critical_path(compiled):
    part = compiled.profile(phase="optimizer")
    assert summary(part).headline.startswith("the phase optimizer: GPU busy")
    assert not {"Why the GPU was idle", "The critical path by kind"} & set(titles(whole(part)))


def test_a_part_without_work_says_so(compiled):
    assert summary(compiled.profile(phase="other")).headline == "no GPU work in the phase other"


def test_a_trace_without_work_says_what_to_do(compiled):
    nothing = msgspec.structs.replace(compiled.profile().breakdown.together, span_ns=0, busy_ns=0)
    found = compiled.profile()
    breakdown = msgspec.structs.replace(found.breakdown, together=nothing)
    headline = summary(msgspec.structs.replace(found, breakdown=breakdown)).headline
    assert headline.startswith("no GPU work: profile at least one whole step")


def test_what_is_incomplete_stands_on_the_screen():
    found = Trace.open(TRACES / "h200_decoder_cuda_graphs.json.gz").profile()
    (note,) = [each for each in summary(found).blocks if isinstance(each, Note)]
    assert note.text == found.incomplete[0]


def test_ranks_name_the_one_that_is_late(compiled):
    rank = Rank(
        rank=0, source="a", offset_ns=0, compute_ns=2, communication_ns=1, waited_ns=1, n_last=0
    )
    late = msgspec.structs.replace(rank, rank=1, source="b", waited_ns=0, n_last=9)
    found = Job(ranks=(rank, late), n_collectives=9, n_unmatched=1, imbalance=1.25, straggler=1)
    shown = job(found, [summary(compiled.profile())] * 2)
    assert shown.headline == (
        "9 collectives that all of them have; rank 1 is late more often than chance"
    )
    assert any(isinstance(each, Note) and "left out" in each.text for each in shown.blocks)
    assert "did so 1.25× as long as the mean of all" in ranks(found).note
    idle = msgspec.structs.replace(found, imbalance=None)
    assert "the mean of all" not in ranks(idle).note
