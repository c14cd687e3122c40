"""The evaluator actor."""
