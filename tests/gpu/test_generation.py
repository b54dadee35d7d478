"""A step of decode is one CUDA graph that waits for nothing, and its text is the eager one."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import ModelDraft, NGrams, without_blocks
from peakward.lab.inference.generate import generate, text_of
from peakward.lab.inference.heavy_hitters import HeavyHitterCache
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.inference.serving import Request, serve
from peakward.lab.inference.speculation import Speculation
from peakward.lab.models import decoder
from peakward.models import presets
from peakward.records.generation import Sampling

pytestmark = pytest.mark.gpu
SHAPE = presets.model("tiny")
ON_GPU = {"n_rows": 2, "device": "cuda", "dtype": torch.bfloat16}
KERNEL = {"attention": "flash-decode"}
INT8, INT4 = {"stored": torch.int8}, {"stored": torch.uint8}


def contiguous(**how):
    return lambda **at: ContiguousCache(SHAPE, capacity=160, **how, **at)


def pages(**how):
    return lambda **at: PagedCache(SHAPE, n_pages=24, page_size=16, **how, **at)


CACHES = {
    "contiguous": contiguous(),
    "contiguous, kernel": contiguous(**KERNEL),
    "pages": pages(),
    "pages, kernel": pages(**KERNEL),
    "int8": contiguous(**INT8),
    "int8, kernel": contiguous(**INT8, **KERNEL),
    "int8 pages": pages(**INT8),
    "int8 pages, kernel": pages(**INT8, **KERNEL),
    "int4 pages": pages(**INT4),
    "int4": contiguous(**INT4),
    "int4, kernel": contiguous(**INT4, **KERNEL),
    "int4 pages, kernel": pages(**INT4, **KERNEL),
    "ring": lambda **at: SlidingCache(SHAPE, n_recent=6, n_sinks=2, **at),
    "heavy": lambda **at: HeavyHitterCache(SHAPE, n_heavy=8, n_recent=8, **at),
}
PROMPTS = ([1, 2, 3], [4])
RULES = {"greedy": Sampling(), "drawn": Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=5)}


def model_of(dtype):
    return decoder.build(
        SHAPE, attention=implementation("sdpa"), device="cuda", dtype=dtype, seed=0
    ).eval()


def admitted(kind, by):
    decoding = Decoding(
        model_of(torch.bfloat16), CACHES[kind](**ON_GPU), by=by, most_new_tokens=120
    )
    for row, prompt in enumerate(PROMPTS):
        decoding.admit(row, prompt, 120, row)
    return decoding


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_steps_wait_for_nothing_and_are_one_launch_each(kind):
    decoding = admitted(kind, RULES["drawn"])
    decoding.prepare(4, 64)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoding.run(40)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        decoding.run(20)
    counts = {each.key: each.count for each in seen.key_averages()}
    assert counts["cudaGraphLaunch"] == 20
    launches = {"cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"}
    assert not launches & counts.keys()
    assert decoding.n_captured <= 2  # Up to 64 tokens, and up to 128.


@pytest.mark.parametrize("by", RULES.values(), ids=RULES)
@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_a_replayed_text_is_the_eager_one(kind, by):
    """In fp32, in which a mask of more slots changes no choice of this model."""
    texts = []
    model = model_of(torch.float32)
    for eagerly in (True, False):
        cache = CACHES[kind](**ON_GPU | {"dtype": torch.float32})
        decoding = Decoding(model, cache, by=by, most_new_tokens=100)
        for row, prompt in enumerate(PROMPTS):
            decoding.admit(row, prompt, 100, row)
        if eagerly:
            for _ in range(99):
                decoding._step(max(cache.lengths) + 1)
                cache.lengths = [each + 1 for each in cache.lengths]
        else:
            decoding.run(99)
        texts.append([text_of(decoding.text(row).tolist()) for row in (0, 1)])
    assert texts[0] == texts[1]
    assert [len(each) for each in texts[0]] == [100, 100]


def test_an_end_is_seen_behind_the_device():
    model, prompt = model_of(torch.float32), [1, 2, 3]

    def made(ends):
        cache = ContiguousCache(SHAPE, capacity=260, **ON_GPU | {"n_rows": 1})
        decoding = Decoding(model.bfloat16(), cache, by=Sampling(), most_new_tokens=250, ends=ends)
        return generate(decoding, [prompt])

    whole = made(frozenset()).tokens[0]
    assert len(whole) == 250
    found = made(frozenset((whole[5],)))
    assert found.tokens[0] == whole[: whole.index(whole[5]) + 1]
    assert found.n_steps <= 5 + 3 * 16


def test_a_queue_gives_each_request_its_own_text():
    model = model_of(torch.float32)
    requests = [Request([1 + n] * (3 + 5 * n), 4 + 17 * (n % 3)) for n in range(7)]
    on_gpu = ON_GPU | {"dtype": torch.float32, "n_rows": 3}

    def cache():
        return PagedCache(SHAPE, n_pages=24, page_size=16, **KERNEL, **on_gpu)

    by = RULES["drawn"]
    found = {
        way: serve(Decoding(model, cache(), by=by, most_new_tokens=38), requests, way)
        for way in ("static", "continuous")
    }
    assert found["static"].tokens == found["continuous"].tokens
    assert [len(each) for each in found["static"].tokens] == [
        each.max_new_tokens for each in requests
    ]
    for each in found.values():
        assert all(
            0 < a <= b <= each.serve_s for a, b in zip(each.first_token_s, each.done_s, strict=True)
        )
    assert found["continuous"].n_steps < found["static"].n_steps


def drafter_of(kind, model):
    if kind == "ngrams":
        return NGrams()
    draft = without_blocks(model, (1,)) if kind == "fewer blocks" else model
    return ModelDraft(
        draft,
        ContiguousCache(draft.shape, capacity=170, **KERNEL, **ON_GPU | {"dtype": torch.float32}),
    )


@pytest.mark.parametrize("kind", ["ngrams", "fewer blocks", "itself"])
@pytest.mark.parametrize("cache", ["contiguous", "contiguous, kernel", "pages, kernel"])
def test_guesses_change_no_text_and_wait_for_nothing(kind, cache):
    """In fp32, in which a pass over several tokens changes no choice of this model."""
    model, on_gpu = model_of(torch.float32), ON_GPU | {"dtype": torch.float32}
    by = {"by": Sampling(), "most_new_tokens": 100}
    plain = generate(Decoding(model, CACHES[cache](**on_gpu), **by), PROMPTS)
    speculation = Speculation(
        model, CACHES[cache](**on_gpu), drafter_of(kind, model), n_guessed=4, **by
    )
    found = generate(speculation, PROMPTS)
    assert found.tokens == plain.tokens
    assert sum(found.counts.accepted) + found.counts.n_kept == 2 * 99
    if kind == "itself":
        assert found.n_steps <= 20 + 2  # Five tokens a round, and two rounds in vain.


@torch.inference_mode()
def test_a_round_of_guesses_is_one_launch():
    model = model_of(torch.bfloat16)
    cache = CACHES["pages, kernel"](**ON_GPU)
    draft = ModelDraft(model, ContiguousCache(SHAPE, capacity=170, **KERNEL, **ON_GPU))
    by = {"by": RULES["drawn"], "most_new_tokens": 120}
    decoding = Speculation(model, cache, draft, n_guessed=3, **by)
    decoding.prepare(4, 130)
    for row, prompt in enumerate(PROMPTS):
        decoding.admit(row, prompt, 120, row)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoding.run(10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert decoding.n_captured == 1
    assert sum(decoding.counts().accepted) == 20
