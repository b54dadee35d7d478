"""AdamW as a torch optimiser over this room's Triton kernels, fit for a CUDA graph."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from peakward.kernels.ops.adamw import stored
from peakward.kernels.ops.launchable import FLOATS, require_launchable

OP = "TritonAdamW"
States = Literal["as parameters", "bf16", "8bit"]
MOST_SEEDS = 2**63
MOMENTS = {"exp_avg": stored.FIRST, "exp_avg_sq": stored.SECOND}
_CODES, _EXPONENTS = "_codes", "_exponents"
"""The endings of 8-bit states' names: no other optimiser takes one for a moment itself."""
MATHS = {"amsgrad": False, "maximize": False, "decoupled_weight_decay": True}
"""Settings of torch's, each with the one value that the kernels compute."""


class TritonAdamW(torch.optim.Optimizer):
    """An optimiser with torch.optim.AdamW's maths and state, one launch a tensor, and step counts on
    the device.

    Parameters with equal numbers of updates share a count. Over fp32 parameters the moments can be kept in
    bf16 or in 8 bits, rounded at random without bias.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        states: States = "as parameters",
        seed: int = 0,
    ) -> None:
        """
        Args:
            params: parameters or groups of them, each contiguous in fp32, fp16 or bf16, all of a group on
                one GPU.
            states: the type of both moments: the parameters' own, "bf16" (4 bytes a parameter), or "8bit"
                (2, and one of 128 for exponents of blocks of 256). The last two take fp32 parameters.
            seed: of the random bits that round these; below 2⁶³. Equal seeds, parameters and gradients
                give equal steps, on every rank of a job too.

        Raises:
            ValueError: a parameter that the kernel cannot take, no CUDA device, unknown states, or a seed
                out of range.
        """
        if states not in get_args(States):
            raise ValueError(f"{OP}: expected states {get_args(States)}, got {states!r}")
        if not 0 <= seed < MOST_SEEDS:
            raise ValueError(f"{OP}: expected a seed from 0 to 2**63 - 1, got {seed}")
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "states": states, "seed": seed})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's.

        Raises:
            ValueError: as when made, or a group with amsgrad or maximize, or without decoupled_weight_decay.
        """
        _require_maths(param_group, "a group")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        parameters, states = group["params"], group["states"]
        for name in ("states", "seed"):
            if group[name] != self.defaults[name]:
                raise ValueError(
                    f"{OP}: expected {name} of the optimiser, {self.defaults[name]!r}, in every group, got "
                    f"{group[name]!r}: make another optimiser for these parameters"
                )
        for each in parameters:
            if each.dtype not in FLOATS or not each.is_contiguous():
                raise ValueError(
                    f"{OP}: expected contiguous parameters in float32, float16 or bfloat16, got "
                    f"{each.dtype} with strides {each.stride()}"
                )
            if states != "as parameters" and each.dtype != torch.float32:
                raise ValueError(
                    f"{OP}: expected parameters in float32 for states in {states}, got {each.dtype}: leave "
                    "states as parameters"
                )
        if parameters:
            require_launchable(OP, *parameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        n_before = 0
        for group in self.param_groups:
            self._update(group, n_before)
            n_before += len(group["params"])
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with a count of each parameter's own: torch.optim.AdamW adds to it in place."""
        found = super().state_dict()
        states = {
            number: {**state, "step": state["step"].clone()} if state else state
            for number, state in found["state"].items()
        }
        return {**found, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, of torch.optim.AdamW too; counts come to their parameters' device.

        Moments in another type than this optimiser's are rounded to it, to nearest. The seed is the one
        that was stored.

        Raises:
            ValueError: the state of an AdamW with amsgrad or maximize, which this has not, of an Adam that is
                not decoupled from its weight decay, of another optimiser, or of parameters of other shapes.
        """
        for group in state_dict["param_groups"]:
            _require_maths(group, "the state of an AdamW")
        for mine, given in zip(self.param_groups, state_dict["param_groups"], strict=False):
            for each, number in zip(mine["params"], given["params"], strict=False):
                if state := state_dict["state"].get(number):
                    _require_moments(state, each.shape)
        # torch would cast every tensor of a state to its parameter's type.
        super().load_state_dict({**state_dict, "state": {}})
        for group, given in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group["states"] = self.defaults["states"]
            group["lr"] = float(
                group["lr"]
            )  # A kernel takes no tensor; torch's capturable has one.
            self.defaults["seed"] = group.setdefault("seed", self.defaults["seed"])
            shared: dict[float, Tensor] = {}
            for each, number in zip(group["params"], given["params"], strict=True):
                if state := state_dict["state"].get(number):
                    count = float(state["step"])
                    if count not in shared:
                        shared[count] = torch.tensor(count, device=each.device)
                    self.state[each] = {"step": shared[count], **self._kept(each, state)}

    def _kept(self, parameter: nn.Parameter, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The moments of a state of this optimiser or another AdamW's, as this one keeps them."""
        kept = {}
        for name, code in MOMENTS.items():
            codes, exponents = name + _CODES, name + _EXPONENTS
            if self.defaults["states"] == "8bit" and codes in state:
                for part in (codes, exponents):
                    kept[part] = state[part].to(parameter.device)
                continue
            moment = state.get(name)
            if moment is None:
                moment = stored.decode(state[codes].flatten(), state[exponents], code)
            if self.defaults["states"] == "8bit":
                flat = moment.float().flatten()
                half = torch.full_like(flat, 1 << 15, dtype=torch.int64)
                found = stored.encode(flat, half, code)
                kept[codes] = found[0].view(parameter.shape).to(parameter.device)
                kept[exponents] = found[1].to(parameter.device)
            else:
                moment = moment.view(parameter.shape)
                kept[name] = moment.to(parameter.device, self._dtype(parameter))
        return kept

    def _dtype(self, parameter: nn.Parameter) -> torch.dtype:
        return torch.bfloat16 if self.defaults["states"] == "bf16" else parameter.dtype

    def _update(self, group: dict[str, Any], n_before: int) -> None:
        """Updates a group's parameters, of which the first has the number `n_before`."""
        from peakward.kernels.ops.adamw.triton import scales

        numbers = {id(each): n for n, each in enumerate(group["params"], n_before)}
        for step, chosen in self._by_count(group["params"]):
            with torch.cuda.device_of(step):
                shared = scales(step.add_(1), lr=group["lr"], betas=group["betas"])
                for each in chosen:
                    self._update_one(each, group, shared, step, numbers[id(each)])

    def _update_one(
        self,
        parameter: nn.Parameter,
        group: dict[str, Any],
        shared: Tensor,
        step: Tensor,
        number: int,
    ) -> None:
        from peakward.kernels.ops.adamw.triton import update, update_8bit, update_bf16

        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        if group["states"] != "as parameters" and parameter.dtype != torch.float32:
            raise ValueError(
                f"{OP}: expected parameters in float32 for states in {group['states']}, got "
                f"{parameter.dtype}: they were cast since the optimiser was made"
            )
        gradient = parameter.grad.contiguous()  # type: ignore[union-attr]
        state = self.state[parameter]
        random: dict[str, Any] = {"seed": group["seed"], "number": number}
        if group["states"] == "8bit":
            first, second = ((state[name + _CODES], state[name + _EXPONENTS]) for name in MOMENTS)
            update_8bit(parameter, gradient, first, second, shared, step, **random, **settings)
            return
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if group["states"] == "bf16":
            update_bf16(parameter, gradient, first, second, shared, step, **random, **settings)
        else:
            update(parameter, gradient, first, second, shared, **settings)

    def _by_count(self, parameters: list[nn.Parameter]) -> list[tuple[Tensor, list[nn.Parameter]]]:
        """The parameters with a gradient, by the count that they share; makes missing states.

        A count that parameters without a gradient share too is copied for those that have one.
        """
        chosen = [each for each in parameters if each.grad is not None]
        waiting = {
            id(self.state[each]["step"])
            for each in parameters
            if each.grad is None and self.state.get(each)
        }
        self._start([each for each in chosen if not self.state.get(each)])
        copies: dict[int, Tensor] = {}
        found: dict[int, tuple[Tensor, list[nn.Parameter]]] = {}
        for each in chosen:
            step = self.state[each]["step"]
            if id(step) in waiting:
                if id(step) not in copies:
                    copies[id(step)] = step.clone()
                step = self.state[each]["step"] = copies[id(step)]
            found.setdefault(id(step), (step, []))[1].append(each)
        return list(found.values())

    def _start(self, parameters: list[nn.Parameter]) -> None:
        """Makes the states of these parameters, which share a count."""
        if not parameters:
            return
        step = torch.zeros((), device=parameters[0].device)
        for each in parameters:
            self.state[each] = {"step": step}
            for name in MOMENTS:
                if self.defaults["states"] == "8bit":
                    codes = torch.zeros_like(each, dtype=torch.uint8)
                    exponents = codes.new_zeros(stored.n_blocks(each.numel()))
                    self.state[each] |= {name + _CODES: codes, name + _EXPONENTS: exponents}
                else:
                    self.state[each][name] = torch.zeros_like(each, dtype=self._dtype(each))


def _require_maths(group: dict[str, Any], what: str) -> None:
    for name, value in MATHS.items():
        if bool(group.get(name, value)) != value:
            raise ValueError(
                f"{OP}: expected {what} with {name}={value}, got {not value}: take torch.optim.AdamW for it"
            )


def _require_moments(state: dict[str, Tensor], shape: torch.Size) -> None:
    """The kernels take a moment's size from its parameter: a smaller one would be written beyond its end."""
    for name in MOMENTS:
        moment = state.get(name, state.get(name + _CODES))
        if moment is None:
            raise ValueError(
                f"{OP}: expected the state of an AdamW with {name}, got one with {', '.join(state)}: make a "
                "new optimiser, or load the state of an AdamW"
            )
        if moment.shape != shape:
            raise ValueError(
                f"{OP}: expected {name} of shape {tuple(shape)}, as its parameter, got "
                f"{tuple(moment.shape)}: load the state of the same model, in the same order"
            )
