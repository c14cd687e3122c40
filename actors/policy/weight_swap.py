"""Which of a model's tensors a set of new weights replaces.

Promise: either every tensor of the model has exactly one replacement of its own shape, or nothing is returned at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from actors.policy.engine_errors import EngineError


def matched_weights(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pair each of the model's tensors with its replacement; tied names count as one tensor.

    Raises EngineError naming what is missing, unexpected or mis-shaped.
    """
    state = model.state_dict()
    unexpected = sorted(set(tensors) - set(state))
    tied: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, target in state.items():
        tied.setdefault((target.data_ptr(), tuple(target.shape)), []).append(name)
    missing, misshaped, pairs = [], [], []
    for names in tied.values():
        given = [name for name in names if name in tensors]
        if not given:
            missing.append(names[0])
            continue
        target, source = state[given[0]], tensors[given[0]]
        if source.shape != target.shape:
            misshaped.append(f"{given[0]} is {list(source.shape)}, should be {list(target.shape)}")
        pairs.append((target, source))
    problems = {"missing": missing, "unexpected": unexpected, "mis-shaped": misshaped}
    if any(problems.values()):
        text = "; ".join(f"{kind}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
                         for kind, names in problems.items() if names)  # fmt: skip
        raise EngineError(f"weights do not fit {type(model).__name__}: {text}")
    return pairs
