"""A tiny model to vary, and one thread: on tensors this small more of them only get in the way."""

import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakward.kernels.ops.fp8_linear import reference as fp8_linear
from peakward.kernels.ops.fp8_swiglu import reference as fp8_swiglu
from peakward.lab.levers.ranges import PREFIX
from peakward.records.model_shape import ModelShape

TINY = ModelShape(
    name="tiny",
    vocab_size=61,
    n_layers=2,
    d_model=32,
    d_ff=48,
    n_heads=4,
    n_kv_heads=4,
    head_dim=8,
    max_seq_len=32,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def fp8_by_torch():
    """Casts to fp8 by torch in the place of interpreted kernels, which took 60 s of a core in this folder.
    tests/kernels hold the casts to these bit for bit, SwiGLU that writes fp8 up to a rounding."""
    if torch.cuda.is_available() or find_spec("triton") is None:
        yield
        return
    from peakward.kernels.ops.fp8_linear import triton as casts
    from peakward.kernels.ops.fp8_swiglu import triton as swiglu

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(casts, "cast_rows", fp8_linear.cast_rows)
        patch.setattr(casts, "cast_both", fp8_linear.cast_both)
        patch.setattr(
            casts, "cast_delayed_rows", lambda *given: fp8_linear.cast_delayed(*given)[::2]
        )
        patch.setattr(casts, "cast_delayed_both", fp8_linear.cast_delayed)
        patch.setattr(swiglu, "forward", fp8_swiglu.forward)
        patch.setattr(swiglu, "backward", fp8_swiglu.backward)
        yield


@pytest.fixture
def make_shape():
    """tiny_shape(**changes): the tiny shape with these fields changed."""

    def make(**changes: object) -> ModelShape:
        return msgspec.structs.replace(TINY, **changes)

    return make


class LiveBytes(TorchDispatchMode):
    """The most bytes that storages made under it held at once."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in self._seen | given:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return result

    def _freed(self, key, n_bytes):
        self._seen.discard(key)
        self.now -= n_bytes


def _storages(tree: object) -> list[torch.UntypedStorage]:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [each.untyped_storage() for each in tensors if each.device.type != "meta"]


@pytest.fixture
def live_bytes() -> LiveBytes:
    return LiveBytes()


class Seen(NamedTuple):
    """The ranges that were opened, in their order, with how deep each lies; and the operators."""

    ranges: tuple[tuple[int, str], ...]
    operators: tuple[str, ...]


@pytest.fixture
def watched() -> Callable[[Callable[[], object]], Seen]:
    """watched(act): what the profiler sees of `act()`."""

    def watch(act):
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            act()
        events = sorted(profiler.events(), key=lambda each: (each.time_range.start, each.id))
        named = [each for each in events if each.name.startswith(PREFIX)]
        return Seen(
            tuple((_depth(each), each.name.removeprefix(PREFIX)) for each in named),
            tuple(each.name for each in events if each.name.startswith("aten::")),
        )

    return watch


def _depth(event) -> int:
    depth, parent = 0, event.cpu_parent
    while parent is not None:
        depth += parent.name.startswith(PREFIX)
        parent = parent.cpu_parent
    return depth
