"""Child processes never outlive the process that started them (on Linux; elsewhere they only stop in good order)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def dies_with_parent() -> Callable[[], None]:
    """What to run in a child between fork and exec, so that the kernel kills it when the calling process dies."""
    parent = os.getpid()

    def setup() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the parent died before prctl took hold

    return setup
