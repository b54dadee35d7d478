"""A step of a model that transformers computes is one CUDA graph too, and its text is the eager one."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache
from peakward.records.generation import Sampling

pytest.importorskip("transformers")
from peakward.lab.inference.transformers_model import TransformersModel
from transformers_models import MODELS, built

pytestmark = pytest.mark.gpu
PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [4])
CACHES = {
    "contiguous": lambda shape, **at: ContiguousCache(shape, capacity=48, **at),
    "pages": lambda shape, **at: PagedCache(shape, n_pages=24, page_size=4, **at),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return TransformersModel(built(*MODELS[request.param]).cuda(), request.param)


def decoding_of(model, kind):
    cache = CACHES[kind](model.shape, n_rows=2, device="cuda", dtype=torch.float32)
    return Decoding(model, cache, by=Sampling(), most_new_tokens=24)


@pytest.mark.parametrize("kind", CACHES)
def test_replayed_texts_are_those_of_eager_steps(model, kind, monkeypatch):
    if not model.captured:
        pytest.skip("asks the host for numbers on its way")
    replayed = decoding_of(model, kind)
    texts = generate(replayed, PROMPTS).tokens
    assert replayed.n_captured > 0
    monkeypatch.setattr(model, "captured", False)
    eager = decoding_of(model, kind)
    assert generate(eager, PROMPTS).tokens == texts
    assert eager.n_captured == 0


def test_a_replayed_step_is_launched_at_once(model):
    if not model.captured:
        pytest.skip("asks the host for numbers on its way")
    decoding = decoding_of(model, "contiguous")
    with torch.inference_mode():
        decoding.prepare(8, 32)
        for row, prompt in enumerate(PROMPTS):
            decoding.admit(row, prompt, 24, row)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            decoding.run(4)
            torch.cuda.synchronize()
    calls = {each.key: each.count for each in seen.key_averages()}
    assert calls.get("cudaGraphLaunch") == 4
    assert "cudaStreamSynchronize" not in calls
