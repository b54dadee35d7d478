"""The benchmark of loss curves: its arms on a CPU, what it says of them, and how it goes on."""

import json

import pytest

import optimizer_states
from loss_curves import training, verdicts
from peakward.records.errors import PeakwardError

SMOKE = ("--text", "python-topics", "--steps", "8", "--batch", "2", "--length", "32")
ARMS = (
    "fp32:fp32",
    "fp32:8bit-nearest",
    "bf16-mixed:bf16",
    "fp16-mixed:fp32",
    "fp16-mixed-unscaled:fp32",
    "bf16:bf16",
    "fp8:8bit",
)


@pytest.fixture
def run(tmp_path):
    """run(*arguments): the script in this process, with one file."""

    def run_(*arguments):
        given = optimizer_states.parse([*SMOKE, *arguments, "--out", str(tmp_path / "out.json")])
        return optimizer_states.run(given)["losses"]

    return run_


@pytest.mark.full
def test_all_arms_learn_from_the_same_start(run):
    runs = run("--arms", *ARMS, "--seeds", "2")["runs"]
    assert list(runs) == list(ARMS)
    for curves in runs.values():
        assert [each["seed"] for each in curves] == [0, 1]
        for each in curves:
            assert [point["step"] for point in each["curve"]] == [*range(1, 9)]
    of_seed = {name: curves[0]["curve"] for name, curves in runs.items()}
    plain = of_seed["fp32:fp32"]
    for name, curve in of_seed.items():
        # Roundings alone part the first losses, and tell each arm from plain fp32.
        assert curve[0]["train"] == pytest.approx(plain[0]["train"], abs=0.02)
        assert curve[-1]["held_out"] < curve[0]["held_out"]
        assert name == "fp32:fp32" or curve != plain


def test_a_run_goes_on_where_it_was_ended(run, tmp_path, monkeypatch):
    took, real = [], training.trained

    def ends_at_the_fourth(*args, **kwargs):
        took.append(1)
        if len(took) == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    two = ("--arms", "fp32:fp32", "fp8:fp32", "--seeds", "2")
    monkeypatch.setattr(training, "trained", ends_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run(*two)
    held = json.loads((tmp_path / "out.json").read_text())["losses"]["runs"]
    assert {name: len(each) for name, each in held.items()} == {"fp32:fp32": 2, "fp8:fp32": 1}
    last = {"seed": 1, "curve": [{"held_out": 9.0}], "wall_s": 1.0}
    monkeypatch.setattr(training, "trained", lambda *_, seed: last | {"seed": seed})
    found = run(*two)
    assert found["runs"] == {**held, "fp8:fp32": [*held["fp8:fp32"], last]}
    assert found["judged"].keys() == {"fp32:fp32", "fp8:fp32"}
    with pytest.raises(PeakwardError, match=r"expected the setting .* take another --out"):
        run(*two, "--steps", "9")


def curves(*losses):
    """The runs of seeds 0, 1, …, by their last held-out losses."""
    return [{"seed": seed, "curve": [{"held_out": each}]} for seed, each in enumerate(losses)]


def test_no_worse_is_less_than_another_seed_changes():
    found = verdicts.judged(
        {
            "first": curves(1.00, 1.10, 1.20),  # A deviation of 0.1.
            "close": curves(1.01, 1.09, 1.20),
            "above": curves(1.02, 1.13, 1.22),
            "far": curves(1.30, 1.41, 1.50),
            "scattered": curves(1.30, 0.90, 1.20),
            "fresh": curves(1.00),
            "lost": curves(1.00, None, 1.20),
        }
    )
    assert found["first"] == {"mean": pytest.approx(1.1), "stdev_over_seeds": pytest.approx(0.1)}
    assert "fresh" not in found
    said = [each.rpartition(": ")[2] for each in verdicts.sentences(found)[1:5]]
    assert said == ["no worse.", "worse, by less than a deviation.", "worse.", "not decided."]
    assert verdicts.sentences(found)[5] == "lost diverges (seeds 1)."
    # Student's t of two degrees of freedom, 4.303, over differences of 0.01, -0.01 and 0.
    assert found["close"]["interval"] == pytest.approx([-0.02484, 0.02484], abs=1e-4)


def test_beside_one_that_diverges_nothing_is_judged():
    found = verdicts.judged({"first": curves(1.0, None), "other": curves(1.0, 1.0)})
    assert verdicts.sentences(found) == [
        "Nothing is judged: the first arm has no two finite losses."
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arms", "fp4:fp32"), "expected precision:moments of fp32, "),
        (("--arms", "bf16:8bit"), "expected bf16:bf16, got 'bf16:8bit'"),
        (("--seeds", "1"), "one seed has no spread"),
        (("--device", "cuda", "--arms", "fp8:8bit-nearest"), "it is a control on a CPU"),
    ],
)
def test_bad_input_is_refused(run, capsys, arguments, said):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert said in capsys.readouterr().err
