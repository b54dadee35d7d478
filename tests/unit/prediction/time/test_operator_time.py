"""Calls of single operators on a device of round figures, by hand."""

import msgspec
import pytest

from peakward.prediction.time.device_model import TrafficCurve
from peakward.prediction.time.kernels import DROPPED_PER_SM_S, TIMES
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case

from .round_device import ONE_TILE, US, case, device, operator, tensor

CASE = case("small", batch_size=4, seq_len=128)
"""Of 512 tokens."""
TILE_S = 16.777216 * US
"""Of 128 × 128 × 512: 2 · 128 · 128 · 512 FLOPs at 1 TFLOP/s."""
START_S, LAUNCH_S = 3 * US, 2 * US


def product(m, k, n, dtype="float32", phase="forward", name="mm", batch=()):
    return operator(
        name,
        [tensor(*batch, m, k, dtype=dtype), tensor(*batch, k, n, dtype=dtype)],
        [tensor(*batch, m, n, dtype=dtype)],
        phase,
        flops=2 * m * k * n,
    )


def seconds(made, of=CASE, **changes):
    return cost(made, of_case(of), device(**changes)).device_s


def elements_s(n, per_s=350e9):
    """At a rate of an H200's 132 multiprocessors, of which there are 100."""
    return n / (per_s * 100 / 132)


def test_a_product_takes_its_tiles_and_a_start():
    found = cost(product(512, 512, 128 * 25), of_case(CASE), device())
    assert found.device_s == pytest.approx(TILE_S + START_S)  # 4 × 25 tiles
    assert (found.bound, found.n_launches) == ("compute", 1.4)


def test_a_bias_is_not_a_factor():
    made = product(512, 512, 128, name="addmm")
    bias = operator("addmm", [tensor(128), *made.inputs], made.outputs, flops=made.flops)
    assert seconds(bias) == seconds(product(512, 512, 128))


@pytest.mark.parametrize("added", [(200, 128, 128), (200, 1, 128)])
def test_what_a_batched_product_adds_to_is_copied_first(added):
    """Where it is broadcast the copy goes element by element."""
    made = product(128, 512, 128, name="baddbmm", batch=(200,))
    found = cost(
        operator("baddbmm", [tensor(*added), *made.inputs], made.outputs, flops=made.flops),
        of_case(CASE),
        device(),
    )
    plain = cost(product(128, 512, 128, name="bmm", batch=(200,)), of_case(CASE), device())
    n = 200 * 128 * 128
    is_broadcast = added[1] == 1
    copied_s = max((tensor(*added).n_bytes + 4 * n) / 1e12, elements_s(n) if is_broadcast else 0.0)
    assert found.device_s == pytest.approx(plain.device_s + copied_s + LAUNCH_S)
    assert found.n_launches == plain.n_launches + 1


def test_a_batch_is_tiles_too():
    assert seconds(product(128, 512, 128, name="bmm", batch=(200,))) == pytest.approx(
        2 * TILE_S + START_S
    )


def test_a_sum_along_rows_is_no_gradient_of_a_bias():
    x = tensor(512, 8)
    over, along = (operator("sum", [x], [tensor(*each)]) for each in ((1, 8), (512, 1)))
    assert seconds(over) == pytest.approx(LAUNCH_S + 9 * US, rel=0.01)
    assert seconds(along) == pytest.approx(LAUNCH_S, rel=0.02)


def test_what_bounds_a_product():
    thin = cost(product(512, 1, 128 * 250), of_case(CASE), device())  # 66 MB
    tiny = cost(product(8, 8, 8), of_case(CASE), device())
    assert (thin.bound, tiny.bound) == ("memory", "launch")
    assert thin.device_s == pytest.approx(4 * (512 + 32_000 + 512 * 32_000) / 1e13 + START_S)


