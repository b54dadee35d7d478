"""Steps of generation on a GPU, each one graph with the choice of the token in it.

    python benchmarks/generation.py --out generation.json --models small,2.7B --positions 1024

Parts: `fused` has the loop on the model's modules beside the loop on the fused step and that step alone, with
the share of the copy's bandwidth that was measured in the same process, and the time of a prompt; `caches`
the loop by cache; `queue` requests in static batches and continuously. Weights are random. Ways of a step are
timed in turns. It prints a line for each, as JSON, and writes all of them after every one.
"""

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from decoding.graphs import Report, copy_bytes_per_s, graph_of
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import NGrams
from peakward.lab.inference.fused_step import FusedDecoder, FusedDecoding, FusedStep
from peakward.lab.inference.generate import text_of
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.read_bytes import weight_bytes
from peakward.lab.inference.sequences import ContiguousCache, SequenceCache
from peakward.lab.inference.serving import Request, serve
from peakward.lab.inference.speculation import Speculation
from peakward.lab.models import decoder
from peakward.models import presets
from peakward.records.generation import Sampling
from peakward.records.model_shape import ModelShape

ROUNDS, STEPS = 7, 16
ROOM = ROUNDS * STEPS * 8 + 64
"""New tokens, of rounds that make up to eight each."""
PAGE_SIZE = 16
SPAN = 32
"""Steps of a turn of the part `fused`."""
PROMPTS = 5
"""Times that a prompt is read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="small,2.7B")
    parser.add_argument("--weights", default="dense", help="of `fused`: dense,int8,int4:128")
    parser.add_argument("--positions", default="1024", help="N,N…")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--parts", default="fused", help="fused,caches,queue")
    parser.add_argument("--only", default="", help="of `caches`: ways whose names hold this")
    options = parser.parse_args()
    report, parts = Report(options.out), options.parts.split(",")
    positions = [int(each) for each in options.positions.split(",")]
    bandwidth = copy_bytes_per_s()
    report.held |= {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_s": bandwidth,
    }
    with torch.inference_mode():
        for name in options.models.split(","):
            if "fused" in parts:
                for weights, n in product(options.weights.split(","), positions):
                    fused(report, built(name, weights), weights, n, bandwidth)
            if {"caches", "queue"} & set(parts):
                model = built(name, "dense")
            if "caches" in parts:
                for n in positions:
                    steps(report, model, n, options.rows, options.only)
            if "queue" in parts:
                queue(report, model, options.requests)


def built(name: str, weights: str) -> decoder.Decoder:
    return decoder.build(
        presets.model(name),
        attention=implementation("sdpa"),
        weights=weights,
        device="cuda",
        dtype=torch.bfloat16,
        seed=0,
    ).eval()


def prompt_of(model: decoder.Decoder, n: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.shape.vocab_size, (n,), generator=generator).tolist()


def span_s(run: Callable[[int], Any], n: int) -> float:
    """The time of one of n steps, by the host's clock."""
    torch.cuda.synchronize()
    began = perf_counter()
    run(n)
    torch.cuda.synchronize()
    return (perf_counter() - began) / n


