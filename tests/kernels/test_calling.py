"""Operators called lightly: a third call of one kind replays the second, and does nothing else."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
from peakward.kernels import (
    add_layer_norm,
    add_rms_norm,
    cache_write_,
    cross_entropy,
    cross_entropy_and_lse,
    decode_attention,
    flash_attention,
    flash_attention_varlen,
    flash_attention_with_lse,
    gated_product,
    int8_matmul,
    layer_norm,
    linear_cross_entropy,
    rms_norm,
    rope,
    rope_,
    rope_qkv_,
    softmax,
    swiglu,
)
from peakward.kernels.ops import calling
from peakward.kernels.ops.calling import forget_calls, operator
from peakward.kernels.ops.cross_entropy.api import cross_entropy_over_logits
from peakward.kernels.ops.linear_cross_entropy import workspace
from tiers import rows_in_full

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted here")
N_CALLS = 4
"""One by the registered operator, one recorded, two replayed."""


@pytest.fixture(autouse=True)
def _anew():
    forget_calls()
    yield
    forget_calls()


def rows(*shape):
    return torch.randn(*shape, requires_grad=True)


def heads(n=2, length=5):
    return rows(1, n, length, 16)


def targets(n=6, vocab=40):
    return torch.randint(vocab, (n,))


def angles():
    return torch.randn(5, 8)


def starts():
    return torch.tensor([0, 2, 5], dtype=torch.int32)


def packed(q, k, v, begins):
    return flash_attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q=begins,
        cu_seqlens_k=begins,
        max_seqlen_q=3,
        max_seqlen_k=3,
        causal=True,
    )


def in_place(operate):
    """Of a leaf that needs a gradient nothing is overwritten."""
    return lambda x, *rest: operate(x * 1.0, *rest)


def written(k, slots, keys, values, *scales):
    """What a cache holds behind a write: each of its tensors, in fp32."""
    held = [each.clone() for each in (keys, values, *scales)]
    names = ("keys", "values", "k_scale", "v_scale")
    cache_write_(
        k=k.detach(), v=-2 * k.detach(), slots=slots, **dict(zip(names, held, strict=False))
    )
    return tuple(each.float() for each in held)


CASES = {
    "rms_norm": (lambda x, w: rms_norm(x, (48,), w), lambda: (rows(6, 48), rows(48))),
    "rms_norm of a view": (
        lambda x, w: rms_norm(x[:, ::2, 1:], (48,), w),
        lambda: (rows(3, 4, 49), rows(48)),
    ),
    "add_rms_norm": (add_rms_norm, lambda: (rows(6, 48), rows(6, 48), rows(48))),
    "layer_norm": (
        lambda x, w, b: layer_norm(x, (48,), w, b),
        lambda: (rows(6, 48), rows(48), rows(48)),
    ),
    "add_layer_norm": (add_layer_norm, lambda: (rows(6, 48), rows(6, 48), rows(48), rows(48))),
    "softmax": (softmax, lambda: (rows(6, 48),)),
    "softmax of columns": (lambda x: softmax(x.t()), lambda: (rows(48, 6),)),
    "swiglu": (swiglu, lambda: (rows(6, 48),)),
    "gated_product": (gated_product, lambda: (rows(6, 48), rows(6, 48))),
    "rope": (rope, lambda: (heads(), angles(), angles())),
    "rope_": (in_place(rope_), lambda: (heads(), angles(), angles())),
    "rope_qkv_": (
        in_place(lambda x, cos, sin: rope_qkv_(x, cos, sin, n_heads=2, n_kv_heads=1)),
        lambda: (rows(1, 5, 64), angles(), angles()),
    ),
    "cross_entropy": (cross_entropy, lambda: (rows(6, 40), targets())),
    "cross_entropy_and_lse": (cross_entropy_and_lse, lambda: (rows(6, 40), targets())),
    "cross_entropy_over_logits": (
        in_place(cross_entropy_over_logits),
        lambda: (rows(6, 40), targets()),
    ),
    "whole": (
        lambda h, w, t: linear_cross_entropy(h, w, t, implementation="chunked"),
        lambda: (rows(6, 16), rows(40, 16), targets()),
    ),
    "chunked": (
        lambda h, w, t: linear_cross_entropy(h, w, t, implementation="chunked", workspace_bytes=1),
        lambda: (rows(10, 16), rows(40, 16), targets(10)),
    ),
    "recomputed": (
        lambda h, w, t: linear_cross_entropy(h, w, t, implementation="recomputed"),
        lambda: (rows(6, 16), rows(40, 16), targets()),
    ),
    "flash_attention": (
        lambda q, k, v: flash_attention(q, k, v, causal=True),
        lambda: (heads(), heads(), heads()),
    ),
    "flash_attention_with_lse": (
        lambda q, k, v: flash_attention_with_lse(q, k, v, causal=False, scale=1),
        lambda: (heads(4), heads(length=7), heads(length=7)),
    ),
    "flash_attention of a projection": (
        lambda qkv: flash_attention(
            *(each.transpose(1, 2) for each in qkv.view(1, 5, 3, 2, 16).unbind(2)), causal=True
        ),
        lambda: (rows(1, 5, 96),),
    ),
    "flash_attention_varlen": (
        packed,
        lambda: (rows(5, 2, 16), rows(5, 2, 16), rows(5, 2, 16), starts()),
    ),
    "decode_attention": (
        lambda q, k, v: decode_attention(q.detach(), k, v),
        lambda: (heads(length=1), heads().detach(), heads().detach()),
    ),
    "int8_matmul": (
        lambda x, w, s: int8_matmul(x.detach(), w, s),
        lambda: (rows(2, 128), torch.randint(-9, 9, (5, 128), dtype=torch.int8), torch.rand(1, 5)),
    ),
}
for _name, _stored, _scales in (("as it is", torch.float32, 0), ("int8", torch.int8, 2)):
    CASES[f"cache_write_ {_name}"] = (
        written,
        lambda stored=_stored, n=_scales: (
            heads(),
            torch.arange(5)[None] + 3,
            *(torch.zeros(1, 2, 9, 16, dtype=stored) for _ in range(2)),
            *(torch.zeros(1, 2, 9) for _ in range(n)),
        ),
    )
EACH = pytest.mark.parametrize("name", CASES)
WITHOUT_GRADIENT = (
    "decode_attention",
    "int8_matmul",
    "cache_write_ as it is",
    "cache_write_ int8",
)


class Watched(TorchDispatchMode):
    """A mode: under it every operator is the registered one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def results_of(call, inputs, *, differentiates, mode):
    """Outputs and gradients."""
    with nullcontext() if differentiates else torch.no_grad(), mode:
        outputs = call(*inputs)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        found = [each.detach().clone() for each in outputs]
        if differentiates:
            leaves = [each for each in inputs if each.requires_grad]
            weights = [torch.linspace(-1, 1, each.numel()).view(each.shape) for each in outputs]
            found += torch.autograd.grad(outputs, leaves, weights)
    return found


