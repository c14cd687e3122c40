"""Names of the headers that messages travel with."""

from __future__ import annotations

MSG_ID = "Nats-Msg-Id"
SCHEMA = "Busrl-Schema"
GROUP = "Busrl-Group"
"""Group ids, comma-separated, so that a message that can not even be decoded still closes its groups in the ledger."""
CLAIM = "Busrl-Claim"
"""Reference to a payload that travels through the blobs stream: ``id;size_bytes;digest;n_chunks``."""
REPLAY = "Busrl-Replay"
"""How often a dead letter has been replayed."""
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
