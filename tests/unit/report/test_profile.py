"""What a trace's report says first, and what it leaves out."""

from pathlib import Path

import msgspec
import pytest

from peakward.records.profile import Job, Rank
from peakward.report import rank_sentences
from peakward.report.document import Fact, Note, TableBlock
from peakward.report.profile import job, summary, whole, whole_job
from peakward.report.profile_tables import ranks
from peakward.traces.trace import Trace

TRACES = Path(__file__).parents[2] / "data" / "traces"


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
        "GPU busy 15.0% of 34.1 ms; largest idle cause: host-bound, 83.0% of the span"
    )


def test_the_headline_of_a_trace_with_steps_is_of_one():
    assert summary(
        Trace.open(TRACES / "h200_decoder_cuda_graphs.json.gz").profile()
    ).headline.startswith("GPU busy 84.0% of 3 steps of 5.99 ms; largest idle cause: ")


def test_of_several_gpus_it_is_said_whose_times_are_shown(compiled):
    found = compiled.profile()
    twice = msgspec.structs.replace(found.breakdown, devices=found.breakdown.devices * 2)
    both = msgspec.structs.replace(found, breakdown=twice)
    said = "2: times are sums over them; findings give the mean GPU's"
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


def test_ranks_name_the_one_that_is_late():
    rank = Rank(
        rank=0, source="a", offset_ns=0, compute_ns=2, communication_ns=1, waited_ns=1, n_last=0
    )
    late = msgspec.structs.replace(rank, rank=1, source="b", waited_ns=0, n_last=9)
    found = Job(ranks=(rank, late), n_collectives=9, n_unmatched=1, imbalance=1.25, straggler=1)
    shown = job(found)
    assert shown.headline == (
        "9 collectives that all of them have; rank 1 is late more often than chance"
    )
    assert any(isinstance(each, Note) and "left out" in each.text for each in shown.blocks)
    assert "took 1.25× the mean of all ranks" in ranks(found).note
    idle = msgspec.structs.replace(found, imbalance=None)
    assert "the mean of all" not in ranks(idle).note


def test_unequal_compute_is_a_sentence():
    shown = " ".join(
        rank_sentences.sentences(
            msgspec.structs.replace(
                job_of(2),
                imbalance=1.2,
                ranks=tuple(
                    msgspec.structs.replace(each, compute_ns=ns, exposed_ns=1)
                    for each, ns in zip(ranks_of(2), (8_000_000, 12_000_000), strict=True)
                ),
            )
        )
    )
    assert (
        "Compute is unequal: 8.00 ms on rank 0, 12.0 ms on rank 1, which is 1.20× the mean."
        in shown
    )
    assert "0% of all communication is hidden" in shown


def ranks_of(n):
    """So many, all alike."""
    return tuple(
        Rank(
            rank=at, source=f"{at}", offset_ns=0, compute_ns=2, communication_ns=1, waited_ns=1, n_last=at
        )
        for at in range(n)
    )  # fmt: skip


def job_of(n, **others):
    fields = {"n_collectives": 9, "n_unmatched": 0, "imbalance": 1.0, "straggler": None} | others
    return Job(ranks=ranks_of(n), **fields)


def notes(document):
    return " ".join(each.text for each in document.blocks if isinstance(each, Note))


def test_many_ranks_have_room_on_one_page():
    (table,) = [each.table for each in job(job_of(1000)).blocks if isinstance(each, TableBlock)]
    assert [row[0] for row in table.rows] == [str(each) for each in range(984, 1000)]
    assert "984 ranks that were seldom the last to begin are left out" in table.note
    whole = whole_job(job_of(1000), [])
    assert len(whole.blocks[0].table.rows) == 1000


def test_ranks_without_a_file_are_named():
    assert "The job has 12 ranks, but no file of ranks 1 to 3, 5. If" in notes(
        job(job_of(8, absent=(1, 2, 3, 5)))
    )
    assert "but no file of rank 1. If" in notes(job(job_of(8, absent=(1,))))
    assert "no file" not in notes(job(job_of(8)))


def test_clocks_that_no_collective_ties_are_not_compared():
    found = job(job_of(2, n_collectives=0))
    assert "Without one, clocks of different hosts cannot be compared" in notes(found)
    (table,) = [each.table for each in found.blocks if isinstance(each, TableBlock)]
    assert {row[-2:] for row in table.rows} == {(None, None)}
    assert "aligned" not in table.note
