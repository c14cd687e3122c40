"""The optimisers of RL and SFT over a policy's parameters, with one shape of state whichever they are.

AdamW everywhere, or Muon on the matrices inside the layers with AdamW on embeddings, head and norms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from actors.policy.model import Policy


class PolicyOptimizer:
    """One or two torch optimisers that step together under one learning rate.

    State is exchanged as named tensors and plain numbers, so that it is saved without pickle.
    """

    def __init__(self, parts: dict[str, torch.optim.Optimizer], names: dict[Parameter, str]) -> None:
        self._parts = parts
        self._names = names
        self.parameters = list(names)

    def step(self, lr: float) -> None:
        """Apply the accumulated gradients at rate ``lr``."""
        for part in self._parts.values():
            for group in part.param_groups:
                group["lr"] = lr
            part.step()

    def zero_grad(self) -> None:
        """Forget the accumulated gradients."""
        for part in self._parts.values():
            part.zero_grad(set_to_none=True)

    def clip(self, limit: float | None) -> float:
        """Scale gradients down to a global 2-norm of ``limit`` (None: leave them). Return the norm before that."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, float("inf") if limit is None else limit)
        return float(norm)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors named ``part/key/parameter``. They share memory with the optimiser."""
        tensors = {}
        for part_name, part in self._parts.items():
            for parameter, name in self._names.items():
                for key, value in part.state.get(parameter, {}).items():
                    tensors[f"{part_name}/{key}/{name}"] = torch.as_tensor(value)
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take the state that :meth:`state_tensors` gave.

        Raises:
            ValueError: a tensor belongs to a parameter or an optimiser that is not here.
        """
        by_name = {name: parameter for parameter, name in self._names.items()}
        collected: dict[str, dict[Parameter, dict[str, Tensor]]] = {name: {} for name in self._parts}
        for full_name, tensor in tensors.items():
            part_name, key, name = full_name.split("/", 2)
            if part_name not in collected or name not in by_name:
                raise ValueError(f"optimiser state {full_name} fits no parameter of this policy and optimiser")
            collected[part_name].setdefault(by_name[name], {})[key] = tensor
        for part_name, part in self._parts.items():
            order = [parameter for group in part.param_groups for parameter in group["params"]]
            state = {
                i: collected[part_name][parameter]
                for i, parameter in enumerate(order)
                if parameter in collected[part_name]
            }
            part.load_state_dict({"state": state, "param_groups": part.state_dict()["param_groups"]})


def adamw(policy: Policy, weight_decay: float, betas: tuple[float, float]) -> PolicyOptimizer:
    """AdamW on every parameter; weight decay on matrices only."""
    names = _names(policy)
    return PolicyOptimizer({"adamw": _adamw(names, weight_decay, betas)}, names)


def muon_with_adamw(policy: Policy, weight_decay: float, betas: tuple[float, float]) -> PolicyOptimizer:
    """Muon (Jordan et al. 2024), its update scaled to AdamW's size, on the layers' matrices; AdamW on the rest."""
    names = _names(policy)
    outer = {id(policy.model.get_input_embeddings().weight)}
    head = policy.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    outer |= {id(head.weight)} if head is not None else set()
    matrices = [p for p in names if p.ndim == 2 and id(p) not in outer]
    if not matrices:
        return adamw(policy, weight_decay, betas)
    inner = set(matrices)
    rest = [p for p in names if p not in inner]
    muon = torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return PolicyOptimizer({"muon": muon, "adamw": _adamw(rest, weight_decay, betas)}, names)


def _names(policy: Policy) -> dict[Parameter, str]:
    return {parameter: name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}


def _adamw(parameters: Iterable[Parameter], weight_decay: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=betas, fused=True)
