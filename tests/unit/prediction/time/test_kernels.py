"""The table of kernels against the operators that there are."""

import msgspec
import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.errors_seen import DEVICE, HOST, speedup
from peakward.prediction.time.kernels import (
    ELEMENTS_PER_SM_S,
    JOINED_ELEMENTS_PER_SM_S,
    KERNELS,
    LONG_ROW,
    LONG_ROW_FACTORS,
    NEVER_MEASURED,
    TIMES,
    WIDENED_ELEMENTS_PER_SM_S,
    is_guess,
    relative_time,
)
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.step import step_time

from .round_device import US, case, device, operator, tensor


def names(made):
    return {each.name.removeprefix("aten.") for each in op_graph(made).operators}


def test_every_kernel_is_of_an_operator_of_some_step():
    met = (
        names(case("small", precision="bf16-mixed", optimizer="adamw-fused"))
        | names(case("gpt2", precision="bf16", optimizer="adamw-triton"))
        | names(case("small", attention="sdpa-math"))
        | names(case("small", pass_="decode", attention="flash-decode", kv_cache="int8"))
    )
    of_modules = {"native_dropout", "native_dropout_backward"}
    assert set(KERNELS) - met == of_modules


def test_nothing_moves_its_bytes_faster_than_an_addition():
    assert min(each.factor for each in KERNELS.values()) >= 1.0
    assert all(each.n_launches >= 1 and each.start_s >= 0 for each in KERNELS.values())


@pytest.mark.parametrize("name", LONG_ROW_FACTORS)
def test_a_row_that_is_read_again_takes_longer(name):
    assert LONG_ROW_FACTORS[name] > KERNELS[name].factor


def test_the_vocabulary_of_the_sizes_is_a_short_row_and_gpt2s_a_long_one():
    assert case("small").model.vocab_size < LONG_ROW < case("gpt2").model.vocab_size


def test_an_h200_makes_350_billion_elements_a_second():
    assert pytest.approx(350e9) == 132 * ELEMENTS_PER_SM_S
    assert ELEMENTS_PER_SM_S > JOINED_ELEMENTS_PER_SM_S > WIDENED_ELEMENTS_PER_SM_S


# Peakward's own kernels on a device of round figures, by hand.

Q = tensor(4, 12, 128, 64, dtype="bfloat16")
CASE = case("small", precision="bf16", attention="flash")


def made(name, inputs, outputs, flops):
    found = operator(name, inputs, outputs, flops=flops)
    return msgspec.structs.replace(found, name=f"peakward.{name}")


def windowed(window):
    return of_case(CASE)._replace(window=window)


@pytest.mark.parametrize(
    ("name", "inputs", "share", "n_launches"),
    [
        ("flash_attention", [Q, Q, Q], 1 / 2, 2.0),  # half of the scores are masked
        ("flash_attention_backward", [Q, Q, Q, Q, Q], 2 / 5, 3.0),  # one of five made anew
    ],
)
def test_attention_is_at_the_rate_of_torchs(name, inputs, share, n_launches):
    elsewhere = device(compute_capability=(8, 0))
    found = cost(made(name, inputs, [Q], 10**9), of_case(CASE), elsewhere)
    assert found.device_s == pytest.approx(share * 1e-3 + 2 * US)
    assert (found.n_launches, found.bound) == (n_launches, "compute")


@pytest.mark.parametrize("kernel", ["own", "own-hopper"])
def test_on_hopper_it_is_at_its_own(kernel):
    hopper = msgspec.structs.replace(
        CASE, configuration=msgspec.structs.replace(CASE.configuration, attention="flash-hopper")
    )
    setting = of_case(hopper if kernel == "own-hopper" else CASE)
    for head_dim, of_table in ((64, 64), (72, 80), (80, 80), (128, 128)):
        q = tensor(4, 12, 128, head_dim, dtype="bfloat16")
        for name, pass_, share in (
            ("flash_attention", "forward", 1 / 2),
            ("flash_attention_backward", "backward", 2 / 5),
        ):
            found = cost(made(name, [q] * 5, [q], 10**9), setting, device())
            beside = TIMES[kernel][pass_][of_table]
            assert found.device_s == pytest.approx(share * beside * 1e-3 + 2 * US)
            assert is_guess(made(name, [q] * 5, [q], 1), setting, (9, 0)) == (kernel == "own")


def test_of_what_was_never_timed_beside_torchs_nothing_is_known():
    assert relative_time("own", "forward", 256, 2, (9, 0)) is None
    assert relative_time("own", "forward", 64, 4, (9, 0)) is None
    assert relative_time("own", "forward", 64, 2, (8, 0)) is None
    assert relative_time("efficient", "forward", 64, 2, (9, 0)) is None


def test_keys_beyond_a_window_are_skipped():
    forward = made("flash_attention", [Q, Q, Q], [Q], 10**9)
    found = cost(forward, windowed(32), device()).device_s
    pairs = 128 * 32 - 32**2 / 2
    beside = TIMES["own"]["forward"][64]
    assert found == pytest.approx(pairs / 128**2 * beside * 1e-3 + 2 * US)