@contextmanager
def only_replays(monkeypatch):
    def refuse(*_):
        raise AssertionError("expected a replay")

    with monkeypatch.context() as patch:
        patch.setattr(calling, "record", refuse)
        patch.setattr(calling.Operator, "_registered", refuse)
        yield


LIKE_ANOTHER = (
    "rms_norm of a view",
    "softmax of columns",
    "cross_entropy_and_lse",
    "flash_attention_with_lse",
    "flash_attention of a projection",
)
"""Their backward passes are interpreted in the full tier alone: each is one second."""


@pytest.mark.parametrize(
    ("name", "differentiates"),
    [
        *((name, False) for name in CASES),
        *((name, True) for name in CASES if name not in LIKE_ANOTHER),
        *rows_in_full((name, True) for name in LIKE_ANOTHER),
    ],
)
def test_later_calls_replay_the_second_and_give_what_the_registered_operator_gives(
    name, differentiates, monkeypatch
):
    call, make = CASES[name]
    monkeypatch.setattr(workspace, "STEP", 4)  # Three chunks of few rows.
    if differentiates and name in WITHOUT_GRADIENT:
        pytest.skip("has no gradient")
    for turn in range(N_CALLS):
        inputs = make()
        with only_replays(monkeypatch) if turn > 1 else nullcontext():
            got = results_of(call, inputs, differentiates=differentiates, mode=nullcontext())
        expected = results_of(call, inputs, differentiates=differentiates, mode=Watched())
        assert len(got) == len(expected)
        for mine, registered in zip(got, expected, strict=True):
            assert mine.shape == registered.shape
            assert mine.stride() == registered.stride()
            assert mine.dtype == registered.dtype
            assert torch.equal(mine, registered)


