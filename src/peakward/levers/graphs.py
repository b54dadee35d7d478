"""What a step that CUDA graphs replay cannot be combined with."""

from peakward.records.case import ModelCase, ModuleCase


def graphs_obstacle(case: ModelCase | ModuleCase) -> str | None:
    """Why the case's step cannot be captured, or None."""
    configuration = case.configuration
    if not configuration.cuda_graphs:
        return None
    if configuration.compile in ("reduce-overhead", "max-autotune"):
        return (
            f"cuda-graphs and compile {configuration.compile}, which captures graphs of its own, "
            "exclude each other: use compile default"
        )
    if configuration.optimizer == "adamw-loop":
        # Its capturable form divides by the rate, so the set-up step of rate 0 gives 0/0.
        return (
            "cuda-graphs needs an optimiser that can be set up without a step, got adamw-loop: "
            "use adamw-foreach, adamw-fused or adamw-triton"
        )
    if configuration.precision == "fp16-mixed" and case.workload.trains:
        return (
            "cuda-graphs needs a step without decisions on the host, got fp16-mixed, whose loss "
            "scaling makes them: use bf16-mixed"
        )
    return None
