"""The report of a snapshot: what is on the one screen, and what only in the whole."""

import msgspec

from peakward.records.memory_snapshot import (
    DeviceMemory,
    MemoryBalance,
    MemoryCheck,
    MemoryChurn,
    MemoryHolder,
    MemoryPeak,
    MemoryPoint,
    MemoryReport,
    MemoryShare,
    OutOfMemory,
)
from peakward.report import html, markdown
from peakward.report.memory import line, summary, verdict, whole

GIB = 2**30
HELD = MemoryBalance(
    allocated_bytes=3 * GIB, active_bytes=3 * GIB, reserved_bytes=4 * GIB, requested_bytes=2 * GIB
)
DEVICE = DeviceMemory(
    device=0,
    n_events=7,
    recorded_s=2.0,
    start=HELD,
    end=HELD,
    before_bytes=0,
    peak=MemoryPeak(
        at_s=1.0,
        balance=HELD,
        categories=(MemoryShare(name="optimizer_state", n=2, n_bytes=3 * GIB),),
        places=(MemoryShare(name="optimizer", n=2, n_bytes=3 * GIB),),
        holders=(
            MemoryHolder(
                source="/home/<b>/train.py:7 step",
                category="optimizer_state",
                n=2,
                n_bytes=3 * GIB,
                largest_bytes=2 * GIB,
                lines=("/home/<b>/train.py:7 step",),
            ),
        ),
        n_holders=1,
        ranges=("step",),
        uncertain_bytes=0,
    ),
    most_reserved_bytes=4 * GIB,
    timeline=(
        MemoryPoint(at_s=0.0, allocated_bytes=0, reserved_bytes=0),
        MemoryPoint(at_s=2.0, allocated_bytes=3 * GIB, reserved_bytes=4 * GIB),
    ),
    segments=(),
    churn=MemoryChurn(
        n_allocs=4,
        n_frees=2,
        allocated_bytes=5 * GIB,
        n_device_allocs=3,
        n_device_frees=0,
        n_retries=1,
        retry_bytes=GIB,
        n_steps=2,
    ),
    ooms=(),
    check=MemoryCheck(
        n_contradicting_events=0,
        n_contradicting_blocks=0,
        difference_bytes=0,
        n_sizes_checked=2,
        n_sizes_wrong=0,
    ),
)
FOUND = MemoryReport(
    source="a.pickle", devices=(DEVICE,), settings="", evidence=("why",), incomplete=("what",)
)
OOM = OutOfMemory(
    at_s=1.0,
    needed_bytes=GIB,
    device_free_bytes=GIB // 4,
    balance=HELD,
    cached_free_bytes=GIB,
    largest_free_bytes=GIB // 2,
    source=None,
)


def test_the_headline_can_stand_alone():
    assert summary(FOUND).headline == "peak 3.00 GiB allocated, 4.00 GiB reserved"
    two = msgspec.structs.replace(
        DEVICE, device=3, peak=None, n_events=0, most_reserved_bytes=9 * GIB
    )
    several = msgspec.structs.replace(FOUND, devices=(DEVICE, two))
    assert summary(several).headline.startswith("GPU 3: 3.00 GiB allocated")
    assert "nothing recorded" in summary(msgspec.structs.replace(FOUND, devices=())).headline


def test_a_screen_has_less_than_the_whole():
    short, long = markdown.render(summary(FOUND)), markdown.render(whole(FOUND))
    for text in ("optimizer state", "what", "<b>/train.py:7 step"):
        assert text.replace("<b>", "") in short.replace("\\<b\\>", "").replace("<b>", "").replace(
            "&lt;b&gt;", ""
        )
    for text in ("Allocator activity", "Memory over the recording", "why"):
        assert text in long and text not in short


def test_names_are_escaped_on_a_page():
    assert "<b>" not in html.render(whole(FOUND)).partition("train.py")[0][-60:]


def test_rates_by_second_and_step():
    text = markdown.render(whole(FOUND))
    (row,) = (each for each in text.splitlines() if each.startswith("| allocations "))
    assert [each.strip() for each in row.split("|")[2:5]] == ["4", "2", "2"]


def test_why_memory_ran_out():
    replace = msgspec.structs.replace
    assert "fragmentation" in verdict(OOM)
    assert "would not have sufficed" in verdict(replace(OOM, cached_free_bytes=GIB // 2))
    # Together they would have sufficed: the device's free memory counts where it could be had.
    assert "fragmentation" in verdict(replace(OOM, cached_free_bytes=GIB * 3 // 4))
    limited = verdict(replace(OOM, cached_free_bytes=0, device_free_bytes=2 * GIB))
    assert "limit on the process" in limited and "would not have sufficed" in limited


def test_lines_keep_the_end_of_their_path():
    assert line("/a/b/c/train.py:7 step") == "c/train.py:7 step"
    assert line("C:\\a\\b\\train.py:7 step") == "b/train.py:7 step"
    assert line("torch::autograd::generated::MmBackward0::apply").endswith("MmBackward0::apply")
    assert line(None) == "no line of Python"
