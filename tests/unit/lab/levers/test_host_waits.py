"""Lines at which torch warns that the host waits, which needs a GPU: here its warning is given by hand."""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_map

from peakward.lab.levers.host_waits import SYNCHRONIZING, warned_lines


def wait(x=None):
    warnings.warn(f"{SYNCHRONIZING} (Triggered internally at x.cpp:1.)", stacklevel=1)
    return x


def test_each_line_is_named_with_its_code_and_counted():
    with warned_lines() as seen:
        for _ in range(3):
            wait()
    (line,) = seen
    assert line.startswith("test_host_waits.py:")
    assert line.endswith("stacklevel=1)")
    assert seen[line] == 3


def test_calls_inside_of_torch_are_those_of_the_user_s_line(monkeypatch):
    """As printing a tensor, which reads it."""

    class Reads(torch.nn.Module):
        def forward(self, x):
            return x

    module = Reads()
    module.register_forward_hook(lambda *_: None)
    code = compile(
        "import warnings\ndef inside(): warnings.warn('" + SYNCHRONIZING + "', stacklevel=1)",
        torch.__file__,
        "exec",
    )
    names = {}
    exec(code, names)
    with warned_lines() as seen:
        tree_map(lambda _: names["inside"](), [1])  # here
    (line,) = seen
    assert line.endswith("# here")


def test_other_warnings_go_on():
    with pytest.warns(UserWarning, match="mine"), warned_lines() as seen:
        warnings.warn("mine", stacklevel=1)
    assert not seen