def fused(
    report: Report, model: decoder.Decoder, weights: str, positions: int, bandwidth: float
) -> None:
    """Steps around `positions`, in turns: the loop on modules, the loop on the fused step whose tokens torch
    chooses, that with the choice in the step, and the fused step alone at the same position, in a cache of
    just these positions and in one as large as the loop's."""
    shape, n_new = model.shape, (ROUNDS + 1) * SPAN
    n_prompt, room = positions - n_new // 2, positions + n_new
    prompt = prompt_of(model, n_prompt, 0)
    loops = loops_of(model, room, n_new + 1)
    for name, decoding in loops.items():
        began = perf_counter()
        decoding.prepare(n_prompt + 1, n_prompt + n_new + 1)
        report.add(part="fused", model=shape.name, prepared=name, prepare_s=perf_counter() - began)
    prefill_s = prefills_s(list(loops.values()), prompt, n_new + 1)
    position = torch.full((1,), positions - 1, device="cuda")
    ids = torch.tensor(prompt[:1], device="cuda")
    ways: dict[str, Callable[[int], None]] = {name: loop.run for name, loop in loops.items()}
    small = cache_of(shape, positions)
    ways["alone"] = alone(model, small, ids, position)
    ways["alone, room as the loop's"] = alone(model, cache_of(shape, room), ids, position)
    bytes_ = weight_bytes([model]) + small.storage.n_bytes
    times = in_turns(ways)
    texts = [text_of(each.text(0).tolist()) for each in loops.values()]
    alike = [one == other for one, other in zip(*texts[:2], strict=True)]
    for name, found in times.items():
        step_s = median(found[1:])
        report.add(
            part="fused", model=shape.name, weights=weights, positions=positions, way=name,
            step_s=step_s, tokens_per_s=1 / step_s, spread=max(found[1:]) / min(found[1:]),
            bytes=bytes_, share_of_copy=bytes_ / step_s / bandwidth,
        )  # fmt: skip
    report.add(
        part="fused", model=shape.name, weights=weights, prompt_tokens=n_prompt,
        prefill_s=median(prefill_s), graphs=[each.n_captured for each in loops.values()],
        n_new=len(alike), n_alike_first=([*alike, False]).index(False),
    )  # fmt: skip


def cache_of(shape: ModelShape, capacity: int) -> ContiguousCache:
    """A cache of one text in bf16, for so many positions."""
    return ContiguousCache(
        shape, n_rows=1, capacity=capacity, device="cuda", dtype=torch.bfloat16,
        attention="flash-decode",
    )  # fmt: skip


def loops_of(model: decoder.Decoder, capacity: int, most_new_tokens: int) -> dict[str, Decoding]:
    """Loops by name, each with a cache for so many positions. The first two choose tokens in torch."""
    how: dict[str, Any] = {"by": Sampling(), "most_new_tokens": most_new_tokens}
    held, fused_held, chosen_held = (cache_of(model.shape, capacity) for _ in range(3))
    return {
        "loop on modules": Decoding(model, held, **how),
        "loop on the fused step": Decoding(FusedDecoder(model, fused_held), fused_held, **how),
        "loop with the choice in the step": FusedDecoding(model, chosen_held, **how),
    }


def prefills_s(loops: list[Decoding], prompt: list[int], most_new_tokens: int) -> list[float]:
    """The seconds in which loops read a prompt, in turns, without the first time of each. The prompt stays
    in each loop's row 0."""
    found = []
    for each in range(PROMPTS):
        for loop in loops:
            if each:
                loop.release(0)
            found.append(span_s(lambda _, it=loop: it.admit(0, prompt, most_new_tokens, 0), 1))
    return found[len(loops) :]


def alone(
    model: decoder.Decoder, cache: ContiguousCache, ids: Tensor, position: Tensor
) -> Callable[[int], None]:
    """The fused step from ids (1,) at its `position` (1,), so many times, on random keys and values."""
    for each in cache.storage.parts:
        each.normal_()
    step = FusedStep(model, cache.storage.layers)
    graph = graph_of(lambda: step(ids, position))

    # A graph does not hold what it reads.
    def run(n: int, _held: tuple[object, ...] = (step, cache, ids, position)) -> None:
        for _ in range(n):
            graph.replay()

    return run


