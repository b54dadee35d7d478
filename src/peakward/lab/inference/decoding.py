"""The rows of a cache on their way: a whole step makes the next token of each, and nothing waits for it.

All that a step needs and changes is on the device: the newest token of each row, how many it has made,
whether it has ended, the choice of the next. On a GPU the step is one CUDA graph, unless the model asks the
host for numbers on its way (`TransformersModel.captured`). It depends on the most
tokens that a row holds (`SequenceCache.span`) and on nothing else, so that a few graphs serve all steps. On a
CPU the same code runs as it stands.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import asdict
from torch import Tensor, nn

from peakward.lab.inference.passes import sent
from peakward.lab.inference.sampling import chosen, drawn
from peakward.lab.inference.sequences import SequenceCache
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling, checked_sampling

LOOK_EVERY = 16
"""Steps between two looks of the host at what has ended on a GPU. On a CPU, where nothing waits for a look,
it looks behind each: otherwise a text of 18 tokens would be timed with the steps up to the next look."""
WARM_UPS = 2
"""Steps before one is captured: a kernel is compiled and a library set up at its first call."""


class Decoding:
    """Texts in the rows of a cache, each with as many tokens to come as it was admitted with.

    The model's logits must be numbers below infinity. No step looks for others, because the host would have
    to wait for what it finds, and from these any token may be taken.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: SequenceCache,
        *,
        by: Sampling,
        most_new_tokens: int,
        ends: frozenset[int] = frozenset(),
        n_extra: int = 0,
    ) -> None:
        """
        Args:
            cache: empty; it is this object's until all is done.
            most_new_tokens: of any text.
            ends: the tokens that end a text.
            n_extra: the tokens that a step makes beside the first, at most.

        Raises:
            PeakwardError: a value of `by` beyond its limits, or texts of no token.
        """
        by = checked_sampling(**asdict(by))
        if most_new_tokens < 1:
            raise PeakwardError(
                f"expected at least one new token of a text, got {most_new_tokens:,}: ask for some"
            )
        n_rows, device = len(cache.lengths), cache.device
        self.model, self.cache, self.by = model, cache, by
        self.most_new_tokens = most_new_tokens
        self.device = torch.device(device)
        self._captured = self.device.type == "cuda" and getattr(model, "captured", True)
        self.numbers: list[int | None] = [None] * n_rows
        """The text in each row."""
        self.left = [0] * n_rows
        """The steps that each row needs at most: a token ends its text before, or a step makes several."""
        self.n_extra = n_extra
        self.look_every = LOOK_EVERY if self.device.type == "cuda" and not n_extra else 1
        """Steps between two looks at what has ended."""
        self.n_steps = 0
        self.n_captured = 0
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64, device=device)
        self._ids = torch.zeros((n_rows, 1), dtype=torch.int64, device=device)
        self._made = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self._most = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self._ended = torch.ones(n_rows, dtype=torch.bool, device=device)
        # More columns, for what a row writes that has ended.
        size = (n_rows, most_new_tokens + 1 + n_extra)
        self._out = torch.zeros(size, dtype=torch.int64, device=device)
        self._draws = torch.zeros(size, dtype=torch.float64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def admit(self, row: int, prompt: Sequence[int], n_new: int, number: int) -> None:
        """Takes a prompt into an empty row and makes its first token.

        Args:
            n_new: the most tokens to make.
            number: of the text, by which it and its draws are told from others.

        Raises:
            PeakwardError: what `fits` and `SequenceCache.prefill` raise, or no room now.
        """
        if not self.fits(prompt, n_new):
            raise PeakwardError(
                f"expected room for {len(prompt):,} tokens and {n_new:,} to come, got too little: release a "
                "row, or make a cache of more pages"
            )
        logits = self.cache.prefill(self.model, row, prompt)
        self.cache.reserve(row, n_new + self.n_extra)
        if self.by.temperature:
            self._draw(row, number)
        self._made[row], self._most[row], self._ended[row] = 0, n_new, False
        self.numbers[row], self.left[row] = number, n_new - 1
        self._choose(slice(row, row + 1), logits)

    def fits(self, prompt: Sequence[int], n_new: int) -> bool:
        """Whether there is room now for a text, in an empty row.

        Raises:
            PeakwardError: there never is; or the prompt is empty or has a token that the model does not know.
        """
        self.cache.expect_prompt(prompt)
        return self.cache.fits(prompt, n_new + self.n_extra)

    def prepare(self, shortest: int, longest: int) -> None:
        """Captures the steps that make texts of such lengths, where they are replayed from graphs."""
        if self._captured:
            lengths = range(shortest, longest + 1)
            for each in sorted({self._span(n) for n in lengths}):
                self._graph(each)

    def run(self, n: int) -> None:
        """Makes n more tokens of every row that has not ended; n is at most what the longest needs."""
        for _ in range(n):
            longest = max(self.cache.lengths) + 1
            if self._captured:
                self._graph(self._span(longest)).replay()
            elif self.device.type == "cuda":
                # cuDNN's attention makes a plan for each number of slots, in 50 ms and more.
                self._step(self._span(longest))
            else:
                self._step(longest + self.n_extra)
            for row, left in enumerate(self.left):
                if left:
                    self.left[row] -= 1
                    self.cache.lengths[row] += 1
            self.n_steps += 1

    def text(self, row: int) -> Tensor:
        """The tokens that a row has made by then, and behind them their number, on the device."""
        return torch.cat((self._out[row], self._made[row : row + 1]))

    def release(self, row: int) -> None:
        """Ends a row's text and empties the row."""
        self._ended[row] = True
        self.numbers[row], self.left[row] = None, 0
        self.cache.release(row)

    def ended(self) -> "Ended":
        """Asks which texts have ended by now."""
        return Ended(self.numbers, self._ended)

    def _span(self, longest: int) -> int:
        return self.cache.span(longest + self.n_extra, 1 + self.n_extra)

    def _draw(self, row: int, number: int) -> None:
        """Sends the text's draws."""
        draws = drawn(self.by.seed, number, self._draws.shape[1])
        self._draws[row] = sent(draws.tolist(), torch.float64, self.cache.device)

    def _step(self, longest: int) -> None:
        logits = self.cache.advance(self.model, self._ids, ~self._ended, longest)
        self._choose(slice(0, len(self.left)), logits)

    def _choose(self, rows: slice, logits: Tensor) -> None:
        """Chooses the next token of these rows. A row that has ended writes behind its text, and stays."""
        # Views, changed in place: each operator is a kernel more behind a step that may take 250 µs.
        made, ended, at = self._made[rows], self._ended[rows], self._made[rows, None]
        draws = self._draws[rows].gather(1, at)[:, 0] if self.by.temperature else None
        token = chosen(logits, self.by, draws)
        self._out[rows].scatter_(1, at, token[:, None])
        self._ids[rows] = token[:, None]
        made += ~ended
        ended |= made >= self._most[rows]
        if len(self._ends):
            ended |= (token[:, None] == self._ends).any(-1)

    def _graph(self, span: int) -> torch.cuda.CUDAGraph:
        """The captured step. It is captured while every row counts as ended, so that no row goes on."""
        if span not in self._graphs:
            stream = torch.cuda.Stream(self.device)
            graph = torch.cuda.CUDAGraph()
            with self._all_ended():
                stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        self._step(span)
                torch.cuda.current_stream(self.device).wait_stream(stream)
                with torch.cuda.graph(graph, pool=self._pool):
                    self._step(span)
            self._graphs[span], self._pool = graph, graph.pool()
            self.n_captured += 1
        return self._graphs[span]

    @contextmanager
    def _all_ended(self) -> Iterator[None]:
        """While it lasts, every row counts as ended. The newest tokens are put back too: a row that has ended
        has no use for its own, and a step writes one."""
        kept = self._ended.clone(), self._ids.clone()
        self._ended.fill_(True)
        try:
            yield
        finally:
            self._ended.copy_(kept[0])
            self._ids.copy_(kept[1])


class Moment:
    """A moment of the device's work: on a GPU, when all that was asked for before is done."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is None:
            self._s = perf_counter()
        else:
            self._event.record()

    def wait(self) -> None:
        """Waits for it."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, other: "Moment") -> float:
        """Seconds from another one, when both are past."""
        if self._event is None or other._event is None:
            return self._s - other._s
        return other._event.elapsed_time(self._event) / 1e3


class Ended:
    """The texts that had ended when it was asked. A GPU answers when its work until then is done."""

    def __init__(self, numbers: Sequence[int | None], ended: Tensor) -> None:
        self._numbers = tuple(numbers)
        self._answer = torch.empty(ended.shape, dtype=torch.bool, pin_memory=ended.is_cuda)
        self._answer.copy_(ended, non_blocking=True)
        self.moment = Moment(ended.device)

    def texts(self) -> set[int]:
        """Their numbers, when the answer is there."""
        self.moment.wait()
        pairs = zip(self._numbers, self._answer.tolist(), strict=True)
        return {number for number, ended in pairs if ended and number is not None}


class Looks:
    """Looks at which texts have ended, one behind the device where that runs by itself.

    On a GPU a look waits for the one before it, while the steps between them are still to do: the device
    waits for nothing, and the host is never further ahead than two spans of steps.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._behind = 1 if decoding.device.type == "cuda" else 0
        self._asked: deque[Ended] = deque()

    @property
    def n_unanswered(self) -> int:
        """The looks for whose answer nobody has waited."""
        return len(self._asked)

    def next(self) -> tuple[set[int], Moment | None]:
        """The texts that are known to have ended, and the moment at which they had; None before there is
        an answer."""
        self._asked.append(self._decoding.ended())
        if len(self._asked) <= self._behind:
            return set(), None
        asked = self._asked.popleft()
        return asked.texts(), asked.moment