def test_one_token_sees_the_whole_cache():
    one = tensor(4, 12, 1, 64, dtype="bfloat16")
    found = cost(made("decode_attention", [one, Q, Q], [one], 10**9), windowed(32), device())
    assert found.device_s == pytest.approx(1e-3 + 2 * US)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "share"),
    [
        ("bfloat16", 80, 0.81),
        ("bfloat16", 72, 0.81),
        ("int8", 128, 0.88),
        ("float8_e4m3fn", 80, 0.42),
        ("float8_e4m3fn", 128, 1.0),
        ("int8", 64, 1.0),
        ("bfloat16", 32, 1.0),
    ],
)
def test_a_cache_is_read_at_a_share_of_the_copys_rate(dtype, head_dim, share):
    """The types and sizes that were timed; others at all of it, as a guess."""
    q = tensor(4, 12, 1, head_dim, dtype="bfloat16")
    held = tensor(4, 12, 32_768, head_dim, dtype=dtype)
    reads = made("decode_attention", [q, held, held], [q], 4)
    found = cost(reads, of_case(CASE), device())
    moved = 2 * held.n_bytes + 2 * q.n_bytes
    assert found.device_s == pytest.approx(moved / share / 1e12 + 4 * US)
    assert is_guess(reads, of_case(CASE), (9, 0)) == (share == 1.0)
    assert is_guess(reads, of_case(CASE), (8, 0))


def test_sums_of_the_queries_gradient_are_moved_too():
    """Of 786 kB of bf16: zeros, read and written, and read again, in fp32."""
    backward = made("flash_attention_backward", [Q, Q, Q, Q, Q], [Q, Q, Q], 5)
    found = cost(backward, of_case(CASE), device())
    moved = 8 * Q.n_bytes + 4 * 2 * Q.n_bytes
    assert found.bound == "memory"
    assert found.device_s == pytest.approx(moved / 1e12 + 4 * US)


def test_a_type_that_nobody_measured_has_no_time():
    half = tensor(1, 2, 64, 64, dtype="float16")
    assert (
        cost(made("flash_attention", [half] * 3, [half], 100), of_case(CASE), device())[0] is None
    )


def test_a_step_with_a_kernel_that_was_never_measured_says_so_and_is_wider():
    long = {"batch_size": 64, "seq_len": 2048, "precision": "bf16"}
    torchs, own = (
        step_time(case("small", attention=each, **long), device()) for each in ("sdpa", "flash")
    )
    assert torchs.never_measured == ()
    assert set(own.never_measured) == {
        "peakward.flash_attention",
        "peakward.flash_attention_backward",
    }
    assert set(own.never_measured) <= NEVER_MEASURED
    low, high = DEVICE["calibrated"] if own.bound == "device" else HOST[True]
    guessed_s, step_s = own.never_measured_s, own.step_s.estimate
    assert 0 < guessed_s < step_s
    assert own.step_s.low == pytest.approx((step_s - guessed_s / 2) * low)
    assert own.step_s.high == pytest.approx(step_s * high + guessed_s)
    wide, narrow = speedup(torchs, own, 1.0), speedup(torchs, torchs, 1.0)
    assert wide.low < narrow.low and wide.high > narrow.high


def test_norms_rope_and_swiglu_move_their_operands_once():
    x = tensor(4096, 768, dtype="bfloat16")
    for name, factor, n_launches in (
        ("add_rms_norm", 1.0, 1),
        ("add_rms_norm_backward", 1.08, 2),
        ("rope", 1.0, 1),
        ("swiglu_backward", 1.0, 1),
    ):
        found = cost(made(name, [x, x], [x], 0), of_case(CASE), device())
        assert found.device_s == pytest.approx(factor * (3 * x.n_bytes / 1e12 + 2 * US))
        assert found.n_launches == n_launches
    fused = {"norm": "fused", "rope": "fused", "swiglu": "fused"}
    step = step_time(case("small", precision="bf16", **fused), device())
    assert {"peakward.add_rms_norm", "peakward.rope", "peakward.swiglu"} < own_names(step)
    assert step.never_measured == ()


def own_names(step):
    return {each.name for each in step.operators if each.name.startswith("peakward.")}


def test_the_loss_moves_its_operands_once():
    rows, n = tensor(4096, 50_000, dtype="bfloat16"), "cross_entropy_backward_over_logits"
    found = cost(made(n, [rows], [rows], 0), of_case(CASE), device())
    assert found.device_s == pytest.approx(2 * rows.n_bytes / 1e12 + 2 * US)
    step = step_time(case("small", precision="bf16", loss="fused"), device())
    assert own_names(step) == {
        "peakward.cross_entropy_over_logits",
        "peakward.cross_entropy_backward_over_logits",
    }
    assert step.never_measured == ("peakward.cross_entropy_over_logits",)
