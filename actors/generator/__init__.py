"""The generator actor."""
