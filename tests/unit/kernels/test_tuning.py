"""Settings found by timing: when they are looked for, which win, and what is kept of them."""

import json

import pytest
import torch

tuning = pytest.importorskip("peakward.kernels.ops.tuning")
CUDA = torch.device("cuda")
ONES = torch.ones(8)


class Kernel:
    """Takes as many seconds as its setting says."""

    def __init__(self, results=None):
        self.now_s = 0.0
        self.started = []
        self.results = results or {}

    def start(self, setting):
        self.started.append(setting)
        if setting == "does not fit":
            raise tuning.OutOfResources(1, 0, "shared memory")
        self.now_s += setting
        return (self.results.get(setting, ONES), None)


def forget():
    """As another process."""
    for each in (tuning._kept, tuning._settled, tuning.path_of):
        each.cache_clear()


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Where it is kept."""
    monkeypatch.setenv("PEAKWARD_TUNE_KERNELS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4/80GB")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    forget()
    yield tuning.path_of(CUDA)
    forget()


@pytest.fixture
def found(monkeypatch):
    def tuned(others, *, rule=10, kernel=None, inputs="bf16"):
        kernel = kernel or Kernel()

        def seconds(call):
            began_s = kernel.now_s
            call()
            return kernel.now_s - began_s

        monkeypatch.setattr(tuning, "seconds", seconds)
        return tuning.tuned(
            "k", lambda: inputs, CUDA, rule=rule, others=lambda: others, start=kernel.start
        )

    return tuned


@pytest.mark.parametrize("said", ["", "0"])
def test_without_being_asked_the_rule_decides_and_nothing_runs(monkeypatch, found, said):
    monkeypatch.setenv("PEAKWARD_TUNE_KERNELS", said)
    kernel = Kernel()
    assert found([1], kernel=kernel) == 10
    assert not kernel.started


def test_the_fastest_is_kept_for_the_device_and_said_once(asked, found, capsys):
    assert found([7, 5, 6]) == 5
    said = capsys.readouterr().err
    assert said.count("tuning k: bf16 once, 4 settings") == 1
    assert str(asked) in said
    assert asked.name.startswith("NVIDIA-A100-SXM4-80GB-triton-")
    assert json.loads(asked.read_text()) == {"k: bf16": "5"}


def test_what_is_kept_is_not_looked_for_again_by_another_process(asked, found, capsys):
    found([5])
    forget()
    capsys.readouterr()
    kernel = Kernel()
    assert found([5], kernel=kernel) == 5
    assert not kernel.started
    assert not capsys.readouterr().err


def test_inputs_of_another_kind_are_tuned_by_themselves(asked, found):
    found([5])
    assert found([4], inputs="fp16") == 4
    assert json.loads(asked.read_text()) == {"k: bf16": "5", "k: fp16": "4"}


def test_less_than_two_percent_leave_the_rule(asked, found):
    assert found([9.9]) == 10
    assert found([9.7], inputs="other") == 9.7


def test_what_does_not_fit_or_computes_something_else_is_left_out(asked, found):
    assert found([6, "does not fit"]) == 6
    wrong = {5: torch.zeros(8), 6: torch.full((8,), torch.nan), 7: ONES * 1.001}
    assert found([5, 6, 7], kernel=Kernel(wrong), inputs="other") == 7


def test_settings_that_are_no_longer_tried_are_looked_for_anew(asked, found):
    found([5])
    forget()
    assert found([6]) == 6


def test_inputs_of_a_kind_whose_rule_is_another_are_not_tuned_again(asked, found):
    assert found([11], rule=10) == 10
    assert json.loads(asked.read_text()) == {"k: bf16": "rule"}
    kernel = Kernel()
    assert found([11], rule=9, kernel=kernel) == 9
    forget()
    assert found([11], rule=9, kernel=kernel) == 9
    assert not kernel.started


def test_a_rule_that_does_not_fit_gives_way_to_what_does(asked, found):
    assert found([7, 6], rule="does not fit") == 6


def test_where_nothing_else_can_be_tried_nothing_is_timed_or_kept(asked, found, capsys):
    kernel = Kernel()
    assert found([], kernel=kernel) == 10
    assert not kernel.started
    assert not capsys.readouterr().err
    assert not asked.exists()


@pytest.mark.parametrize("special", [-torch.inf, torch.nan])
def test_what_is_not_finite_in_the_same_places_agrees(asked, found, special):
    same, fewer = torch.tensor([1.0, special]), torch.tensor([1.0, 2.0])
    kernel = Kernel({10: same, 5: fewer, 6: same})
    assert found([5, 6], kernel=kernel) == 6


def test_while_a_graph_is_captured_the_rule_decides(asked, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kernel = Kernel()
    assert found([5], kernel=kernel) == 10
    assert not kernel.started
    assert not asked.exists()


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"k: bf16": 5}', b"\xff"])
def test_a_file_of_something_else_is_said_and_begun_anew(asked, found, capsys, text):
    asked.parent.mkdir(parents=True)
    asked.write_bytes(text)
    assert found([5]) == 5
    assert "got something else" in capsys.readouterr().err
    assert json.loads(asked.read_text()) == {"k: bf16": "5"}


def test_what_cannot_be_read_or_replaced_is_said_and_leaves_nothing_beside_it(asked, found, capsys):
    asked.mkdir(parents=True)
    assert found([5]) == 5
    said = capsys.readouterr().err
    assert "got something else" in said
    assert "expected a cache folder that can be written" in said
    assert list(asked.parent.iterdir()) == [asked]


def test_two_processes_keep_each_others(asked, found):
    found([5])
    forget()
    asked.write_text(json.dumps({"of another": "1"}))
    forget()
    found([4])
    assert json.loads(asked.read_text()) == {"of another": "1", "k: bf16": "4"}


def test_where_nothing_can_be_written_it_is_kept_for_the_process_and_said(asked, found, capsys):
    asked.parent.parent.mkdir(parents=True)
    asked.parent.write_text("no folder")
    assert found([5]) == 5
    assert "expected a cache folder that can be written" in capsys.readouterr().err
    kernel = Kernel()
    assert found([5], kernel=kernel) == 5
    assert not kernel.started
