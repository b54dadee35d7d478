"""Rates in print: every figure in its table, every absence with its reason."""

from peakward.records.calibration import (
    Absence,
    AttentionRate,
    DiskRate,
    LaunchCost,
    LevelRate,
    LinkRate,
    LoadLatency,
    ProductRate,
    Rates,
    TrafficRate,
)
from peakward.report.calibration import sections

SIZE = {"batch_size": 1, "n_heads": 8, "head_dim": 64}
RATES = Rates(
    products=(
        ProductRate(kind="small m", compute_type="fp32", m=4, n=64, k=64, flops_per_s=1e9),
        ProductRate(kind="square", compute_type="fp32", m=64, n=64, k=64, flops_per_s=2e9),
        ProductRate(kind="square", compute_type="bf16", m=64, n=64, k=64, flops_per_s=3e9),
    ),
    traffic=(
        TrafficRate(operation="copy", size_bytes=4096, bytes_per_s=1e9),
        TrafficRate(operation="copy", size_bytes=64, bytes_per_s=2e9),
        TrafficRate(operation="add", size_bytes=64, bytes_per_s=3e9),
    ),
    launches=(LaunchCost(side="host", operation="matmul", call_s=1e-6),),
    attention=(
        AttentionRate(compute_type="fp32", pass_="forward", seq_len=128, flops_per_s=1e9, **SIZE),
        AttentionRate(compute_type="fp32", pass_="backward", seq_len=128, flops_per_s=2e9, **SIZE),
        AttentionRate(compute_type="bf16", pass_="backward", seq_len=128, flops_per_s=3e9, **SIZE),
    ),
    levels=(
        LevelRate(level="L1", working_set_bytes=64, capacity_bytes=128, bytes_per_s=1e9),
        LevelRate(level=None, working_set_bytes=128, bytes_per_s=1e8),
    ),
    latency=(LoadLatency(level="L1", working_set_bytes=64, load_s=1e-9),),
    link=(LinkRate(memory="pinned", direction="to host", size_bytes=8, bytes_per_s=1e9),),
    disk=(DiskRate(source="page cache", size_bytes=8, block_bytes=4, bytes_per_s=1e9),),
    absent=(
        Absence(subject="link", reason="no GPU"),
        Absence(subject="attention", figure="fp16 forward at 128", reason="too slow"),
    ),
    doubts=("traffic: other work took 20% of the cores while timing",),
)


def rows():
    return {
        section.title: section.blocks[0].table.rows
        for section in sections(RATES)
        if section.title != "Doubts"
    }


def test_every_figure_has_its_place():
    assert rows() == {
        "Matrix products by shape": (
            ("square", 64, 64, 64, 2e9, 3e9),
            ("small m", 4, 64, 64, 1e9, None),
        ),
        "Bandwidth by size": ((64, 2e9, 3e9), (4096, 1e9, None)),
        "Launch costs": (("host", "matmul", 1e-6),),
        "Attention": (("fp32", 1, 8, 128, 64, 1e9, 2e9), ("bf16", 1, 8, 128, 64, None, 3e9)),
        "Levels of memory": ((64, "L1", 128, 1e9), (128, None, None, 1e8)),
        "Latency of loads": ((64, "L1", 1e-9),),
        "Host link": (("pinned", "to host", 8, 1e9),),
        "Disk": (("page cache", 8, 4, 1e9),),
        "Not measured": (
            ("Host link", "all", "no GPU"),
            ("Attention", "fp16 forward at 128", "too slow"),
        ),
    }


def test_a_row_has_a_cell_for_every_column():
    for section in sections(RATES)[:-1]:
        table = section.blocks[0].table
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_doubt_is_said():
    (note,) = sections(RATES)[-1].blocks
    assert note.text == (
        "Traffic: other work took 20% of the cores while timing: its figures may be too slow."
    )


def test_nothing_measured_is_nothing_shown():
    assert sections(Rates()) == ()
