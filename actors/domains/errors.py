"""What can go wrong with a task source: each error is one line that a user can act on."""

from __future__ import annotations


class SourceError(Exception):
    """A task source can not do what was asked."""


class UnknownSource(SourceError):
    """No source has this name."""


class BadSourceOption(SourceError):
    """A source has no such option, or not with this value."""


class ExhaustedDomain(SourceError):
    """A domain has fewer different problems than were asked for."""


class MissingPackage(SourceError):
    """A source needs a package that is not installed."""
