"""What makes the compiler begin anew."""

import msgspec

from faults.lab import PROTOCOL, Lab
from faults.records import Fault, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload


def _lengths(lab: Lab, n: float) -> Seen:
    """Batches of so many further lengths, which the compiled block is made for one after another."""
    shape = msgspec.structs.replace(model("tiny"), name="tiny:L1", n_layers=1)
    longest = 128
    lengths = tuple(longest - 16 * i for i in range(int(n) + 1)) if n else ()
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=2, seq_len=longest, pass_="forward", varying_seq_lens=lengths),
        configuration=Configuration(attention="sdpa", compile="default"),
        device=lab.device,
    )
    protocol = msgspec.structs.replace(PROTOCOL, fresh_process=True, warmup_steps=8)
    # Steps of other lengths say nothing of what it cost to compile for them.
    seen = lab.case(case, profiled=False, protocol=protocol)
    return msgspec.structs.replace(seen, step_s=None)


# The compiler's report is of any device, and on a GPU three fresh processes take a minute and a half.
FAULTS = (Fault("HOST007", "batches of other lengths", "other lengths", (1, 3), _lengths, "cpu"),)
