"""The exact names of every attribute that spans and metrics carry; no other file spells one out.

The OpenTelemetry conventions for messaging, generative AI and hardware are still in development, so busrl keeps its own
constants: a change of a convention is a change of this file. What is busrl's own lives under ``rl.``.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "busrl"
"""Name of the instrumentation scope of every span and instrument."""

# Resource
SERVICE_NAME: Final = "service.name"
SERVICE_NAMESPACE: Final = "service.namespace"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_VERSION: Final = "service.version"
HOST_NAME: Final = "host.name"
PROCESS_PID: Final = "process.pid"

# Errors
ERROR_TYPE: Final = "error.type"

# Messaging
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_SYSTEM_NATS: Final = "nats"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_DESTINATION_SUBSCRIPTION_NAME: Final = "messaging.destination.subscription.name"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"

OPERATION_PUBLISH: Final = "publish"
OPERATION_PROCESS: Final = "process"
OPERATION_ACK: Final = "ack"
OPERATION_FETCH: Final = "fetch"
TYPE_SEND: Final = "send"
TYPE_PROCESS: Final = "process"
TYPE_RECEIVE: Final = "receive"
TYPE_SETTLE: Final = "settle"

MESSAGING_CLIENT_OPERATION_DURATION: Final = "messaging.client.operation.duration"
MESSAGING_CLIENT_SENT_MESSAGES: Final = "messaging.client.sent.messages"
MESSAGING_CLIENT_CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
MESSAGING_PROCESS_DURATION: Final = "messaging.process.duration"

# Generative AI
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_OPERATION_GENERATE: Final = "text_completion"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
GEN_AI_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"

# Our own: on spans
RL_RUN: Final = "rl.run"
RL_TASK_ID: Final = "rl.task.id"
RL_GROUP_ID: Final = "rl.group.id"
RL_ROLLOUT_ID: Final = "rl.rollout.id"
RL_BATCH_ID: Final = "rl.batch.id"
RL_POLICY_VERSION: Final = "rl.policy.version"
RL_POLICY_VERSION_OLDEST: Final = "rl.policy.version.oldest"
RL_POLICY_VERSION_NEWEST: Final = "rl.policy.version.newest"
RL_POLICY_EPOCH: Final = "rl.policy.epoch"
RL_POLICY_LAG: Final = "rl.policy.lag"
RL_STEP: Final = "rl.step"
RL_REWARD_MEAN: Final = "rl.reward.mean"
RL_PASS_RATE_MEAN: Final = "rl.pass_rate.mean"
RL_DELIVERIES: Final = "rl.deliveries"

# Our own: on spans and, being of few values, on metrics
RL_DOMAIN: Final = "rl.domain"
RL_ACTOR: Final = "rl.actor"
RL_TOPIC: Final = "rl.topic"
RL_REASON: Final = "rl.reason"
RL_STATUS: Final = "rl.status"
RL_TOKEN_TYPE: Final = "rl.token.type"
RL_DECODING: Final = "rl.decoding"
RL_VERIFIER: Final = "rl.verifier"
RL_SOURCE: Final = "rl.source"
RL_OBJECTIVE: Final = "rl.objective"

IDS: Final = frozenset(
    {
        MESSAGING_MESSAGE_ID,
        MESSAGING_DESTINATION_NAME,
        RL_TASK_ID,
        RL_GROUP_ID,
        RL_ROLLOUT_ID,
        RL_BATCH_ID,
    }
)
"""Attributes without a bound on their values: they belong on spans, never on a metric."""
