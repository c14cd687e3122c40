"""The replay actor."""
