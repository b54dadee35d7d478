"""Readings whose figures are known: every operator takes a multiple of its least time."""

from collections import defaultdict

import msgspec
import pytest

from peakward.prediction.floor import ceilings, compute_type, roof
from peakward.prediction.operators.op_graph import category, op_graph
from peakward.records.calibration import MatmulRate
from peakward.records.profile import OperatorRate
from peakward.studies.engine import view
from peakward.studies.roofline import STUDY
from peakward.studies.roofline.places import FILLED, Product, operations, product
from peakward.studies.roofline.steps import placed, points
from peakward.studies.scope import Scope, micro
from peakward.traces.row_categories import shaping

RATES = {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12}
OVER_ROOF = {"product": 2.0, "other": 4.0}
"""Times an operator's least time that it takes."""


@pytest.fixture
def small():
    """One small model at one length, over the whole grid of a GPU."""
    return Scope("corners", models=(micro(),), seq_lens=(128,))


@pytest.fixture
def roofed(calibration):
    """A full calibration with matmul rates and 1 TB/s: ridges at 50 and 800."""
    rates = [MatmulRate(compute_type=k, size=4096, flops_per_s=v) for k, v in RATES.items()]
    return lambda device="cuda": msgspec.structs.replace(calibration(device), matmul=tuple(rates))


@pytest.fixture
def traced(profile, roofed):
    """Makes a profile of a case from its graph."""

    def make(case, n_steps=3):
        on = ceilings(compute_type(case), roofed(), None)
        totals, rates = defaultdict(float), []
        for each in op_graph(case).operators:
            least = roof(operations(each), each.bytes_read + each.bytes_written, on).floor_s
            key = product(each)
            over = OVER_ROOF["other" if key is None else "product"]
            ns = least * 1e9 * over * each.count * n_steps
            if each.name in FILLED:
                # A fill inside of it takes half of its time.
                ns /= 2
                totals[each.phase, "copy"] += ns
                filled = Product("fill_", each.outputs[0].shape, ())
                rates.append(_rate(filled, each.count * n_steps, ns))
            totals[each.phase, _category(each)] += ns
            if key is not None:
                rates.append(_rate(key, each.count * n_steps, ns))
        found = profile(case, n_steps)
        (group, *_) = found.profile.categories
        categories = tuple(
            msgspec.structs.replace(
                group, name=name, category=name, phase=phase, total_ns=round(ns)
            )
            for (phase, name), ns in totals.items()
        )
        changed = msgspec.structs.replace(
            found.profile, categories=categories, operators=tuple(rates)
        )
        return msgspec.structs.replace(found, profile=changed)

    return make


def _category(operator):
    """As a trace tells it: of a compiled kernel by what it names."""
    shaped = shaping(tuple(each.removeprefix("aten.") for each in operator.fused))
    return category(operator.name) if shaped is None else str(shaped)


def _rate(key, n, ns):
    dims = ", ".join("×".join(map(str, sides)) for sides in (key.a, key.b) if sides)
    bare = dict.fromkeys(OperatorRate.__struct_fields__)
    return OperatorRate(
        **bare | {"name": f"aten::{key.name}", "dims": dims, "n": n, "kernel_ns": round(ns)}
    )


@pytest.fixture
def told(setting, gathered, roofed, traced):
    """Readings of the study, with roofs and made-up profiles."""

    def make(here, **options):
        readings = gathered(STUDY, here, **options)
        readings.calibration = roofed(here.device)
        for each in readings.profiles:
            readings.add_profile(traced(each.case))
        return readings

    return make


@pytest.fixture
def parts(setting, told, small):
    """Makes the study's parts on a GPU that nobody catalogued."""

    def make(here=None, **options):
        here = here or setting(small)
        return STUDY.parts(told(here, **options), here)

    return make


@pytest.fixture
def cells(setting, told, small):
    """A small model's training steps on a GPU that nobody catalogued."""
    here = setting(small)
    return tuple(placed(view(points(here), told(here), here)))