def in_turns(ways: dict[str, Callable[[int], None]]) -> dict[str, list[float]]:
    """The seconds of a step of each way in each turn. Every turn has the order of the one before reversed."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name in list(ways) if turn % 2 else list(ways)[::-1]:
            times[name].append(span_s(ways[name], SPAN))
    return times


def steps(report: Report, model: decoder.Decoder, positions: int, rows: int, only: str) -> None:
    """The median time of a step behind `positions` tokens, in turns, of the ways whose names hold `only`."""
    shape, capacity = model.shape, positions + ROOM + 8
    at = {"n_rows": rows, "device": "cuda", "dtype": torch.bfloat16}
    kernel = at | {"attention": "flash-decode"}
    contiguous = {"capacity": capacity}
    n_pages = rows * -(-capacity // PAGE_SIZE)
    pages = {"n_pages": n_pages, "page_size": PAGE_SIZE, "longest": capacity}
    caches: dict[str, SequenceCache] = {
        "contiguous, sdpa": ContiguousCache(shape, **contiguous, **at),
        "contiguous, kernel": ContiguousCache(shape, **contiguous, **kernel),
        "pages, kernel": PagedCache(shape, **pages, **kernel),
        "int8, kernel": ContiguousCache(shape, stored=torch.int8, **contiguous, **kernel),
        "int8 pages, kernel": PagedCache(shape, stored=torch.int8, **pages, **kernel),
        "int4, sdpa": ContiguousCache(shape, stored=torch.uint8, **contiguous, **at),
        "int4, kernel": ContiguousCache(shape, stored=torch.uint8, **contiguous, **kernel),
        "int4 pages, kernel": PagedCache(shape, stored=torch.uint8, **pages, **kernel),
        "contiguous, fused step": ContiguousCache(shape, **contiguous, **kernel),
        "pages, fused step": PagedCache(shape, **pages, **kernel),
        "int8, fused step": ContiguousCache(shape, stored=torch.int8, **contiguous, **kernel),
        "int8 pages, fused step": PagedCache(shape, stored=torch.int8, **pages, **kernel),
        "guesses by n-grams, kernel": ContiguousCache(shape, **contiguous, **kernel),
    }
    decodings = {}
    for name, cache in caches.items():
        if only not in name:
            continue
        by = {"by": Sampling(), "most_new_tokens": ROOM}
        if name.startswith("guesses"):
            decodings[name] = Speculation(model, cache, NGrams(), n_guessed=4, **by)
        elif name.endswith("fused step"):
            decodings[name] = FusedDecoding(model, cache, **by)
        else:
            decodings[name] = Decoding(model, cache, **by)
        decodings[name].prepare(positions + 1, positions + ROOM)
        for row in range(rows):
            decodings[name].admit(row, prompt_of(model, positions, row), ROOM, row)
    times: dict[str, list[float]] = {name: [] for name in decodings}
    for _ in range(ROUNDS):
        for name, decoding in decodings.items():
            times[name].append(span_s(decoding.run, STEPS))
    for name, found in times.items():
        report.add(
            part="caches", model=shape.name, way=name, rows=rows, positions=positions,
            step_s=median(found), steps_per_s=1 / median(found), graphs=decodings[name].n_captured,
        )  # fmt: skip


def queue(report: Report, model: decoder.Decoder, n_requests: int) -> None:
    """Requests of 16 to 256 prompt tokens and 8 to 200 new ones through 16 rows."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(16, 257, (n_requests,), generator=generator).tolist()
    news = torch.randint(8, 201, (n_requests,), generator=generator).tolist()
    vocab = model.shape.vocab_size
    requests = [
        Request(torch.randint(vocab, (n,), generator=generator).tolist(), new)
        for n, new in zip(lengths, news, strict=True)
    ]
    for batching in ("static", "continuous", "continuous", "static"):
        cache = PagedCache(
            model.shape,
            n_rows=16,
            n_pages=16 * 29,
            page_size=PAGE_SIZE,
            longest=456,
            device="cuda",
            dtype=torch.bfloat16,
            attention="flash-decode",
        )
        made = serve(Decoding(model, cache, by=Sampling(), most_new_tokens=200), requests, batching)
        n_tokens = sum(map(len, made.tokens))
        report.add(
            part="queue", model=model.shape.name, batching=batching,
            tokens_per_s=n_tokens / made.serve_s, first_token_s=median(made.first_token_s),
            n_steps=made.n_steps, row_use=made.row_use,
        )  # fmt: skip


if __name__ == "__main__":
    main()
