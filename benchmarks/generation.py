"""Steps of generation on a GPU: eagerly and as one graph, by cache; and a queue, static and continuous.

    python benchmarks/generation.py --model small --positions 1024

It prints a line for each, as JSON. Weights are random, in bf16. Ways of a step are timed in turns.
"""

import argparse
import json
from statistics import median
from time import perf_counter

import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import NGrams
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, QuantizedCache, SequenceCache
from peakward.lab.inference.serving import Request, serve
from peakward.lab.inference.speculation import Speculation
from peakward.lab.models import decoder
from peakward.models import presets
from peakward.records.generation import Sampling

ROUNDS, STEPS = 7, 16
ROOM = ROUNDS * STEPS * 8 + 64
"""New tokens, of rounds that make up to eight each."""
PAGE_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small")
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--requests", type=int, default=48)
    options = parser.parse_args()
    shape = presets.model(options.model)
    model = decoder.build(
        shape, attention=implementation("sdpa"), device="cuda", dtype=torch.bfloat16, seed=0
    ).eval()
    with torch.inference_mode():
        steps(model, options.positions, options.rows)
        queue(model, options.requests)


def steps(model: decoder.Decoder, positions: int, rows: int) -> None:
    """The median time of a step behind `positions` tokens, in turns."""
    shape, capacity = model.shape, positions + ROOM + 8
    at = {"n_rows": rows, "device": "cuda", "dtype": torch.bfloat16}
    kernel = at | {"attention": "flash-decode"}
    pages = rows * -(-capacity // PAGE_SIZE)
    caches: dict[str, SequenceCache] = {
        "contiguous, sdpa": ContiguousCache(shape, capacity=capacity, **at),
        "contiguous, kernel": ContiguousCache(shape, capacity=capacity, **kernel),
        "pages, kernel": PagedCache(shape, n_pages=pages, page_size=PAGE_SIZE, **kernel),
        "int8, kernel": QuantizedCache(shape, capacity=capacity, stored=torch.int8, **kernel),
        "guesses by n-grams, kernel": ContiguousCache(shape, capacity=capacity, **kernel),
    }
    decodings = {}
    for name, cache in caches.items():
        by = {"by": Sampling(), "most_new_tokens": ROOM}
        if name.startswith("guesses"):
            decodings[name] = Speculation(model, cache, NGrams(), n_guessed=4, **by)
        else:
            decodings[name] = Decoding(model, cache, **by)
        decodings[name].prepare(positions + 1, positions + ROOM)
        for row in range(rows):
            prompt = torch.randint(
                shape.vocab_size, (positions,), generator=torch.Generator().manual_seed(row)
            )
            decodings[name].admit(row, prompt.tolist(), ROOM, row)
    times: dict[str, list[float]] = {name: [] for name in decodings}
    for _ in range(ROUNDS):
        for name, decoding in decodings.items():
            torch.cuda.synchronize()
            began = perf_counter()
            decoding.run(STEPS)
            torch.cuda.synchronize()
            times[name].append((perf_counter() - began) / STEPS)
    for name, found in times.items():
        said = {
            "step": name,
            "rows": rows,
            "step_s": median(found),
            "graphs": decodings[name].n_captured,
        }
        print(json.dumps(said | {"steps_per_s": 1 / median(found)}), flush=True)


def queue(model: decoder.Decoder, n_requests: int) -> None:
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
            device="cuda",
            dtype=torch.bfloat16,
            attention="flash-decode",
        )
        made = serve(Decoding(model, cache, by=Sampling(), most_new_tokens=200), requests, batching)
        n_tokens = sum(map(len, made.tokens))
        said = {
            "batching": batching,
            "tokens_per_s": n_tokens / made.serve_s,
            "first_token_s": median(made.first_token_s),
            "n_steps": made.n_steps,
            "row_use": made.row_use,
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
