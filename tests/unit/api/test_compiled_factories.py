"""A factory whose module comes compiled: the start of a run, and what measures a case."""

import msgspec
import pytest

from peakward.api import machine
from peakward.api.investigating import aim, from_compiled, investigation, no_command
from peakward.lab.levers.prepare import prepare
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
    found = from_compiled(made, scope, here)
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
        assert from_compiled(made, scope, here) is made


def test_levers_that_were_named_must_apply_on_top(asked):
    made, here = asked(("compile",))
    with pytest.raises(PeakwardError, match="expected levers that change the start, got compile"):
        from_compiled(made, "block", here)


def test_without_a_compiler_there_is_no_such_start(asked):
    made, here = asked()
    assert made.levers == LEVERS
    with pytest.raises(PeakwardError, match="needs a C\\+\\+ compiler"):
        from_compiled(made, "model", msgspec.structs.replace(here, has_compiler=False))


def test_a_case_that_says_eager_is_not_measured_of_a_compiled_module(make_module_case):
    case = make_module_case("py:tiny_gpt:compiled_by_blocks")
    said = "compile=default,compile_scope=block of py:"
    with pytest.raises(PeakwardError, match=said) as caught, prepare(case):
        pass
    assert "\n" not in str(caught.value)
    wanted = msgspec.structs.replace(case.configuration, compile="default")
    with prepare(msgspec.structs.replace(case, configuration=wanted)) as step:
        assert all(each._compiled_call_impl for each in step.model.blocks)
