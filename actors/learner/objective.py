"""The policy objective: decoupled PPO with capped importance weights. Tensors in, loss and sums out.

Every function is pure and keeps the dtype of its inputs. A loss is divided by a count that the caller knows before
the backward pass (the trained tokens of the whole batch), so that a split into micro-batches changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from actors.learner.config import OverCap

LOG_RATIO_BOUND = 20.0
"""Log-ratios are bounded to plus or minus this before exp."""


@dataclass(frozen=True)
class ObjectiveSums:
    """Detached sums over trained tokens, scalars each; those of micro-batches add up to those of the batch."""

    tokens: Tensor
    entropy: Tensor
    weight: Tensor
    weight_squared: Tensor
    behaviour_kl: Tensor
    mismatch_kl: Tensor
    mismatch_tokens: Tensor
    clipped: Tensor
    over_cap: Tensor

    def __add__(self, other: ObjectiveSums) -> ObjectiveSums:
        return ObjectiveSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class ObjectiveMetrics:
    """Figures of one optimiser step over its trained tokens; shares in [0, 1], divergences and entropy in nats.

    ``mismatch_kl`` is the mean of r - log r - 1, r = theta/beh, over tokens that the current version sampled, None
    without any: what engine and trainer disagree about. ``behaviour_kl`` is the same over all tokens.
    ``effective_sample_size`` is (sum w)^2 / (n sum w^2), w = prox/beh before the cap.
    """

    entropy: float
    behaviour_kl: float
    mismatch_kl: float | None
    effective_sample_size: float
    clip_share: float
    over_cap_share: float

    @classmethod
    def of(cls, sums: ObjectiveSums) -> ObjectiveMetrics:
        """Return the means that ``sums`` give; ``sums.tokens`` must be positive."""
        values = torch.stack([getattr(sums, f.name).double() for f in fields(sums)]).tolist()
        n, entropy, weight, squared, behaviour, mismatch, n_mismatch, clipped, over_cap = values
        return cls(
            entropy=entropy / n,
            behaviour_kl=behaviour / n,
            mismatch_kl=mismatch / n_mismatch if n_mismatch else None,
            effective_sample_size=weight * weight / (n * squared) if squared else 0.0,
            clip_share=clipped / n,
            over_cap_share=over_cap / n,
        )


def log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the log of a probability ratio from two log-probs, bounded to +-20."""
    return (numerator - denominator).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return the PPO loss per token, and where a clip took its gradient (bool). All shapes are those of ``ratio``.

    -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (Schulman et al. 2017, eq. 7, the bounds apart as in DAPO);
    for A < 0 at most -``dual_clip`` A (Ye et al. 2020, eq. 5).
    """
    plain = -ratio * advantage
    bounded = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if dual_clip is not None:
        ceiling = -dual_clip * advantage
        above = (advantage < 0) & (loss > ceiling)
        loss = torch.where(above, ceiling, loss)
        clipped = clipped | above
    return loss, clipped


def importance_weight(
    prox: Tensor, behaviour: Tensor, cap: float | None, over_cap: OverCap
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weight to multiply by, the weight before the cap, and where it is over the cap; no gradient.

    w = prox/beh. Over the cap a token is masked (AReaL: weight 0, it stays in the denominator) or its weight
    truncated to the cap (Yao et al. 2025, TIS).
    """
    weight = log_ratio(prox.detach(), behaviour).exp()
    if cap is None:
        return weight, weight, torch.zeros_like(weight, dtype=torch.bool)
    over = weight > cap
    capped = torch.full_like(weight, 0.0 if over_cap == "mask" else cap)
    return torch.where(over, capped, weight), weight, over


@dataclass(frozen=True)
class DecoupledPpo:
    """Decoupled PPO (AReaL, Fu et al. 2025, eq. 5): capped prox/beh times the PPO loss on theta/prox."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    importance_cap: float | None
    over_cap: OverCap

    def token_losses(
        self, theta: Tensor, prox: Tensor, behaviour: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return per trained token, shape (r,): loss, weight before the cap, clipped, over the cap.

        ``theta`` carries the gradient; ``prox``, ``behaviour`` are log-probs and ``advantage`` the advantage of
        the same tokens.
        """
        ratio = log_ratio(theta, prox.detach()).exp()
        surrogate, clipped = clipped_surrogate(ratio, advantage, self.clip_low, self.clip_high, self.dual_clip)
        used, weight, over = importance_weight(prox, behaviour, self.importance_cap, self.over_cap)
        return used * surrogate, weight, clipped, over

    def loss(
        self,
        theta: Tensor,
        prox: Tensor,
        behaviour: Tensor,
        advantage: Tensor,
        *,
        denominator: float,
        entropy: Tensor | None = None,
        current: Tensor | None = None,
    ) -> tuple[Tensor, ObjectiveSums]:
        """Return this micro-batch's share of the batch's token-mean loss, and its sums.

        ``denominator`` is the number of trained tokens in the whole batch. ``entropy`` (r,) is only reported;
        ``current`` (r,) marks the tokens that the version being trained sampled (None: none is known to be).
        """
        losses, weight, clipped, over = self.token_losses(theta, prox, behaviour, advantage)
        with torch.no_grad():
            log_weight = log_ratio(prox, behaviour)
            divergence = torch.expm1(log_weight) - log_weight
            zero = torch.zeros((), dtype=theta.dtype, device=theta.device)
            sums = ObjectiveSums(
                tokens=zero + theta.numel(),
                entropy=zero if entropy is None else entropy.sum(),
                weight=weight.sum(),
                weight_squared=weight.square().sum(),
                behaviour_kl=divergence.sum(),
                mismatch_kl=zero if current is None else (divergence * current).sum(),
                mismatch_tokens=zero if current is None else current.sum(),
                clipped=clipped.sum(),
                over_cap=over.sum(),
            )
        return losses.sum() / denominator, sums
