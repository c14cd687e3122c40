"""The reward actor."""
