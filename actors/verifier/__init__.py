"""The verifier actor."""
