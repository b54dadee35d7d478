"""A factory whose module comes compiled: the start of a run, and what measures a case."""

import msgspec
import pytest

from peakward.api import machine
from peakward.api.investigating import aim, as_it_comes, investigation, no_command
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.messages import Checked
from peakward.levers.catalogue import LEVERS
from peakward.records.errors import PeakwardError


@pytest.fixture
def asked(make_module_case, monkeypatch):
    """asked(levers, **settings): a run of a factory on this machine, and the machine."""
    monkeypatch.setattr("peakward.lab.measure.probe.has_compiler", lambda: True)

    def make(levers=None, **settings):
        case = make_module_case("py:tiny_gpt:compiled", **settings)
        here = machine.this_machine("cpu")
        made = investigation(
            case,
            levers,
            here,
            budget_s=60.0,
            sought=aim("latency", None, "approximate", here),
            command="",
            to_command=no_command,
        )
        return made, here

    return make


@pytest.mark.parametrize(("scope", "said"), [("model", "as a whole"), ("block", "by blocks")])
def test_the_start_is_compiled_as_the_factory_had_it(scope, said, asked):
    made, here = asked()
    found = as_it_comes(made, Checked(compiled=scope), here)
    configuration = found.case.configuration
    assert (configuration.compile, configuration.compile_scope) == ("default", scope)
    assert "compile" not in [each.name for each in found.applicable]
    assert "bf16-mixed" in [each.name for each in found.applicable]
    (note,) = found.given
    assert said in note and "\n" not in note


def test_what_is_not_compiled_or_asks_for_a_mode_itself_starts_as_it_says(asked):
    for scope, settings in (
        (None, {}),
        ("block", {"compile": "default", "compile_scope": "model"}),
    ):
        made, here = asked(**settings)
        assert as_it_comes(made, Checked(compiled=scope), here) is made


def test_levers_that_were_named_must_apply_on_top(asked):
    made, here = asked(("compile",))
    with pytest.raises(PeakwardError, match="expected levers that change the start, got compile"):
        as_it_comes(made, Checked(compiled="block"), here)


def test_what_comes_in_bf16_starts_so_and_no_precision_is_tried(asked):
    made, here = asked()
    found = as_it_comes(made, Checked(in_bf16=True), here)
    assert found.case.configuration.precision == "bf16"
    names = {each.name for each in found.applicable}
    assert {"fused-optimizer", "checkpointing"} <= names
    assert not names & {"tf32", "bf16-mixed", "bf16", "fp8"}
    (note,) = found.given
    assert "came with parameters in bf16" in note


def test_another_precision_of_what_comes_in_bf16_is_refused(asked):
    made, here = asked(("bf16-mixed",))
    with pytest.raises(
        PeakwardError, match="bf16-mixed needs parameters in fp32, and they come in"
    ):
        as_it_comes(made, Checked(in_bf16=True), here)
    made, here = asked(precision="bf16-mixed")
    with pytest.raises(PeakwardError, match="expected precision bf16 of a module whose parameters"):
        as_it_comes(made, Checked(in_bf16=True), here)


def test_without_a_compiler_there_is_no_such_start(asked):
    made, here = asked()
    assert made.levers == LEVERS
    with pytest.raises(PeakwardError, match="needs a C\\+\\+ compiler"):
        as_it_comes(
            made, Checked(compiled="model"), msgspec.structs.replace(here, has_compiler=False)
        )


def test_a_case_that_says_eager_is_not_measured_of_a_compiled_module(make_module_case):
    case = make_module_case("py:tiny_gpt:compiled_by_blocks")
    said = "compile=default,compile_scope=block of py:"
    with pytest.raises(PeakwardError, match=said) as caught, prepare(case):
        pass
    assert "\n" not in str(caught.value)
    wanted = msgspec.structs.replace(case.configuration, compile="default")
    with prepare(msgspec.structs.replace(case, configuration=wanted)) as step:
        assert all(each._compiled_call_impl for each in step.model.blocks)
