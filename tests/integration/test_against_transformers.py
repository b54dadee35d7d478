"""The benchmark against transformers: a run on the CPU, and how its turns are taken."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from peakward.records.errors import PeakwardError

pytest.importorskip("transformers")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


SMOKE = ("--device", "cpu", "--sizes", "micro", "--pairs", "3", "--turn-s", "0.005")


@pytest.fixture
def interleaved(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from against import interleaved

    return interleaved


@pytest.fixture
def run(monkeypatch):
    """run(*arguments): the script in this process, as a JSON document."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import against_transformers

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run_(*arguments):
        options = against_transformers.parse([*SMOKE, *arguments])
        return json.loads(msgspec.json.encode(against_transformers.run(options)))

    yield run_
    torch.set_num_threads(n_threads)


@pytest.mark.full
def test_a_run_on_the_cpu(tmp_path):
    out = tmp_path / "new" / "result.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "against_transformers.py", *SMOKE, "--out", out],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,  # against a hang alone
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_bytes())
    assert not report["failures"]
    assert [each["name"] for each in report["outcomes"]] == [
        "micro:2x32:forward",
        "micro:2x32:train_step",
    ]
    for each in report["outcomes"]:
        ours, theirs = each["guard"]["losses"]["fp32"]
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert [turn["arm"] for turn in each["turns"]] == list("ABBAAB")
        assert len(each["pairs"]) == 3
        assert [setting["reason"] for setting in each["peer_settings"]] == [None, None]
        best = min(setting["solo"]["step_s"] for setting in each["peer_settings"])
        assert each["peer_solo"]["step_s"] == best
    forward, train = (each["flops_per_step"] for each in report["outcomes"])
    assert train == 3 * forward
    assert done.stdout.count("| micro:2x32:train_step |") == 4


@pytest.mark.full
def test_a_configuration_is_that_of_its_part(tmp_path, run):
    best = tmp_path / "best.json"
    best.write_text('{"micro:2x32:forward": {"precision": "bf16-mixed"}}')
    (only,) = run("--only", "forward", "--configuration", f"@{best}")["outcomes"]
    assert only["case"]["configuration"]["precision"] == "bf16-mixed"
    assert set(only["guard"]["losses"]) == {"fp32", "bf16-mixed"}


def test_without_time_nothing_runs_and_that_is_said(tmp_path, run):
    out = tmp_path / "result.json"
    report = run("--budget-s", "0", "--out", str(out))
    assert not report["outcomes"]
    assert {each["reason"] for each in report["failures"]} == {"not run: no time left"}
    assert json.loads(out.read_bytes()) == report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "huge"), "expected parts such as small:train_step, got 'huge'"),
        (("--configuration", '{"precison": "bf16"}'), "expected a Configuration"),
    ],
)
def test_bad_input_is_refused(arguments, message, run):
    with pytest.raises(PeakwardError, match=message):
        run(*arguments)


def test_unequal_losses_are_no_contest(run, monkeypatch):
    """Planted: a decoder without rotations, whose weights fit all the same."""
    from peakward.kernels.ops.rotation import api

    monkeypatch.setattr(api, "rotate", lambda x, cos, sin: x)
    from against.duel import losses_on_equal_weights

    losses_on_equal_weights.cache_clear()
    (failed,) = run("--only", "forward")["failures"]
    losses_on_equal_weights.cache_clear()
    assert "expected equal losses on equal weights in fp32" in failed["reason"]


class Recorded:
    def __init__(self, name, log):
        self.name, self.log = name, log

    @contextmanager
    def __call__(self):
        self.log.append(f"build {self.name}")
        yield self.name
        self.log.append(f"close {self.name}")


def test_order_pairs_neighbours_and_turns_round(interleaved):
    assert interleaved.order(4) == "ABBAABBA"


def test_one_resident_never_holds_two_arms(interleaved):
    log = []
    arms = {name: Recorded(name, log) for name in "AB"}
    with interleaved.one_resident(
        arms, lambda arm: log.append(f"warm {arm}"), lambda: log.append("release")
    ) as take:
        for name in "ABBA":
            log.append(f"turn {take(name)}")
    assert log == [
        *("release", "build A", "warm A", "turn A"),
        *("close A", "release", "build B", "warm B", "turn B", "turn B"),
        *("close B", "release", "build A", "warm A", "turn A", "close A"),
    ]


def test_pairs_have_the_base_first_whatever_the_order(interleaved):
    turns = [
        interleaved.Turn(arm=arm, n_steps=1, median_s=seconds, telemetry=None)
        for arm, seconds in (("A", 2.0), ("B", 1.0), ("B", 1.5), ("A", 3.0))
    ]
    pairs = interleaved.pairs_of(turns, base="A")
    assert [(pair.base_s, pair.candidate_s) for pair in pairs] == [(2.0, 1.0), (3.0, 1.5)]
