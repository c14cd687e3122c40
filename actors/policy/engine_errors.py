"""What can go wrong in generation; every message names the request, the tensor or the model, and what would
be right.
"""


class EngineError(Exception):
    """The engine cannot do what was asked, or its numbers have become useless."""


class PromptTooLong(EngineError):
    """A prompt and its max_tokens do not fit into the context."""


class UnsupportedModel(EngineError):
    """The model has no attention cache that can be kept per sequence, or no fast path where one was demanded."""
