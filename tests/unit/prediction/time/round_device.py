"""A device of round figures, and operators on it."""

from peakward.models.presets import model
from peakward.prediction.time.device_model import AttentionModel, DeviceModel, TrafficCurve
from peakward.prediction.time.products import Kernel, ProductModel
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import Operand, Operator

TB = 10**12
US = 1e-6
ONE_TILE = {
    kind: Kernel(tiles=((128, 128),), edge=0, prologue=0, item_bytes=item_bytes)
    for kind, item_bytes in {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}.items()
}


def device(**changes):
    """100 multiprocessors of 1 TFLOP/s each; 1 TB/s, for products 10; 2 µs a launch, 10 µs a call."""
    return DeviceModel(
        name="round",
        source="calibrated",
        compute_capability=(9, 0),
        n_sms=100,
        products={
            kind: ProductModel(ONE_TILE[kind], 100e12, 3 * US, 100, 10 * TB) for kind in ONE_TILE
        },
        attention={
            (kind, pass_): AttentionModel(1e-12, 0.0)
            for kind in ("bf16", "fp32")
            for pass_ in ("forward", "backward")
        },
        traffic=TrafficCurve((0, TB), (2 * US, 1 + 2 * US)),
        call_s=10 * US,
    )._replace(**changes)


def case(
    name="small", batch_size=4, seq_len=128, pass_="train_step", accumulate=1, **configuration
):
    return ModelCase(
        model=model(name) if isinstance(name, str) else name,
        workload=Workload(
            batch_size=batch_size, seq_len=seq_len, pass_=pass_, accumulate=accumulate
        ),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def tensor(*shape, dtype="float32", count=1):
    return Operand(shape=shape, dtype=dtype, count=count)


def operator(name, inputs, outputs, phase="forward", module=None, flops=0, count=1):
    """Its bytes are those of all operands, each once."""
    return Operator(
        name=f"aten.{name}",
        phase=phase,
        module=module,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        flops=flops,
        bytes_read=sum(each.n_bytes for each in inputs),
        bytes_written=sum(each.n_bytes for each in outputs),
        count=count,
    )
