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

from peakward.records.case import Configuration, ModelCase, Workload
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


def test_ours_in_fp8_also_meets_float8_and_without_torchao_that_is_said(run, monkeypatch):
    from against import float8

    arguments = ("--configuration", '{"precision": "fp8"}', "--budget-s", "0")
    monkeypatch.setattr(float8, "version", lambda: None)
    report = run(*arguments)
    assert report["torchao"] is None
    assert [(each["name"], each["reason"]) for each in report["failures"]] == [
        ("micro:2x32:forward", "not run: no time left"),
        ("micro:2x32:train_step", "no peer in float8: torchao is not installed"),
        ("micro:2x32:train_step", "not run: no time left"),
    ]
    monkeypatch.setattr(float8, "version", lambda: "0.17.0")
    assert [each["reason"] for each in run(*arguments)["failures"]] == ["not run: no time left"] * 3


@pytest.fixture
def peer_in(monkeypatch):
    """peer_in(recipe, d_ff): one train step of the peer by a recipe of float8, of a case in bf16."""
    pytest.importorskip("torchao")
    monkeypatch.syspath_prepend(BENCHMARKS)
    from against.peer import Setting, peer
    from against_transformers import MICRO_SHAPE

    def peer_(recipe, d_ff=1152):
        case = ModelCase(
            model=msgspec.structs.replace(MICRO_SHAPE, d_ff=d_ff),
            workload=Workload(batch_size=2, seq_len=32, pass_="train_step"),
            configuration=Configuration(precision="bf16"),
            device="cpu",
        )
        return peer(case, Setting(attention="sdpa-causal", scope="eager", float8=recipe))

    return peer_


def test_the_layers_that_gain_are_in_float8_and_train(peer_in):
    from against import float8

    with peer_in(None) as plain:
        plain.step()
        loss = plain.loss()
    for recipe in ("tensorwise", "tensorwise-fast"):
        with peer_in(recipe) as theirs:
            # Of 64 × 64, 1152 × 64 and 64 × 1152, and of the head, torchao takes those with more than 1024
            # outputs.
            layers = float8.converted(theirs.model)
            assert [each.rpartition(".")[2] for each in layers] == ["gate_proj", "up_proj"] * 2
            fast = theirs.model.get_submodule(layers[0]).config.gemm_config_grad_weight
            assert fast.use_fast_accum == (recipe == "tensorwise-fast")
            before = theirs.model.get_parameter(f"{layers[0]}.weight").detach().clone()
            theirs.step()
            assert theirs.loss() != loss
            assert theirs.loss() == pytest.approx(loss, rel=1e-2)
            assert not torch.equal(before, theirs.model.get_parameter(f"{layers[0]}.weight"))


def test_a_recipe_that_takes_no_layer_is_no_peer(peer_in):
    message = r"expected layers that gain by float8 rowwise, got none"
    with pytest.raises(PeakwardError, match=message), peer_in("rowwise"):
        pass


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
