"""Steps of decode wait for nothing, whatever the cache."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sampling import chosen
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.models import decoder
from peakward.models import presets
from peakward.records.generation import Sampling

pytestmark = pytest.mark.gpu
SHAPE = presets.model("tiny")
ON_GPU = {"n_rows": 2, "device": "cuda", "dtype": torch.bfloat16}
CACHES = {
    "contiguous": lambda: ContiguousCache(SHAPE, capacity=32, **ON_GPU),
    "kernel": lambda: ContiguousCache(SHAPE, capacity=32, attention="flash-decode", **ON_GPU),
    "pages": lambda: PagedCache(SHAPE, n_pages=8, page_size=16, **ON_GPU),
    "ring": lambda: SlidingCache(SHAPE, n_recent=6, n_sinks=2, **ON_GPU),
}


@pytest.mark.parametrize("kind", CACHES)
@torch.inference_mode()
def test_steps_wait_for_nothing(kind):
    model = decoder.build(
        SHAPE, attention=implementation("sdpa"), device="cuda", dtype=torch.bfloat16, seed=0
    ).eval()
    cache, by = CACHES[kind](), Sampling(temperature=0.8, top_k=20, top_p=0.9)
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.cat([cache.prefill(model, row, ids) for row, ids in enumerate(([1, 2], [3]))])
    ids = chosen(logits, by, generator)
    cache.step(model, ids[:, None])  # A kernel is compiled at its first call.
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(8):  # Within a page: a new one's number is sent to the device.
            ids = chosen(cache.step(model, ids[:, None]), by, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert cache.lengths == [11, 10]
