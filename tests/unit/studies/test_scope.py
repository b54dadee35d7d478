"""The grids by scope, and the user's overrides."""

from peakward.models.presets import model, validate
from peakward.prediction.parameters import n_parameters
from peakward.studies.scope import Scope, default_scope, grid, micro


def test_corners_are_the_extremes_of_the_full_grid():
    corners, full = grid(Scope("corners")), grid(Scope("full"))
    assert corners.models == (full.models[0], full.models[-1])
    assert corners.seq_lens == (full.seq_lens[0], full.seq_lens[-1])
    assert corners.batch_size == full.batch_size == 4


def test_overrides_replace_and_the_rest_stays():
    own = grid(Scope("full", models=(model("tiny"),), batch_size=3))
    assert (own.models, own.batch_size) == ((model("tiny"),), 3)
    assert own.seq_lens == grid(Scope("full")).seq_lens


def test_a_cpu_takes_the_small_grid_and_a_gpu_the_corners():
    assert default_scope("cpu") == Scope("small")
    assert default_scope("cuda") == Scope("corners")


def test_micro_is_a_model_smaller_than_tiny():
    validate(micro())
    assert n_parameters(micro()) < n_parameters(model("tiny"))
