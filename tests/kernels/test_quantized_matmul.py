"""Products with quantised weights against the dequantised weight in fp64, and against torch's matmul."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ahead_of_time import compiled, entries
from oracle import assert_same_specials
from peakward.kernels.ops.quantized_matmul import api, calibrated, cpu, reference
from tiers import drawn_in_full, in_full

kernel = pytest.importorskip("peakward.kernels.ops.quantized_matmul.triton")


def cut(n_splits, *, shared=False):
    """Of warps that share columns, or that share x."""
    if shared:
        return kernel.Shared(n_splits, rows=32, warps=4, n_stages=2)
    return kernel.Direct(n_splits, channels=16, rows=8, warps=2, depth=2)


def types_of(by, dtypes):
    """A weight of 8 bits is multiplied by bytes for x of 16 bits alone."""
    return [each for each in dtypes if by != "bytes" or each.itemsize == 2]


def bytes_cut(m, n_splits):
    """One row of x along a weight of 8 bits, or rows in digits."""
    if m == 1:
        return kernel.Row(n_splits, channels=4, columns=256, warps=1, n_stages=2)
    return kernel.Digits(n_splits, channels=64, rows=8, warps=4, n_stages=2, is_apart=True)


def drawn(m, n, k, dtype, seed):
    torch.manual_seed(seed)
    return torch.randn(m, k).to(dtype), torch.randn(n, k) / k**0.5


def assert_product(theirs, mine, product, x, held):
    """Or, where torch's error is smaller by luck, within twice what rounding the result once to its type, and
    each of its products once to fp32, in which they are summed, may cost."""
    exact = product(x.double(), *held)
    columns = product(torch.eye(x.shape[1], dtype=torch.float64), *held)
    of_result = torch.finfo(mine.dtype).eps / 2 * float(exact.norm())
    of_terms = 2.0**-24 * float((x.double().abs() @ columns.abs()).norm())
    mine_off, theirs_off = (float((each.double() - exact).norm()) for each in (mine, theirs))
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    assert mine_off <= 2 * max(theirs_off, of_result + of_terms)


@drawn_in_full(10)
@given(
    m=st.sampled_from([0, 1, 3, 17]),
    n=st.sampled_from([5, 37]),
    groups=st.integers(1, 5),
    group=st.sampled_from([32, 64, 128]),
    zeros=st.booleans(),
    n_splits=st.sampled_from([1, 3]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
@example(m=3, n=37, groups=3, group=64, zeros=True, n_splits=3, shared=False, seed=0)
@example(m=17, n=37, groups=2, group=128, zeros=False, n_splits=1, shared=True, seed=0)
def test_int4_is_as_close_to_fp64_as_torch_is(
    dtypes, device, m, n, groups, group, zeros, n_splits, shared, seed
):
    for dtype in dtypes:
        x, weight = drawn(m, n, groups * group, dtype, seed)
        quantise = reference.int4_weight_with_zeros if zeros else reference.int4_weight
        held = quantise(weight, group=group)
        mine = kernel.int4_matmul(x, *held, settings=cut(n_splits, shared=shared))
        theirs = reference.int4_matmul(x, *held)
        assert_product(theirs, mine, reference.int4_matmul, x, held)


@pytest.mark.parametrize("m", [1, *in_full([17])])
@pytest.mark.parametrize("shared", [False, *in_full([True])])
def test_steps_of_either_sign_are_as_close_to_fp64_as_torch_is(dtypes, device, m, shared):
    """Of calibrated weights, whose numbers are all 16 that there are."""
    for dtype in dtypes:
        x, weight = drawn(m, 37, 96, dtype, seed=0)
        stored, scale = calibrated.int4_weight(weight, torch.eye(96), group=32)
        held = stored, scale.to(torch.float16)
        assert bool((scale < 0).any())
        assert set(reference.unpacked(stored).unique().tolist()) == set(range(16))
        mine = kernel.int4_matmul(x, *held, settings=cut(2, shared=shared))
        theirs = reference.int4_matmul(x, *held)
        assert_product(theirs, mine, reference.int4_matmul, x, held)


@drawn_in_full(12)
@given(
    m=st.sampled_from([0, 1, 3, 17]),
    n=st.sampled_from([5, 37]),
    k=st.sampled_from([1, 127, 256, 500]),
    n_splits=st.sampled_from([1, 3]),
    by=st.sampled_from(["words", "shared words", "bytes"]),
    seed=st.integers(0, 99),
)
@example(m=3, n=37, k=127, n_splits=3, by="words", seed=0)
@example(m=17, n=37, k=256, n_splits=3, by="bytes", seed=0)
def test_int8_channels_are_as_close_to_fp64_as_torch_is(
    dtypes, device, m, n, k, n_splits, by, seed
):
    chosen = bytes_cut(m, n_splits) if by == "bytes" else cut(n_splits, shared=by != "words")
    for dtype in types_of(by, dtypes):
        x, weight = drawn(m, n, k, dtype, seed)
        held = reference.int8_weight(weight)
        mine = kernel.int8_matmul(x, *held, settings=chosen)
        assert_product(reference.int8_matmul(x, *held), mine, reference.int8_matmul, x, held)


@pytest.mark.parametrize("m", [1, *in_full([5])])
@pytest.mark.parametrize("n, k", [(17, 300), pytest.param(1, 127, marks=pytest.mark.full)])
@pytest.mark.parametrize("by", ["words", "bytes"])
def test_sums_of_small_integers_are_exact(dtypes, device, m, n, k, by):
    torch.manual_seed(0)
    chosen = bytes_cut(m, 2) if by == "bytes" else cut(2)
    for dtype in types_of(by, dtypes):
        x = torch.randint(-1, 2, (m, k)).to(dtype)
        weight = torch.randint(-3, 4, (n, k)).to(torch.int8)
        mine = kernel.int8_matmul(x, weight, torch.ones(1, n), settings=chosen)
        assert torch.equal(mine.double(), x.double() @ weight.double().t())


@pytest.mark.parametrize("outlier", [1.0, 1000.0])
@pytest.mark.parametrize("is_apart", [True, False])
def test_digits_lose_less_than_rounding_the_result(dtypes, device, outlier, is_apart):
    """x is rounded to a 32,512th of its group's largest element: it errs by 2^-11.5 of its norm at most."""
    chosen = bytes_cut(5, 2)._replace(is_apart=is_apart)
    for dtype in types_of("bytes", dtypes):
        x, weight = drawn(5, 40, 768, dtype, seed=3)
        x[:, 200] *= outlier
        held = reference.int8_weight(weight)
        mine = kernel.int8_matmul(x, *held, settings=chosen)
        assert_product(reference.int8_matmul(x, *held), mine, reference.int8_matmul, x, held)


