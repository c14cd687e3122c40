"""The command line: ``busrl``. Bad input is one line on standard error and exit code 2; a failure of ours is 1."""

from runtime.cli.app import main

__all__ = ["main"]