@pytest.mark.parametrize(
    ("made", "slowdown"),
    [
        (product(512, 1024, 512), 2),
        (product(512, 1024, 512, name="addmm"), 2),
        (product(512, 2048, 512), 1),  # its sum is split
        (product(512, 2048, 512, name="addmm"), 2),  # not with a bias
        (product(128, 512, 512, phase="backward"), 1),  # nor is a gradient's over 512 tokens whole
        (product(64, 1024, 512), 1),  # few rows are always split
        (product(128, 1024, 128, batch=(4,)), 1),
        (product(512, 1024, 512, "bfloat16"), 1),
    ],
)
def test_small_tiles_are_slow_where_a_sum_is_not_split(made, slowdown):
    slow = ONE_TILE["fp32"]._replace(unsplit=(2.0,))
    models = device().products
    models["fp32"] = models["fp32"]._replace(kernel=slow)
    compute_s, slow_s = (
        seconds(made, products=each) - START_S for each in (device().products, models)
    )
    assert slow_s == pytest.approx(slowdown * compute_s)


def test_tf32_is_the_cases_and_slow_over_the_rows_of_both():
    tf32 = case("small", batch_size=4, seq_len=128, precision="tf32")
    forward, gradient = (
        product(m, 512, 128, phase=phase) for m, phase in ((512, "forward"), (768, "backward"))
    )
    fast = {kind: each for kind, each in device().products.items() if kind == "tf32"}
    assert seconds(forward, tf32, products=fast) == pytest.approx(TILE_S + START_S)
    assert seconds(gradient, tf32, products=fast) == pytest.approx(1.8 * TILE_S + START_S)
    other = product(512, 768, 128, phase="backward")
    assert seconds(other, tf32, products=fast) == pytest.approx(1.5 * TILE_S + START_S)
    assert seconds(forward, CASE, products=fast) is None


@pytest.mark.parametrize(
    ("m", "k", "n", "phase", "slowdown"),
    [
        (512, 512, 123, "forward", 8),  # rows of 123 · 2 bytes: not of 4 each
        (512, 512, 124, "forward", 3),  # of 4, and not of 16
        (512, 512, 120, "forward", 1),
        (124, 512, 128, "backward", 3.45),  # the gradient of 124 columns
        (500, 512, 128, "forward", 1),  # 500 tokens are no row's length
        (128, 500, 128, "backward", 1),
    ],
)
def test_rows_that_are_not_aligned_are_slow_in_sixteen_bits(m, k, n, phase, slowdown):
    of = case("small", batch_size=4, seq_len=125 if 500 in (m, k) else 128, precision="bf16")
    tile_s = 2 * 128 * 128 * k / 1e12
    made = product(m, k, n, "bfloat16", phase)
    assert seconds(made, of) == pytest.approx(slowdown * tile_s + START_S)


def test_a_type_that_nobody_measured_has_no_time():
    assert seconds(product(8, 8, 8, "bfloat16"), products={}) is None
    q = tensor(1, 2, 64, 8, dtype="float16")
    flash = operator("_scaled_dot_product_flash_attention", [q, q, q], [q], flops=100)
    assert seconds(flash) is None


@pytest.mark.parametrize(
    ("name", "model_share", "n_launches"),
    [
        ("_scaled_dot_product_cudnn_attention", 1 / 2, 2.0),  # half of the scores are masked
        ("_scaled_dot_product_cudnn_attention_backward", 2 / 5, 4.0),  # one of five made anew
    ],
)
def test_attention_counts_what_the_maths_needs(name, model_share, n_launches):
    q = tensor(4, 120, 128, 64, dtype="bfloat16")
    found = cost(operator(name, [q, q, q, q], [q], flops=10**9), of_case(CASE), device())
    assert found.device_s == pytest.approx(model_share * 1e-3 + LAUNCH_S)
    assert (found.n_launches, found.bound) == (n_launches, "compute")