@pytest.mark.parametrize("m", [1, *in_full([5])])
@pytest.mark.parametrize("group", [256, *in_full([32, 128])])
@pytest.mark.parametrize("by", ["words", "bytes"])
def test_int8_groups_are_as_close_to_fp64_as_torch_is(dtypes, device, m, group, by):
    chosen = bytes_cut(m, 2) if by == "bytes" else cut(2)
    for dtype in types_of(by, dtypes):
        x, weight = drawn(m, 40, 768, dtype, seed=2)
        held = reference.int8_weight(weight, group=group)
        assert held[1].shape == (768 // group, 40)
        mine = kernel.int8_matmul(x, *held, settings=chosen)
        assert_product(reference.int8_matmul(x, *held), mine, reference.int8_matmul, x, held)


@pytest.mark.parametrize("m", [0, 1, cpu.MOST_ROWS, cpu.MOST_ROWS + 1])
@pytest.mark.parametrize(("n", "k", "group"), [(37, 64, None), (5, 37, None), (40, 192, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_int8_on_a_cpu_is_as_close_to_fp64_as_torch_is(m, n, k, group, dtype, monkeypatch):
    monkeypatch.setattr(cpu, "SLICE_ELEMENTS", 7 * k)  # The last slice is smaller.
    x, weight = drawn(m, n, k, dtype, seed=1)
    held = reference.int8_weight(weight, group=group)
    theirs = reference.int8_matmul(x, *held)
    assert_product(theirs, cpu.int8_matmul(x, *held), reference.int8_matmul, x, held)


def test_numbers_of_fp16_do_not_overflow_before_they_are_scaled():
    weight, scale = torch.full((4, 64), 127, dtype=torch.int8), torch.full((1, 4), 1 / 127)
    x = torch.full((2, 64), 100.0, dtype=torch.float16)
    assert torch.equal(cpu.int8_matmul(x, weight, scale), torch.full_like(x[:, :4], 6400.0))


@pytest.mark.parametrize(
    ("k", "dtype", "group", "m", "loops"),
    [
        (64, torch.bfloat16, None, 1, True),
        (64, torch.bfloat16, None, cpu.MOST_ROWS, True),
        (64, torch.bfloat16, None, cpu.MOST_ROWS + 1, False),
        (48, torch.bfloat16, None, 1, False),
        (64, torch.float32, None, 1, False),
        (64, torch.bfloat16, 32, 1, False),
    ],
)
def test_torchs_loop_is_called_where_it_is_right_and_fast(k, dtype, group, m, loops, monkeypatch):
    """With 24 columns, on a CPU with AVX-512, it ends the process."""
    called, loop = [], torch._weight_int8pack_mm
    monkeypatch.setattr(
        torch, "_weight_int8pack_mm", lambda *given: called.append(given) or loop(*given)
    )
    x, weight = drawn(m, 8, k, dtype, seed=1)
    api.int8_matmul(x, *reference.int8_weight(weight, group=group))
    assert bool(called) == loops


@pytest.mark.parametrize("k", [32, 128, 192, 384])
def test_packing_loses_nothing(k):
    stored = torch.randint(0, 16, (7, k), dtype=torch.uint8)
    packed = reference.packed(stored)
    assert packed.shape == (-(-k // 128), 7, 16)
    assert packed.dtype == torch.int32
    unpacked = reference.unpacked(packed)
    assert torch.equal(unpacked[:, :k], stored)
    assert not unpacked[:, k:].any()


def test_words_hold_what_a_lane_multiplies():
    stored = torch.zeros(3, 256, dtype=torch.uint8)
    # The second tile's columns 32 i + 8 t to 32 i + 8 t + 7, for i = 2 and t = 1.
    stored[1, 128 + 72 : 128 + 80] = torch.arange(1, 9)
    packed = reference.packed(stored)
    assert packed[1, 1, 4 * 1 + 2] == 0x86427531 - (1 << 32)
    assert packed.count_nonzero() == 1


@settings(max_examples=20)
@given(group=st.sampled_from([32, 64, 128]), shift=st.floats(-3, 3), seed=st.integers(0, 99))
def test_rounding_errs_by_half_a_step(group, shift, seed):
    torch.manual_seed(seed)
    weight = torch.randn(5, 2 * group) + shift
    weight[2] = 0
    slack = 1 + 1e-5

    def error(dequantized):
        return (dequantized - weight).abs().view(5, 2, group).amax(-1).t()

    stored, scale = reference.int8_weight(weight, group=group)
    assert (
        error(reference.int8_dequantized(stored, scale, torch.float32)) <= scale / 2 * slack
    ).all()
    stored, scale = reference.int4_weight(weight, group=group)
    whole = reference.int4_dequantized(stored, scale, None, torch.float32, group=group)
    assert (error(whole) <= scale / 2 * slack).all()
    stored, scale, zero = reference.int4_weight_with_zeros(weight, group=group)
    whole = reference.int4_dequantized(stored, scale, zero, torch.float32, group=group)
    # The zero is rounded too: at the end of the range that may cost a second half.
    assert (error(whole) <= scale * slack).all()


def test_zeros_pay_where_a_group_has_one_sign():
    torch.manual_seed(0)
    weight = torch.rand(16, 256)
    without = reference.int4_dequantized(
        *reference.int4_weight(weight, group=64), None, torch.float32, group=64
    )
    with_zeros = reference.int4_dequantized(
        *reference.int4_weight_with_zeros(weight, group=64), torch.float32, group=64
    )
    assert (with_zeros - weight).norm() < 0.6 * (without - weight).norm()


@pytest.mark.parametrize("value", [float("nan"), *in_full([float("inf"), float("-inf")])])
@pytest.mark.parametrize("m", [3, *in_full([1])])
@pytest.mark.parametrize(
    "bits, by", [(4, "words"), (4, "shared words"), (8, "words"), (8, "shared words"), (8, "bytes")]
)
def test_nan_and_infinity_reach_what_torch_lets_them_reach(dtypes, device, value, m, bits, by):
    run = bytes_cut(m, 2) if by == "bytes" else cut(2, shared=by != "words")
    for dtype in types_of(by, dtypes):
        x, weight = drawn(m, 20, 256, dtype, seed=0)
        # No stored zero: which times infinity is NaN for torch and here alike, but says less.
        weight = weight.sign() * (0.5 + weight.abs())
        x[0, 7] = value
        if bits == 8:
            held = reference.int8_weight(weight)
            mine, theirs = (
                kernel.int8_matmul(x, *held, settings=run),
                reference.int8_matmul(x, *held),
            )
        else:
            held = reference.int4_weight(weight, group=64)
            mine, theirs = (
                kernel.int4_matmul(x, *held, settings=run),
                reference.int4_matmul(x, *held),
            )
        assert_same_specials(theirs, mine)
        assert mine[1:].isfinite().all()


@pytest.mark.parametrize("m", [3, *in_full([1])])
@pytest.mark.parametrize("n_splits", [5, *in_full([1])])
@pytest.mark.parametrize("by", ["words", "shared words", "bytes"])
def test_every_output_is_written(device, m, n_splits, by, monkeypatch):
    empty = torch.empty

    def poisoned(*size, dtype, **options):
        whole = empty(*size, dtype=dtype, **options)
        return whole.fill_(torch.nan if dtype.is_floating_point else 99)

    x, weight = drawn(m, 37, 192, torch.float16, seed=0)
    if by == "bytes":
        launch, held = kernel.int8_matmul, reference.int8_weight(weight)
        chosen = bytes_cut(m, n_splits)
    else:
        launch, held = kernel.int4_matmul, reference.int4_weight(weight, group=64)
        chosen = cut(n_splits, shared=by != "words")
    monkeypatch.setattr(torch, "empty", poisoned)
    first, second = (launch(x, *held, settings=chosen) for _ in range(2))
    assert first.isfinite().all()
    assert torch.equal(first, second)


def test_leading_dimensions_and_strides_of_x_do_not_matter(device):
    x, weight = drawn(6, 20, 128, torch.float32, seed=0)
    held = reference.int4_weight(weight, group=32)
    whole = api.int4_matmul(x, *held)
    assert torch.equal(api.int4_matmul(x.view(2, 3, 128), *held), whole.view(2, 3, 20))
    assert torch.equal(api.int4_matmul(x.t().contiguous().t(), *held), whole)
    assert torch.equal(api.int4_matmul(torch.cat((x, x), 1)[:, :128], *held), whole)
    channels = reference.int8_weight(weight)
    assert api.int8_matmul(x.view(2, 3, 128), *channels).shape == (2, 3, 20)
    assert api.int8_matmul(x[:0], *channels).shape == (0, 20)


def test_the_operators_are_ones_that_torch_can_trace(device):
    x, weight = drawn(3, 20, 128, torch.float32, seed=0)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    held4 = reference.int4_weight_with_zeros(weight, group=64)
    held8 = reference.int8_weight(weight)
    ops = torch.ops.peakward
    torch.library.opcheck(ops.int4_matmul.default, (x, *held4), test_utils=tests)
    torch.library.opcheck(ops.int8_matmul.default, (x, *held8), test_utils=tests)
    for call, held in ((api.int4_matmul, held4), (api.int8_matmul, held8)):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, *held), call(x, *held))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"x": torch.zeros(2, 0)}, "k at least 1"),
        ({"x": torch.zeros(2, 130)}, r"weight of \(2, n, 16\) in int32 for x of \(..., 130\)"),
        ({"x": torch.zeros(2, 127)}, "one of 32, 64, 128 that divides 127"),
        ({"x": torch.zeros(2, 128, dtype=torch.float64)}, "expected x in float32"),
        ({"weight": torch.zeros(1, 10, 16, dtype=torch.uint8)}, "in int32"),
        ({"weight": torch.zeros(1, 10, 32, dtype=torch.int32)}, r"weight of \(1, n, 16\)"),
        ({"scale": torch.zeros(10, 2)}, "group one of 32, 64, 128"),
        ({"scale": torch.zeros(2, 9)}, r"scale of \(2, 10\)"),
        ({"scale": torch.zeros(10, 2).t()}, "contiguous scale"),
        ({"zero": torch.zeros(2, 10)}, "zero of .* in torch.uint8"),
    ],
)
def test_what_int4_cannot_take_is_refused(change, said):
    given = {"x": torch.zeros(2, 128), "weight": torch.zeros(1, 10, 16, dtype=torch.int32)}
    given |= {"scale": torch.zeros(2, 10), "zero": torch.zeros(2, 10, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=said):
        api.int4_matmul(**(given | change))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"x": torch.zeros(2, 127)}, r"x of \(..., 192\)"),
        ({"weight": torch.zeros(10, 192)}, "in int8"),
        ({"weight": torch.zeros(192, 10, dtype=torch.int8).t()}, "contiguous weight"),
        ({"scale": torch.zeros(10)}, "scale of"),
        ({"scale": torch.zeros(12, 10)}, "power of two from 32 on"),
        ({"scale": torch.zeros(2, 10)}, "power of two from 32 on"),
    ],
)
def test_what_int8_cannot_take_is_refused(change, said):
    given = {"x": torch.zeros(2, 192), "weight": torch.zeros(10, 192, dtype=torch.int8)}
    given |= {"scale": torch.zeros(1, 10)}
    with pytest.raises(ValueError, match=said):
        api.int8_matmul(**(given | change))


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="group of 32, 64, 128, got 16"):
        reference.int4_weight(torch.zeros(2, 64), group=16)
    with pytest.raises(ValueError, match="group that divides 100 columns, got 64"):
        reference.int8_weight(torch.zeros(2, 100), group=64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("m", [0, 1, 4, 16, 64, 200])
@pytest.mark.parametrize("n, n_tiles", [(5000, 33), (4096, 32), (128256, 32), (64, 1)])
@pytest.mark.parametrize("bits", [4, 8])
def test_settings_leave_every_warp_work(m, n, n_tiles, group, dtype, bits):
    settings_for = kernel.byte_settings_for if bits == 8 else kernel.word_settings_for
    found = settings_for(m=m, n=n, n_tiles=n_tiles, group=group, dtype=dtype, n_multiprocessors=132)
    takes = {kernel.Direct: "warps", kernel.Row: "columns"}.get(type(found))
    takes = getattr(found, takes) if takes else 1
    takes = takes // 128 if isinstance(found, kernel.Row) else takes
    assert 1 <= found.n_splits <= max(1, n_tiles // takes)


@pytest.mark.parametrize("m", [1, 8, 16])
@pytest.mark.parametrize("n", [4096, 5000, 8192, 10240, 14336])
def test_programs_of_few_rows_are_resident_at_once(n, m):
    """32 warps of a multiprocessor where a warp has one tile of 16 channels and 8 rows, 16 elsewhere."""
    found = kernel.word_settings_for(
        m=m, n=n, n_tiles=32, group=128, dtype=torch.bfloat16, n_multiprocessors=132
    )
    is_direct = isinstance(found, kernel.Direct)
    channels = found.channels if is_direct else 16 * found.warps
    n_warps = -(-n // channels) * found.n_splits * found.warps
    resident = 32 if is_direct and found[1:] == (16, 8, 8, 1) else 16
    assert 8 * 132 <= n_warps <= resident * 132


@pytest.mark.parametrize("m, programs", [(17, 1), (32, 1), (33, 1), (64, 1), (65, 2)])
def test_programs_of_more_than_sixteen_rows_share_them(m, programs):
    found = kernel.word_settings_for(
        m=m, n=14336, n_tiles=32, group=128, dtype=torch.bfloat16, n_multiprocessors=132
    )
    assert isinstance(found, kernel.Shared)
    assert -(-m // found.rows) == programs


def test_columns_are_split_where_channels_do_not_fill_the_gpu():
    def splits(n):
        return kernel.word_settings_for(
            m=4, n=n, n_tiles=64, group=128, dtype=torch.bfloat16, n_multiprocessors=132
        ).n_splits

    assert splits(512) > 2
    assert splits(8192) == 1


def digits_for(m, n, k, **more):
    return kernel.byte_settings_for(
        **{"m": m, "n": n, "n_tiles": -(-k // 128), "group": 128, "n_multiprocessors": 132},
        **{"dtype": torch.bfloat16, **more},
    )


@pytest.mark.parametrize(
    "m, n, k", [(2, 28672, 8192), (16, 2560, 10240), (17, 4096, 4096), (64, 28672, 8192)]
)
def test_digits_make_up_to_two_programs_a_multiprocessor(m, n, k):
    found = digits_for(m, n, k)
    assert found.is_apart == (m > 16)
    assert 132 <= -(-n // found.channels) * found.n_splits <= 1.1 * 2 * 132


@pytest.mark.parametrize("n, k", [(10240, 2560), (7680, 2560)])
def test_digits_of_many_rows_are_not_split_where_fewer_channels_fill_the_gpu(n, k):
    assert digits_for(16, n, k).n_splits > 1
    assert digits_for(17, n, k)[:2] == (1, 64)


def test_channels_that_are_not_aligned_are_not_copied_beside_many_rows():
    assert isinstance(digits_for(16, 4096, 4100, aligned=False), kernel.Digits)
    assert isinstance(digits_for(17, 4096, 4100, aligned=False), kernel.Shared)


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """A folder of what the kernels are compiled to."""
    folder = tmp_path_factory.mktemp("ptx")
    compiled("quantized_matmul", 90, ptx=folder)
    return folder


@pytest.mark.full
def test_lanes_load_what_they_multiply(ptx):
    launches = [each for each in entries(ptx, "quantized_matmul_direct") if "mma.sync" in each]
    assert len(launches) >= 8
    exchanges = ("shfl", "shared.b", "shared.v")
    for launch in launches:
        products, _, sums = launch.rpartition("mma.sync")
        assert any(each in sums for each in exchanges)
        assert not any(each in products for each in exchanges)


@pytest.mark.full
def test_x_is_asked_for_before_the_weight(ptx):
    """By a barrier that no load crosses: what is multiplied is loaded on both sides of it."""
    for launch in entries(ptx, "quantized_matmul_direct"):
        products, _, _ = launch.rpartition("mma.sync")
        if not products:
            continue
        assert products.count("bar.sync") == 1
        of_x, of_weight = products.split("bar.sync")
        assert "ld.global.cg" not in of_x
        assert "ld.global.v4" in of_x
        assert "ld.global.cg.v4" in of_weight
        assert "ld.global.v4" not in of_weight


@pytest.mark.full
def test_lanes_that_share_x_exchange_nothing_of_the_weight(ptx):
    launches = entries(ptx, "quantized_matmul_shared")
    assert len(launches) >= 4
    for launch in launches:
        assert "wgmma" in launch
        assert "shfl" not in launch


@pytest.mark.full
def test_tensor_cores_read_bytes_of_both_sides_from_shared_memory(ptx):
    """By two descriptors: neither side passes through registers."""
    launches = entries(ptx, "quantized_matmul_digits")
    assert len(launches) >= 3
    for launch in launches:
        products = re.findall(
            r"wgmma\.mma_async\S*\.s32\.s8\.s8 \{[^}]*\}, %rd\d+, %rd\d+,", launch
        )
        assert products
        assert len(products) == launch.count("wgmma.mma_async")


@pytest.mark.full
@pytest.mark.parametrize("name", ["quantized_matmul_row", "quantized_matmul_digits"])
def test_rows_of_bytes_come_by_sixteen_at_once(ptx, name):
    launches = entries(ptx, name)
    assert launches
    for launch in launches:
        # The units of x are no rows of bytes, and come by four.
        copies = [line for line in launch.splitlines() if "cp.async.cg.shared.global" in line]
        assert copies
        assert all("0x10" in line for line in copies)
