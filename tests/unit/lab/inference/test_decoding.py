"""A whole step depends on the device alone: nothing is read back, and rows do not touch one another."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.inference.decoding import LOOK_EVERY, Decoding
from peakward.lab.inference.generate import generate, text_of
from peakward.lab.inference.heavy_hitters import HeavyHitterCache
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.records.generation import Sampling

ON_CPU = {"n_rows": 2, "device": "cpu", "dtype": torch.float64}
CACHES = {
    "contiguous": lambda shape: ContiguousCache(shape, capacity=48, **ON_CPU),
    "int8": lambda shape: ContiguousCache(shape, capacity=48, stored=torch.int8, **ON_CPU),
    "pages": lambda shape: PagedCache(shape, n_pages=20, page_size=4, **ON_CPU),
    "int8 pages": lambda shape: PagedCache(
        shape, n_pages=20, page_size=4, stored=torch.int8, **ON_CPU
    ),
    "int4 pages": lambda shape: PagedCache(
        shape, n_pages=20, page_size=4, stored=torch.uint8, **ON_CPU
    ),
    "int4": lambda shape: ContiguousCache(shape, capacity=48, stored=torch.uint8, **ON_CPU),
    "ring": lambda shape: SlidingCache(shape, n_recent=6, n_sinks=2, **ON_CPU),
    "heavy": lambda shape: HeavyHitterCache(shape, n_heavy=4, n_recent=3, **ON_CPU),
}
BY = Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=3)
READS_BACK = ("_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select")


class Operators(TorchDispatchMode):
    """Counts the operators that are called, by name."""

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def read_back(self):
        return [each for each in self.names if each in READS_BACK]


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_steps_before_a_capture_change_no_text(kind, make_decoder):
    """A step is captured while every row counts as ended."""
    model = make_decoder({"n_kv_heads": 2})
    texts = []
    for captures in (False, True):
        decoding = Decoding(model, CACHES[kind](model.shape), by=BY, most_new_tokens=20)
        decoding.admit(0, [1, 2, 3], 20, 0)
        decoding.admit(1, [4], 12, 1)
        for n in (3, 8):
            if captures:
                with decoding._all_ended():
                    for _ in range(3):
                        decoding._step(max(decoding.cache.lengths) + 1)
            decoding.run(n)
        texts.append([text_of(decoding.text(row).tolist()) for row in (0, 1)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_steps_read_nothing_back_and_are_all_alike(kind, make_decoder):
    model = make_decoder({"n_kv_heads": 2})
    decoding = Decoding(model, CACHES[kind](model.shape), by=BY, most_new_tokens=20)
    decoding.admit(0, [1, 2, 3], 20, 0)
    decoding.admit(1, [4], 12, 1)
    found = []
    for _ in range(15):  # The second row has ended after 11.
        with Operators() as seen:
            decoding.run(1)
        assert seen.read_back == []
        found.append(seen.names)
    assert all(each == found[0] for each in found)
    assert decoding.left == [4, 0]
    assert decoding.ended().texts() == {1}


def test_a_text_is_looked_at_every_sixteen_steps(make_decoder):
    model = make_decoder({})
    cache = CACHES["contiguous"](model.shape)
    with Operators() as seen:
        decoding = Decoding(model, cache, by=BY, most_new_tokens=41, ends=frozenset((60,)))
        decoding.look_every = LOOK_EVERY
        asked, ended = [], decoding.ended
        decoding.ended = lambda: asked.append(decoding.n_steps) or ended()
        generate(decoding, [[1], [2]])
    assert asked == [0, 16, 32]
    assert seen.read_back == []  # Answers are copied whole.


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_a_step_captured_for_more_tokens_is_the_same(kind, make_decoder):
    """A graph replays one `longest` for all rows up to it."""
    model = make_decoder({"n_kv_heads": 2})
    exact, wide = (CACHES[kind](model.shape) for _ in range(2))
    active, ids = torch.tensor([True, True]), torch.tensor([[7], [9]])
    for cache in (exact, wide):
        cache.prefill(model, 0, [1, 2, 3, 4, 5])
        cache.prefill(model, 1, [6])
        cache.reserve(0, 8)
        cache.reserve(1, 8)
    paged = 64 if "pages" in kind else 48
    assert wide.span(6) == {"ring": 2, "heavy": 2}.get(kind, paged)
    for longest in range(6, 10):
        found = wide.advance(model, ids, active, wide.span(longest))
        torch.testing.assert_close(found, exact.advance(model, ids, active, longest))
        exact.lengths = [each + 1 for each in exact.lengths]
    assert torch.equal(wide.held, exact.held)


@torch.inference_mode()
def test_steps_that_are_no_graph_are_of_few_sizes_on_a_gpu(make_decoder):
    """Each size that attention has not seen is a plan that cuDNN makes: one for each token."""
    model = make_decoder({})
    cache = ContiguousCache(model.shape, capacity=256, **ON_CPU)
    decoding = Decoding(model, cache, by=BY, most_new_tokens=90)
    decoding.admit(0, [1, 2, 3], 90, 0)
    decoding.admit(1, [4], 90, 1)
    # No GPU is asked: on a CPU steps read what is held, and here as they would on one.
    decoding.device = torch.device("cuda")
    decoding._captured = False
    sizes = []
    read = cache.read
    cache.read = lambda layer, at: sizes.append(read(layer, at)[0].shape[2]) or read(layer, at)
    decoding.run(80)
    assert sorted({*sizes}) == [64, 128]


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_a_text_is_the_same_in_any_company(kind, make_decoder):
    """A row that has ended, was released or has a new text changes no other, drawn tokens included."""
    model = make_decoder({"n_kv_heads": 2})
    long, short, late = ([1, 2, 3], 20), ([5, 6, 7, 8, 9], 4), ([2] * 7, 9)

    def texts(*admitted):
        """The texts by number, each admitted to a row at a step."""
        decoding = Decoding(model, CACHES[kind](model.shape), by=BY, most_new_tokens=20)
        found = {}
        for step in range(24):
            for _, row, number, (prompt, n) in (each for each in admitted if each[0] == step):
                decoding.release(row)
                decoding.admit(row, prompt, n, number)
            decoding.run(1)
            for at, row, number, _ in admitted:
                if at <= step:
                    found[number, row] = text_of(decoding.text(row).tolist())
        return found

    alone = texts((0, 0, 0, long))[0, 0]
    found = texts((0, 0, 0, long), (0, 1, 1, short), (7, 1, 2, late))
    assert (len(alone), found[0, 0]) == (20, alone)
    assert found[2, 1] == texts((0, 0, 2, late))[2, 0]
    assert len(found[2, 1]) == 9
