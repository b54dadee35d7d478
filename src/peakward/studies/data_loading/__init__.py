"""Study `data-loading`: what it costs to feed a train step with real text, and when the loader holds it up.

Every step is timed on resident random tokens first, then fed by loaders of the same text: tokenised
once and cached, or on the fly; by the process itself or by workers; through pageable or pinned memory.
"""

from peakward.studies.data_loading import conclusions, tables
from peakward.studies.data_loading.grid import TURNS, plan, read, read_ranked, tokenizer
from peakward.studies.parts import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

TITLE = "When does loading text hold up a step?"
__all__ = ["TITLE", "gather", "parts", "plan"]


def gather(lab: Recorder, setting: Setting) -> None:
    """The grid, turn by turn."""
    lab.measure_all(plan(setting))


def parts(readings: Readings, setting: Setting) -> Parts:
    """Times of the steps, what feeding took of them, and what the numbers say."""
    cells, ranked = read(readings, setting), read_ranked(readings, setting)
    return Parts(
        tables=(
            tables.bases(cells),
            tables.steps(cells),
            tables.texts(cells),
            tables.samplers(ranked),
        ),
        plots=(tables.plot(cells),),
        conclusions=(
            *conclusions.waits(cells),
            *conclusions.rates(cells),
            *conclusions.workers(cells),
            *conclusions.copies(cells),
            *conclusions.best(cells),
            *conclusions.noise(cells),
            *conclusions.samplers(ranked),
        ),
        notes=(
            "The host waits until the loader hands over a step's batches. A GPU with earlier work in "
            "its queue need not wait with it: its idle time lies between two events around that wait. "
            "A CPU computes nothing meanwhile, so the host's wait is its own.",
            f"Fed and resident steps are measured in {TURNS} turns, every second one backwards; a ratio is "
            "that of the pairs, one a turn. Step times are means, for workers hand over batches in bursts. "
            "Their intervals are between turns; of one turn they are from the means of its ten stretches, "
            "which know nothing of what differs from process to process. Memory of the workers is not "
            "counted.",
            *_on_a_cpu(setting),
            *_without_byte_pairs(setting),
        ),
    )


def _on_a_cpu(setting: Setting) -> tuple[str, ...]:
    if setting.device != "cpu":
        return ()
    return ("Not run: pinned memory and copies that do not block, which only a GPU has.",)


def _without_byte_pairs(setting: Setting) -> tuple[str, ...]:
    if tokenizer(setting).name != "bytes" or setting.scope.tokenizer is not None:
        return ()
    return (
        "Tokens are bytes, which cost a loader next to nothing; for byte pairs: "
        "pip install 'peakward[data]'.",
    )