@pytest.mark.parametrize(
    ("kernel", "head_dim", "beside"),
    [
        ("cudnn", 64, 1.0),
        ("cudnn", 128, TIMES["cudnn"]["forward"][128]),
        ("flash", 64, TIMES["flash"]["forward"][64]),
        ("flash", 256, 1.0),  # which nobody timed
        ("efficient", 64, 1.0),
    ],
)
def test_on_hopper_kernels_and_head_dims_differ(kernel, head_dim, beside):
    q = tensor(4, 120, 128, head_dim, dtype="bfloat16")
    name = f"_scaled_dot_product_{kernel}_attention"
    found = cost(operator(name, [q, q, q], [q], flops=10**9), of_case(CASE), device())
    assert found.device_s == pytest.approx(beside / 2 * 1e-3 + LAUNCH_S)


def attention(kernel, n_heads, seq_len, dtype="float32", **more):
    """Its products have 10⁹ FLOPs, of which a millisecond takes all; with a mask half of them."""
    q = tensor(1, n_heads, seq_len, 64, dtype=dtype)
    made = operator(f"_scaled_dot_product_{kernel}_attention", [q, q, q], [q], flops=10**9)
    return msgspec.structs.replace(made, **more)


@pytest.mark.parametrize(
    ("kernel", "n_heads", "shares"),
    [
        ("efficient", 10, 2 * 100 / 160),  # 160 blocks of 64 queries: two on some multiprocessor
        ("efficient", 5, 100 / 80),  # one at most: as long as 100 of the 80 blocks
        ("efficient", 100, 1 / 2),  # 1,600 blocks hide the longest
        ("cudnn", 10, 100 / 80),  # 80 blocks of 128
        ("flash", 10, TIMES["flash"]["forward"][64] / 2),  # whose blocks nobody traced
    ],
)
def test_attention_of_few_heads_ends_with_the_blocks_that_see_all_keys(kernel, n_heads, shares):
    """100 multiprocessors; each block has its share of all scores, masked or not."""
    made = attention(kernel, n_heads, 1024, "bfloat16")
    assert seconds(made) == pytest.approx(shares * 1e-3 + LAUNCH_S)


def test_dropout_in_attention_costs_each_score_that_is_seen():
    plain, drops = (attention("cudnn", 64, 1024, "bfloat16", drops=each) for each in (False, True))
    drawn_s = elements_s(64 * 1024 * 1024 / 2, DROPPED_PER_SM_S * 132)
    assert seconds(drops) - seconds(plain) == pytest.approx(drawn_s)


def test_gradients_of_shared_keys_and_values_are_added_up():
    """Two sums of 64 gradients of 1024 × 64: 8.4 MB read, 0.1 written."""

    def backward(n_kv_heads):
        q, k = (tensor(1, n, 1024, 64, dtype="bfloat16") for n in (64, n_kv_heads))
        name = "_scaled_dot_product_cudnn_attention_backward"
        return seconds(operator(name, [q, q, k, k], [q, k, k], "backward", flops=10**9))

    moved_s = (64 + 1) * 1024 * 64 * 2 / 1e12
    assert backward(1) - backward(64) == pytest.approx(2 * (moved_s + LAUNCH_S))


X = tensor(4, 128, 2500)
"""1.28 million elements of four bytes: 5.12 MB, 5.12 µs."""
X_S = 5.12 * US


def test_alike_operands_move_their_bytes():
    found = cost(operator("add", [X, X], [X]), of_case(CASE), device())
    assert found.device_s == pytest.approx(3 * X_S + LAUNCH_S)
    assert (found.bound, found.n_launches) == ("memory", 1.0)


def test_what_takes_less_than_two_launches_is_bound_by_them():
    small = tensor(16, 16)
    assert cost(operator("add", [small, small], [small]), of_case(CASE), device()).bound == "launch"


