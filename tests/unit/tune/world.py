"""A world in which every lever's effect is known, and a search and a proof in it."""

import msgspec

from peakward.lab.measure.messages import TurnsTimed
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.lever import NumericsVerdict, Pair, Trial
from peakward.records.measurement import Interval
from peakward.records.model_shape import ModelShape
from peakward.tune.bench import Bench
from peakward.tune.costs import Costs
from peakward.tune.ledger import Budget, Ledger
from peakward.tune.outlook import Outlook
from peakward.tune.proof import Proof
from peakward.tune.search import Search
from peakward.tune.trials import failed_beside

SHAPE = ModelShape(
    name="t",
    vocab_size=100,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=128,
)
BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cuda")


class World:
    """Step times by a rule; every confirmation finds exactly them."""

    def __init__(
        self,
        time_s,
        *,
        runs=lambda case: True,
        numbers=lambda case: "holds",
        settles=lambda name, base: True,
        dies=lambda case: False,
        tells=lambda base, candidate: None,
        hopeless=lambda candidate: None,
        rates=lambda base, candidate: None,
    ):
        self.rates = rates
        self.without_hope = hopeless
        self.time_s, self.runs, self.numbers, self.tells = time_s, runs, numbers, tells
        self.settles, self.dies = settles, dies
        self.proofs = []
        """The cases of each."""
        self.now_s = 0.0

    def screen(self, pulled, base, candidate):
        if not self.runs(candidate):
            return self.trial(pulled.name, base, candidate, status="oom", verdict="rejected")
        if not self.runs(base):
            return self.trial(pulled.name, base, candidate)
        ratio = self.time_s(candidate) / self.time_s(base)
        pair = Pair(process=0, base_s=self.time_s(base), candidate_s=self.time_s(candidate))
        return self.trial(
            pulled.name,
            base,
            candidate,
            pairs=(pair,),
            time_ratio=Interval(estimate=ratio, low=ratio * 0.99, high=ratio * 1.01),
            verdict="rejected" if ratio * 0.99 > 0.99 else "inconclusive",
        )

    def check(self, claims):
        return tuple(map(self.verdict, claims))

    def on_text(self, claims, verdicts):
        return tuple(verdicts)

    def verdict(self, claim):
        found = self.numbers(claim.candidate)
        return NumericsVerdict(declared=claim.declared, verdict=found, reason="logits")

    def expected(self, base, candidate):
        return self.tells(base, candidate)

    def by_rates(self, base, candidate):
        return self.rates(base, candidate)

    def hopeless(self, base, candidate):
        return self.without_hope(candidate)

    def seen_s(self, case):
        return None

    def start_s(self):
        return None

    def n_prepared(self):
        return 0

    def confirm(self, cases, comparisons, *, affords_more):
        self.proofs.append([name_of(case) for case in cases])
        self.now_s += 3 * (1.0 + len(cases))
        dead = next((case for case in cases if self.dies(case)), None)
        if dead is not None:
            timed = TurnsTimed(status="crashed", reason="?")
            return tuple(failed_beside(each, "here", dead, timed) for each in comparisons)
        return tuple(self.confirmed_as(each, cases) for each in comparisons)

    def confirmed_as(self, comparison, cases):
        name, base, candidate, numerics = comparison
        assert {base, candidate} <= set(cases), "only what was timed is compared"
        assert all(map(self.runs, cases)), "only what runs is timed"
        ratio = self.time_s(candidate) / self.time_s(base)
        settled = self.settles(name, base)
        return self.trial(
            name,
            base,
            candidate,
            stage="confirmed",
            numerics=numerics,
            time_ratio=Interval(estimate=ratio, low=ratio / 2, high=ratio * (1 if settled else 2)),
            verdict=("kept" if ratio <= 0.99 else "rejected") if settled else "inconclusive",
        )

    @staticmethod
    def trial(name, base, candidate, *, stage="screened", verdict="inconclusive", **fields):
        return Trial(
            id=name,
            lever=name,
            base=base,
            candidate=candidate,
            environment_key="here",
            stage=stage,
            verdict=verdict,
            reason="",
            **fields,
        )


def name_of(case):
    """The settings that are not the defaults, in words."""
    plain, given = Configuration(), case.configuration
    changed = [
        field
        for field in Configuration.__struct_fields__
        if getattr(given, field) != getattr(plain, field)
    ]
    return " ".join(str(getattr(given, field)) for field in changed) or "base"


class Investigated:
    """What a search and a proof find in a world."""

    def __init__(
        self,
        world,
        *,
        total_s=1e9,
        reserve_s=0.0,
        obstacle=lambda pulled, case: None,
        seeks_memory=False,
        bounds=None,
        waits=None,
        compile_s=0.0,
    ):
        self.world = world
        self.ledger = Ledger(
            Budget(total_s, clock=lambda: world.now_s),
            reserve_s=reserve_s,
            announce=lambda stage: None,
        )
        # A case takes 1 s in its turn.
        costs = Costs(start_s=1.0, arm_s=1.0, compile_s=compile_s)
        bench = Bench(world, self.ledger, costs, obstacle, "here")
        self.search = Search(
            bench, Outlook(bench, bounds=bounds, waits=waits), seeks_memory=seeks_memory
        )
        self.proof = Proof(bench, base_runs=world.runs(BASE))

    def climb(self, base, levers):
        """All that the search finds, without a proof on the way."""
        base_runs = self.world.runs(base)
        stack = self.search.compose(base, levers, base_runs=base_runs)
        return self.search.go_on(stack, levers, base_runs=base_runs)

    def compose(self, base, levers):
        return self.proof.prove(self.climb(base, levers)).top

    @property
    def trials(self):
        return list(self.ledger.trials)

    @property
    def skipped(self):
        return self.ledger.skipped


def configured(**fields):
    return msgspec.structs.replace(BASE, configuration=Configuration(**fields))


def two_bottlenecks(case):
    """Matmuls hide the launches: graphs gain only once the matmuls are quick."""
    settings = case.configuration
    device_s = {"fp32": 10.0, "tf32": 5.0, "bf16": 2.0}[settings.precision]
    launches_s = 1.0 if settings.cuda_graphs else 4.0
    return max(device_s, launches_s)
