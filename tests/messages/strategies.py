"""Hypothesis strategies for every record that travels."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.strategies import SearchStrategy

from messages import (
    ActorState,
    Alert,
    Batch,
    ChatMessage,
    Control,
    DeadLetter,
    DeadReason,
    DomainStep,
    DropReason,
    Evaluation,
    Experience,
    FinishReason,
    Heartbeat,
    Outcome,
    OutcomeStatus,
    Record,
    Rollout,
    Sampling,
    Snapshot,
    Step,
    Task,
    Turn,
    Verdict,
    VerdictStatus,
    VerifierSpec,
    WeightManifest,
    WeightSource,
)

names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,15}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
counts = st.integers(0, 2**40)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 2e9)
shares = st.floats(0, 1)
optional_share = st.none() | shares
numbers = st.dictionaries(texts, finite, max_size=3)
json_values: SearchStrategy = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_maps = st.dictionaries(texts, json_values, max_size=3)

chats = st.builds(ChatMessage, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=texts)
conversations = st.lists(chats, min_size=1, max_size=3).map(tuple)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 2**31),
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=counts,
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
)
verifiers = st.builds(VerifierSpec, kind=st.text("abc_", min_size=1, max_size=8), options=json_maps)

tasks = st.builds(
    Task, id=ids, domain=names, messages=conversations, verifier=verifiers, answer=st.none() | texts, level=counts,
    split=st.sampled_from(["train", "eval"]), max_tokens=st.none() | st.integers(1, 2**31), metadata=json_maps,
)  # fmt: skip
turns = st.builds(
    Turn, id=ids, group_id=ids, task_id=ids, task_seq=st.integers(1, 2**62), domain=names, level=counts,
    messages=conversations, n=st.integers(1, 4096), sampling=samplings,
    deadline_s=st.none() | st.floats(0.001, 1e6), admitted_version=counts,
)  # fmt: skip


@st.composite
def _rollouts(draw: st.DrawFn) -> Rollout:
    n_tokens = draw(st.integers(0, 20))
    n = draw(st.integers(1, 8))

    def tokens(size: int) -> SearchStrategy:
        return hnp.arrays(np.int32, size, elements=st.integers(0, 2**31 - 1))

    return Rollout(
        id=draw(ids), group_id=draw(ids), task_id=draw(ids), task_seq=draw(st.integers(1, 2**62)), domain=draw(names),
        level=draw(counts), index=draw(st.integers(0, n - 1)), n=n, prompt_ids=draw(tokens(draw(st.integers(0, 5)))),
        token_ids=draw(tokens(n_tokens)),
        logprobs=draw(hnp.arrays(np.float32, n_tokens, elements=st.floats(-100, 0, width=32))),
        loss_mask=draw(hnp.arrays(np.uint8, n_tokens, elements=st.integers(0, 1))),
        versions=draw(tokens(n_tokens)), epoch=draw(counts), temperature=draw(st.floats(0, 10)),
        finish_reason=draw(st.sampled_from(FinishReason)), response=draw(texts), generator=draw(texts),
        started_s=draw(seconds), finished_s=draw(seconds),
    )  # fmt: skip


rollouts = _rollouts()


@st.composite
def _verdicts(draw: st.DrawFn) -> Verdict:
    status = draw(st.sampled_from(VerdictStatus))
    ours = status is VerdictStatus.INFRASTRUCTURE_ERROR
    return Verdict(
        rollout=draw(rollouts), status=status, pass_rate=None if ours else draw(shares),
        scores={} if ours else draw(numbers), log=draw(texts), seconds=draw(seconds),
    )  # fmt: skip


verdicts = _verdicts()
experiences = st.builds(
    Experience, rollout=rollouts, reward=finite, rewards=numbers, advantage=finite, pass_rate=shares
)
batches = st.builds(
    Batch, id=ids, number=st.integers(1, 2**40), version=counts,
    experiences=st.lists(experiences, min_size=1, max_size=2).map(tuple),
    traceparents=st.lists(texts, max_size=2).map(tuple),
)  # fmt: skip
domain_steps = st.builds(DomainStep, n_samples=counts, n_tokens=counts, reward_mean=finite, pass_rate_mean=shares)
steps = st.builds(
    Step, epoch=counts, version=counts, batch_id=ids, batch_number=counts, stepped=st.booleans(), reason=texts,
    group_ids=st.lists(ids, max_size=2).map(tuple), n_samples=counts, n_tokens=counts, lag_mean=finite, lag_max=counts,
    metrics=numbers, domains=st.dictionaries(names, domain_steps, max_size=2), busy_s=seconds, waiting_s=seconds,
    finished_s=seconds,
)  # fmt: skip


@st.composite
def _outcomes(draw: st.DrawFn) -> Outcome:
    status = draw(st.sampled_from(OutcomeStatus))
    dropped = status is OutcomeStatus.DROPPED
    return Outcome(
        group_id=draw(ids), task_id=draw(ids), domain=draw(names), level=draw(counts), status=status,
        reason=draw(st.sampled_from(DropReason)) if dropped else None, n_samples=draw(counts), n_tokens=draw(counts),
        reward_mean=draw(st.none() | finite), pass_rate_mean=draw(optional_share), epoch=draw(counts),
        version=draw(counts), lag=draw(st.none() | counts), actor=draw(names),
    )  # fmt: skip


outcomes = _outcomes()
evaluations = st.builds(
    Evaluation, epoch=counts, version=counts, domain=names, n_tasks=counts, n_errors=counts, samples_per_task=counts,
    sampled_accuracy=optional_share, greedy_accuracy=optional_share, full=st.booleans(), seconds=seconds,
    finished_s=seconds,
)  # fmt: skip
manifests = st.builds(
    WeightManifest, epoch=counts, version=counts, digest=st.from_regex(r"xxh3-128:[0-9a-f]{32}", fullmatch=True),
    size_bytes=st.integers(1, 2**50), batch_id=st.none() | ids, published_s=seconds,
    sources=st.lists(
        st.builds(WeightSource, kind=st.sampled_from(["file", "jetstream"]), host=texts, location=texts),
        min_size=1, max_size=2,
    ).map(tuple),
)  # fmt: skip
heartbeats = st.builds(
    Heartbeat, kind=names, instance=names, host=texts, pid=counts, state=st.sampled_from(ActorState), started_s=seconds,
    sent_s=seconds, in_flight=counts, loop_lag_s=seconds, rss_bytes=counts, counters=numbers, gauges=numbers,
)  # fmt: skip
alerts = st.builds(
    Alert, name=names, severity=st.sampled_from(["info", "warning", "critical"]), summary=texts, actor=texts,
    raised_s=seconds, labels=st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip
dead_letters = st.builds(
    DeadLetter, id=ids, topic=names, subject=texts, stream_seq=counts, actor=texts, reason=st.sampled_from(DeadReason),
    error=texts, traceback=texts, deliveries=counts, group_id=st.none() | ids,
    headers=st.dictionaries(texts, texts, max_size=2), payload=st.binary(max_size=30), died_s=seconds,
)  # fmt: skip
controls = st.builds(
    Control, command=st.sampled_from(["pause", "resume", "drain"]), kind=st.none() | names, sent_s=seconds
)
snapshots = st.builds(Snapshot, kind=names, saved_s=seconds, state=texts)

BY_SCHEMA: dict[str, SearchStrategy[Record]] = {
    "task": tasks,
    "turn": turns,
    "rollout": rollouts,
    "verdict": verdicts,
    "experience": experiences,
    "batch": batches,
    "step": steps,
    "outcome": outcomes,
    "evaluation": evaluations,
    "weight_manifest": manifests,
    "heartbeat": heartbeats,
    "alert": alerts,
    "dead_letter": dead_letters,
    "control": controls,
    "snapshot": snapshots,
}
