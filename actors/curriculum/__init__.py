"""The curriculum actor."""