def test_gaps_cost_a_factor_or_the_elements():
    made = operator("silu", [X], [X], module="blocks.*.ff")
    assert seconds(made) == pytest.approx(1.65 * (2 * X_S + LAUNCH_S))
    narrow = tensor(4, 128, 2500, dtype="bfloat16")
    halves = operator("silu", [narrow], [narrow], module="blocks.*.ff")
    # 2.56 + 2.56 µs and a launch, 1.65 times, are 11.7 µs; at 350 · 10⁹ elements/s less.
    assert seconds(halves) == pytest.approx(1.65 * (X_S + LAUNCH_S))
    fast = device().traffic._replace(moved_bytes=(0, 10**13))
    assert seconds(halves, traffic=fast) == pytest.approx(LAUNCH_S + elements_s(1.28e6))


def test_half_of_the_gates_gradients_have_gaps():
    made = operator("mul", [X, X], [X], "backward", "blocks.*.ff")
    plain_s = 3 * X_S + LAUNCH_S
    assert seconds(made) == pytest.approx((1.65 + 1) / 2 * plain_s)


def test_mixed_types_are_widened():
    narrow = tensor(4, 128, 2500, dtype="bfloat16")
    made = operator("add", [X, narrow], [X])
    assert seconds(made) == pytest.approx(1.5 * (2.5 * X_S + LAUNCH_S))
    table = tensor(128, 2500)
    turned = operator("mul", [narrow, table], [X], module="blocks.*.attention")
    fast = device().traffic._replace(moved_bytes=(0, 10**13))
    assert seconds(turned, traffic=fast) == pytest.approx(LAUNCH_S + elements_s(1.28e6, 165e9))


def test_copies_to_a_wider_type_to_a_narrower_one_and_to_another_layout():
    narrow = tensor(4, 128, 2500, dtype="bfloat16")
    assert seconds(operator("_to_copy", [X], [narrow])) == pytest.approx(
        1.05 * (1.5 * X_S + LAUNCH_S)
    )
    assert seconds(operator("_to_copy", [narrow], [X])) == pytest.approx(
        1.5 * (1.5 * X_S + LAUNCH_S)
    )
    assert seconds(operator("clone", [X], [X])) == pytest.approx(1.65 * (2 * X_S + LAUNCH_S))


def test_joining_short_rows_is_by_the_element():
    half, head = tensor(4, 12, 128, 32, count=2), tensor(4, 12, 128, 64)
    rotated = operator("cat", [half], [head], module="blocks.*.attention")
    assert seconds(rotated) == pytest.approx(LAUNCH_S / 2 + elements_s(393_216, 225e9))
    whole = operator("cat", [tensor(4, 12, 128, 64, count=3)], [tensor(4, 36, 128, 64)])
    moved_s = 2 * 3 * 393_216 * 4 / 1e12
    assert seconds(whole) == pytest.approx(1.07 * (moved_s + LAUNCH_S))
    fused = case("small", attention="sdpa")
    assert seconds(whole, fused) == pytest.approx(LAUNCH_S / 2 + elements_s(1_179_648, 225e9))


def test_a_masked_fill_out_of_place_copies_first():
    scores, mask = tensor(4, 10, 128, 250), tensor(128, 250, dtype="bool")  # 5.12 MB
    copied_s = 2 * X_S + LAUNCH_S
    in_place = cost(operator("masked_fill_", [scores, mask], [scores]), of_case(CASE), device())
    anew = cost(operator("masked_fill", [scores, mask], [scores]), of_case(CASE), device())
    assert in_place.device_s == pytest.approx(1.65 * copied_s)
    assert anew.device_s == pytest.approx(2.65 * copied_s)
    assert (in_place.n_launches, anew.n_launches) == (1.0, 2.0)