@pytest.fixture(scope="module")
def doubled():
    """An operator of one kernel's worth of work in torch, which counts the calls of its body."""
    calls = []

    def check(x, factor):
        if factor > 8:
            raise ValueError("expected a factor of at most 8")

    @operator("peakward_test::scaled", check=check)
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(factor)
        out = torch.empty_like(x)
        torch.mul(x, factor, out=out)
        return out

    @scaled.register_fake
    def _(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.empty_like(x)

    def keep(ctx, inputs, output):
        ctx.factor = inputs[1]

    scaled.register_autograd(
        lambda ctx, gradient: (scaled(gradient, ctx.factor), None), setup_context=keep
    )
    return scaled, calls


@pytest.fixture
def settled(doubled):
    """The operator after two calls of one kind, and the kind's tensor."""
    scaled, calls = doubled
    x = torch.randn(4, 6)
    for _ in range(2):
        scaled(x, 2.0)
    calls.clear()
    return scaled, calls, x


def test_a_call_of_a_known_kind_runs_neither_body_nor_check(settled):
    scaled, calls, x = settled
    other = torch.randn(4, 6)
    assert torch.equal(scaled(other, 2), 2 * other)
    assert torch.equal(scaled(x, 2.0), 2 * x)
    assert calls == []


OF_ANOTHER_KIND = {
    "shape": lambda: (torch.randn(6, 4), 2.0),
    "stride": lambda: (torch.randn(6, 4).t(), 2.0),
    "type": lambda: (torch.randn(4, 6, dtype=torch.float64), 2.0),
    "alignment": lambda: (torch.randn(25)[1:].view(4, 6), 2.0),
    "setting": lambda: (torch.randn(4, 6), 3.0),
    "empty": lambda: (torch.randn(0, 6), 2.0),
}


@pytest.mark.parametrize("name", OF_ANOTHER_KIND)
def test_a_call_of_another_kind_goes_through_the_body(name, settled):
    scaled, calls, _ = settled
    x, factor = OF_ANOTHER_KIND[name]()
    assert torch.equal(scaled(x, factor), factor * x)
    assert calls == [factor]


def test_arguments_are_checked_before_any_call_that_is_not_replayed(settled):
    scaled, calls, x = settled
    for _ in range(3):
        with pytest.raises(ValueError, match="at most 8"):
            scaled(x, 9.0)
    assert calls == []


class Marked(torch.Tensor):
    pass


def profiled(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    assert "peakward_test::scaled" in {each.key for each in profile.key_averages()}


def under(mode):
    def way(call):
        with mode():
            call()

    return way


def deterministic(call):
    torch.use_deterministic_algorithms(True)
    try:
        call()
    finally:
        torch.use_deterministic_algorithms(False)


WATCHED = {
    "a profiler, which names the operator": profiled,
    "a mode of dispatch": under(Watched),
    "a mode over functions": under(torch.overrides.BaseTorchFunctionMode),
    "deterministic algorithms": deterministic,
}


@pytest.mark.parametrize("name", WATCHED)
def test_a_watched_call_is_the_registered_operator(name, settled):
    scaled, calls, x = settled
    WATCHED[name](lambda: scaled(x, 2.0))
    assert calls == [2.0]


def test_a_default_device_watches_nothing(settled):
    scaled, calls, x = settled
    with torch.device("cpu"):
        scaled(x, 2.0)
    assert calls == []


def test_other_tensors_are_for_the_registered_operator(settled):
    scaled, calls, x = settled
    assert torch.equal(scaled(x.as_subclass(Marked), 2.0), 2 * x)
    negative = torch._neg_view(x)
    assert torch.equal(scaled(negative, 2.0), -2 * x)
    assert calls == [2.0, 2.0]
    with torch._subclasses.FakeTensorMode() as mode:
        assert scaled(mode.from_tensor(x), 2.0).shape == x.shape
    assert scaled(x.to("meta"), 2.0).is_meta
    assert len(calls) == 2


def test_within_compiled_code_it_is_the_registered_operator(settled):
    scaled, _, x = settled
    seen = []

    def backend(graph, _):
        seen.extend(str(each.target) for each in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(lambda x: scaled(x, 2.0) + 1, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), 2 * x + 1)
    assert any("peakward_test.scaled" in each for each in seen)


def test_autocast_is_a_kind_of_its_own(settled, monkeypatch):
    scaled, calls, x = settled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    scaled(x, 2.0)
    assert calls == [2.0]


def test_a_first_derivative_is_replayed_and_a_second_is_the_registered_one(doubled):
    scaled, calls = doubled
    for turn in range(4):
        x = torch.randn(4, 6, requires_grad=True)
        calls.clear()
        (gradient,) = torch.autograd.grad(scaled(x, 2.0).sum(), x)
        assert torch.equal(gradient, torch.full_like(x, 2.0))
        assert len(calls) == (2, 2, 0, 0)[turn]
    x = torch.randn(4, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad((scaled(x, 2.0) ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert torch.equal(second, torch.full_like(x, 8.0))


def test_an_operator_without_a_formula_says_so_in_a_second_derivative():
    for _ in range(N_CALLS):
        x = torch.randn(6, 48, requires_grad=True)
        (gradient,) = torch.autograd.grad(swiglu(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"swiglu_backward|does not require grad"):
            torch.autograd.grad(gradient.sum(), x)


def test_what_is_written_over_counts_as_modified():
    cos, sin = torch.randn(5, 8), torch.randn(5, 8)
    x = torch.randn(1, 2, 5, 16)
    for turn in range(1, N_CALLS + 1):
        rope_(x, cos, sin)
        assert x._version == turn


def test_a_value_read_back_makes_a_call_that_is_never_replayed():
    calls = []

    @operator("peakward_test::normalised")
    def normalised(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x / x.sum().item()

    for turn in range(1, N_CALLS + 1):
        x = torch.rand(3)
        assert torch.allclose(normalised(x).sum(), torch.ones(()))
        assert len(calls) == turn


def test_operators_forget_the_first_kinds(doubled, monkeypatch):
    scaled, _ = doubled
    monkeypatch.setattr(calling, "MOST_KINDS", 3)
    for n in range(1, 9):
        for _ in range(3):
            scaled(torch.ones(n), 2.0)
        assert len(scaled._kinds) <= 3


def test_two_inputs_of_one_memory_are_two_tensors_in_a_replay():
    """Recorded of views of one projection, replayed for tensors apart."""
    q, k, v = torch.randn(1, 5, 3, 2, 16).unbind(2)
    for _ in range(2):
        flash_attention(*(each.transpose(1, 2) for each in (q, k, v)), causal=True)
    apart = [torch.randn(1, 5, 3, 2, 16).unbind(2)[0].transpose(1, 2) for _ in range(3)]
    got = flash_attention(*apart, causal=True)
    with Watched():
        assert torch.equal(got, flash_attention(*apart, causal=True))


def test_a_launch_hook_of_triton_is_called(monkeypatch):
    """A compiled launch starts by its own launcher, with addresses; with a hook by Triton's way."""
    from peakward.kernels.ops.recording import _compiled_launch, _Launch, _Tensors, _View

    triton = pytest.importorskip("triton")
    started, plain = [], []

    class Kernel:
        arg_names = ("x_ptr", "n", "BLOCK", "y_ptr")
        params = tuple(SimpleNamespace(name=each, default=7) for each in arg_names)

        def __getitem__(self, grid):
            return lambda *arguments, **options: plain.append((grid, arguments, options))

    class Compiled:
        function, packed_metadata = 11, (4, 1, 0)

        @staticmethod
        def run(*arguments):
            started.append(arguments)

    x, y = torch.ones(8), torch.ones(8)
    view = _View(0, 4, (7,), (1,), torch.float32, is_whole=False)
    whole = _View(1, 0, (8,), (1,), torch.float32, is_whole=True)
    noted = _Launch(Kernel(), (3,), [view, 5], {"y_ptr": whole, "num_warps": 4})
    step = _compiled_launch(noted, Compiled())
    tensors = _Tensors([x, y], [x.data_ptr(), y.data_ptr()], stream=13)
    step(tensors)
    assert started == [
        (3, 1, 1, 13, 11, (4, 1, 0), None, None, None, x.data_ptr() + 4, 5, 7, y.data_ptr())
    ]
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", lambda _: None)
    step(tensors)
    ((grid, (given, n), options),) = plain
    assert (grid, n, options["num_warps"], len(started)) == ((3,), 5, 4, 1)
    assert given.data_ptr() == x.data_ptr() + 4
    assert options["y_ptr"] is y


def test_a_descriptor_is_written_once_for_each_address():
    """By Triton's own wrapper of a launcher, which writes descriptors anew at every launch."""
    from peakward.kernels.ops.recording import (
        _compiled_launch,
        _Descriptor,
        _Launch,
        _Tensors,
        _View,
    )

    driver = pytest.importorskip("triton.backends.nvidia.driver")
    started = []

    class Kernel:
        arg_names = ("x", "n", "y", "z_ptr")
        params = tuple(SimpleNamespace(name=each, default=None) for each in arg_names)

    class Launcher:
        def __init__(self):
            signature = {
                "x": "tensordesc<fp32[2]>",
                "n": "i32",
                "y": "tensordesc<fp32[2]>",
                "z_ptr": "*fp32",
            }
            self.launch = driver.wrap_handle_tensordesc(
                lambda *arguments: started.append(arguments), signature, None
            )

        def __call__(self, *arguments):
            self.launch(*arguments)

    class Descriptor:
        def __init__(self):
            self.base, self.shape, self.strides, self.block_shape = None, [4], [1], [2]
            self.padding, self.round_f32_to_tf32 = "zero", False

    def described(number):
        view = _View(number, 0, (4,), (1,), torch.float32, is_whole=True)
        return _Descriptor(Descriptor(), view)

    z = _View(2, 8, (2,), (1,), torch.float32, is_whole=False)
    launched = _Launch(Kernel(), (3,), [described(0), 5, described(1), z], {})
    compiled = SimpleNamespace(run=Launcher(), function=11, packed_metadata=())
    step = _compiled_launch(launched, compiled)
    x, y, other, w = (torch.ones(4) for _ in range(4))
    for first in (x, other, x):
        held = [first, y, w]
        step(_Tensors(held, [each.data_ptr() for each in held], stream=13))
    given = [each[9:] for each in started]
    assert [each[0].data_ptr() for each in given] == [each.data_ptr() for each in (x, other, x)]
    assert given[0][0] is given[2][0]
    written = len(given[0]) - 2
    assert given[0][1 + (written // 2 - 1)] == 5
    assert given[0][written // 2 + 1].data_ptr() == y.data_ptr()
    assert given[0][-1] == w.data_ptr() + 8
