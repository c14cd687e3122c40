"""What the trainer eats: one rollout with its advantage, checked so that nothing is guessed.

A trained token without a usable log-prob is an error that names the sample, never a 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from actors.policy.logprobs import ScoredSequence
from messages import Experience

LOGPROB_SLACK = 1e-4
"""A log-prob may exceed 0 by this much: float rounding of a certain token."""


class SampleError(ValueError):
    """A sample that can not be trained as it is; one line that names it."""


@dataclass(frozen=True)
class TrainSample:
    """A rollout of n sampled tokens after a prompt of p tokens.

    ``prompt_ids`` (p,) and ``token_ids`` (n,) are int32; ``loss_mask`` (n,) is 1 where a token is trained;
    ``logprobs`` (n,) are the behaviour policy's, natural, float32; ``advantage`` is one float for all tokens or
    (n,); ``versions`` (n,) are the weight versions that sampled each; ``temperature`` is the sampling temperature.
    """

    id: str
    prompt_ids: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.integer | np.bool_]
    logprobs: npt.NDArray[np.float32]
    advantage: float | npt.NDArray[np.floating]
    versions: npt.NDArray[np.int32]
    temperature: float = 1.0


@dataclass(frozen=True)
class TrainableSample:
    """A checked sample: its tokens to score, and per trained token (r,) what the objective needs."""

    sequence: ScoredSequence
    logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]

    @property
    def n_trained(self) -> int:
        """Number of trained tokens."""
        return int(self.logprobs.size)


def checked(sample: TrainSample, context_length: int, vocabulary_size: int) -> TrainableSample:
    """Return ``sample`` ready for training.

    Raises:
        SampleError: arrays of different lengths; a token id outside the vocabulary; a sample longer than the
            context; for a trained token a missing, non-finite or positive log-prob or a non-finite advantage.
    """
    n = int(sample.token_ids.size)
    for name in ("loss_mask", "logprobs", "versions"):
        found = getattr(sample, name).shape
        if found != (n,):
            raise SampleError(f"sample {sample.id}: {name} has shape {found}, token_ids has ({n},)")
    advantages = np.asarray(sample.advantage, dtype=np.float32)
    if advantages.shape not in ((), (n,)):
        raise SampleError(f"sample {sample.id}: advantage has shape {advantages.shape}, neither a number nor ({n},)")
    ids = np.concatenate((sample.prompt_ids, sample.token_ids)).astype(np.int32, copy=False)
    if ids.size > context_length:
        raise SampleError(f"sample {sample.id}: {ids.size} tokens, the policy's context is {context_length}")
    if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary_size):
        outside = ids[(ids < 0) | (ids >= vocabulary_size)][0]
        raise SampleError(f"sample {sample.id}: token id {outside} is outside the vocabulary of {vocabulary_size}")
    mask = sample.loss_mask.astype(np.bool_)
    if mask.any() and not sample.prompt_ids.size and mask[0]:
        raise SampleError(f"sample {sample.id}: nothing stands before its first trained token: give it a prompt")
    if mask.any() and not sample.temperature > 0:
        raise SampleError(f"sample {sample.id}: temperature {sample.temperature}, only above 0 can it be trained on")
    logprobs = sample.logprobs[mask]
    _check_values(sample.id, np.flatnonzero(mask), logprobs, np.broadcast_to(advantages, (n,))[mask])
    scored = np.concatenate((np.zeros(sample.prompt_ids.size, dtype=np.bool_), mask))
    return TrainableSample(
        sequence=ScoredSequence(ids, scored, sample.temperature if mask.any() else 1.0),
        logprobs=logprobs.astype(np.float32, copy=False),
        advantages=np.broadcast_to(advantages, (n,))[mask],
        versions=sample.versions[mask],
    )


def _check_values(
    sample_id: str,
    places: npt.NDArray[np.intp],
    logprobs: npt.NDArray[np.float32],
    advantages: npt.NDArray[np.float32],
) -> None:
    bad = ~np.isfinite(logprobs) | (logprobs > LOGPROB_SLACK)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise SampleError(
            f"sample {sample_id}: behaviour log-prob of token {places[first]} is {logprobs[first]}: "
            "it must be finite and at most 0, a missing one is never guessed"
        )
    if not np.isfinite(advantages).all():
        first = int(np.flatnonzero(~np.isfinite(advantages))[0])
        raise SampleError(f"sample {sample_id}: advantage of token {places[first]} is {advantages[first]}")


def total_trained(samples: Sequence[TrainableSample]) -> int:
    """Return the number of trained tokens of a batch: the denominator of its loss."""
    return sum(sample.n_trained for sample in samples)


def train_sample(experience: Experience) -> TrainSample:
    """What the trainer needs of an experience."""
    rollout = experience.rollout
    return TrainSample(
        id=rollout.id,
        prompt_ids=rollout.prompt_ids,
        token_ids=rollout.token_ids,
        loss_mask=rollout.loss_mask,
        logprobs=rollout.logprobs,
        advantage=experience.advantage,
        versions=rollout.versions,
        temperature=rollout.temperature,
    )
