"""What the times of a ladder's rungs say of it."""

from typing import NamedTuple

from peakward.records.trial import Trial
from peakward.tune.ladder import Ladder


class Climb(NamedTuple):
    """A ladder timed once, and what came of it."""

    ladder: Ladder
    rungs: tuple[Trial, ...]
    """Of each rung that was timed, against the one below it."""
    wholes: tuple[Trial, ...]
    """Of the second of them and each above it, against the lowest case timed."""

    @property
    def n_untimed(self) -> int:
        """1 where the base does not run: what made it run is kept for that."""
        return len(self.ladder.levers) - len(self.rungs)

    @property
    def held(self) -> Ladder:
        """Up to the highest rung that was confirmed, as was the whole up to there; nothing stands on
        a rung that was rejected or failed."""
        n_sound = next((i for i, each in enumerate(self.rungs) if _fell(each)), len(self.rungs))
        proved = [trial.verdict == "kept" for trial in (*self.rungs[:1], *self.wholes)]
        held = [i for i in range(n_sound) if proved[i] and self.rungs[i].verdict == "kept"]
        return self.ladder.first(self.n_untimed + (held[-1] + 1 if held else 0))

    @property
    def ratio(self) -> float:
        """Of the held ladder over the lowest case, of what is sought; 1 where none was timed."""
        n_timed = len(self.held.levers) - self.n_untimed
        whole = (*self.rungs[:1], *self.wholes)[n_timed - 1] if n_timed else None
        return whole.ratio.estimate if whole and whole.ratio else 1.0

    @property
    def mended(self) -> Ladder:
        """The rungs that did not hold at the top, once; without those that failed to run."""
        timed = tuple(zip(self.ladder.levers[self.n_untimed :], self.rungs, strict=True))
        failed = {lever.name for lever, trial in timed if trial.status != "ok"}
        fallen = [
            lever for lever, trial in timed if trial.status == "ok" and trial.verdict != "kept"
        ]
        left = self.ladder.without({*failed, *(lever.name for lever in fallen)})
        mended = left
        for lever in fallen:
            mended = mended.on_top(lever)
        return left if mended.levers == self.ladder.levers else mended


def _fell(trial: Trial) -> bool:
    return trial.verdict == "rejected" or trial.time_ratio is None
