"""The studies by name."""

import ast
from pathlib import Path

import pytest

import peakward.studies
from peakward.records.errors import PeakwardError
from peakward.studies.registry import STUDIES, specification
from peakward.studies.scope import Scope

MOST_SMALL_CASES = 40
OF_CASES = [each.name for each in STUDIES.values() if each.measures == "cases"]


@pytest.mark.parametrize("name", sorted(set(STUDIES) - set(OF_CASES)))
@pytest.mark.parametrize("scope", ["small", "corners", "full"])
def test_what_measures_no_cases_plans_none(name, scope, setting):
    assert specification(name).plan(setting(scope)) == ()


@pytest.mark.parametrize("name", OF_CASES)
def test_a_study_of_cases_has_a_plan_for_each_scope(name, setting):
    spec = specification(name)
    sizes = [len(spec.plan(setting(scope))) for scope in ("small", "corners", "full")]
    assert sizes[1] >= 12, "the corners and at least twelve cases"
    assert sizes[2] > sizes[1]
    assert len(spec.plan(setting("small", "cpu"))) <= MOST_SMALL_CASES


@pytest.mark.parametrize("name", OF_CASES)
@pytest.mark.parametrize("scope", ["small", "corners", "full"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_case_is_planned_twice_and_all_can_run(name, scope, device, setting):
    here = setting(Scope(scope), device)
    plan = specification(name).plan(here)
    assert len(plan) == len(set(plan))
    models = [case for case, _ in plan if hasattr(case, "configuration")]
    assert [case for case in models if here.obstacle(case)] == []
    elsewhere = {"cpu"} if name in ("vectorization", "collectives") else set()
    assert {case.device for case, _ in plan} == {device} | elsewhere


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(PeakwardError, match="perhaps warmup"):
        specification("warm-up")


def test_the_registry_imports_no_study_at_the_top():
    source = Path(peakward.studies.__path__[0], "registry.py").read_text()
    imported = {node.module for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("peakward.studies") for name in imported)
