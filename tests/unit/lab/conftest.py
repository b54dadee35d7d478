"""A tiny model to vary, and one thread: on tensors this small more of them only get in the way."""

import weakref

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