def test_a_safe_softmax_is_a_softmax_and_the_search_for_rows_without_a_score():
    """Flags of a byte are made of the scores and gathered; zeros are put in by a broadcast."""
    scores = tensor(4, 10, 128, 250)  # 5.12 MB
    found = cost(operator("_safe_softmax", [scores], [scores]), of_case(CASE), device())
    softmax = cost(operator("_softmax", [scores], [scores]), of_case(CASE), device())
    flags_s = (scores.n_bytes + scores.n_elements) / 1e12 + 2 * LAUNCH_S
    flags_s += elements_s(scores.n_elements, 900e9)
    zeros_s = 1.65 * (2 * scores.n_bytes / 1e12 + LAUNCH_S)
    assert found.device_s == pytest.approx(softmax.device_s + flags_s + zeros_s + LAUNCH_S)
    assert found.n_launches == 5


def test_a_kernel_of_the_table_has_its_factor_launches_and_start():
    found = cost(operator("_fused_rms_norm_backward", [X, X], [X]), of_case(CASE), device())
    assert found.device_s == pytest.approx(2.7 * (3 * X_S + LAUNCH_S) + 1.5 * US)
    assert found.n_launches == 2


def test_a_sum_over_rows_is_two_kernels_and_another_sum_one():
    rows = tensor(512, 2500)
    assert seconds(operator("sum", [rows], [])) == pytest.approx(X_S + LAUNCH_S + 9 * US)
    assert seconds(operator("sum", [X], [])) == pytest.approx(X_S + LAUNCH_S)


def test_a_dropouts_gradient_widens_nothing():
    """Its mask of flags is read beside the gradient, in one pass over both."""
    flags = tensor(4, 128, 2500, dtype="bool")
    made = operator("native_dropout_backward", [X, flags], [X], "backward")
    assert seconds(made) == pytest.approx(2 * X_S + 1.28 * US + LAUNCH_S)


def test_a_softmax_over_a_long_row_reads_it_again():
    short, long = tensor(100, 12_000), tensor(100, 12_001)
    for x, factor in ((short, 1.45), (long, 2.05)):
        moved_s = 2 * x.n_bytes / 1e12
        made = operator("_log_softmax", [x], [x])
        assert seconds(made) == pytest.approx(factor * (moved_s + LAUNCH_S))


def test_a_list_of_tensors_is_a_few_launches():
    many = tensor(12_800, count=100)  # 5.12 MB
    found = cost(operator("_foreach_mul_", [many], [many], "optimizer"), of_case(CASE), device())
    assert found.device_s == pytest.approx(1.15 * (2 * X_S + LAUNCH_S))
    assert found.n_launches == pytest.approx(100 / 36)
    large = tensor(1000 * 65_536 + 1, count=4)
    halves = operator("_foreach_mul_", [large], [large], "optimizer")
    assert cost(halves, of_case(CASE), device()).n_launches == pytest.approx(4 * 1001 / 320)
    narrow = tensor(12_800, dtype="bfloat16", count=4)
    halves = operator("_foreach_mul_", [narrow], [narrow], "optimizer")
    moved_s = 2 * narrow.n_bytes / 1e12
    assert seconds(halves) == pytest.approx(1.2 * (moved_s + LAUNCH_S))
    many = tensor(10**9, dtype="bfloat16")  # By its elements, of which there are few bytes.
    halves = operator("_foreach_mul_", [many], [many], "optimizer")
    assert seconds(halves, traffic=TrafficCurve((0, 10**12), (LAUNCH_S, 0.1))) == pytest.approx(
        10**9 / (100 * 700e9 / 132)
    )


def test_step_counts_never_reach_the_device():
    counts = operator("_foreach_add_", [tensor(count=75)], [tensor(count=75)], "optimizer")
    found = cost(counts, of_case(CASE), device())
    assert (found.device_s, found.n_launches) == (0.0, 0.0)


def test_arithmetic_of_an_unknown_kind_is_an_error_of_ours():
    with pytest.raises(ValueError, match=r"expected a product or attention, got aten\.convolution"):
        seconds(operator("convolution", [X], [X], flops=10))
