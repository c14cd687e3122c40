"""A file of lines that never grows past its bound: a run of weeks does not fill the disk.

At the bound the file becomes ``NAME.1`` and a new one begins, so between half and all of the newest lines are kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self


class BoundedFile:
    """Appends whole lines to ``path`` and keeps at most ``max_bytes`` in it and its predecessor together.

    A file that a killed process left with half a line is continued on a new line, so that one torn line is all that is
    lost. Not safe for several writers: one process, one file.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        if max_bytes < 2:
            raise ValueError(f"max_bytes is {max_bytes}, expected at least 2")
        self.path = path
        self._half = max_bytes // 2
        self._file: BinaryIO | None = None
        self._size = 0

    @property
    def previous(self) -> Path:
        """Where the lines before the last turn of the file are."""
        return self.path.with_name(self.path.name + ".1")

    def append(self, line: bytes) -> None:
        """Append one line (without its end) and hand it to the operating system.

        Raises:
            OSError: the folder can not be written or the disk is full.
        """
        if self._file is None:
            self._open()
        if self._size and self._size + len(line) + 1 > self._half:
            self._turn()
        assert self._file is not None
        self._file.write(line + b"\n")
        self._size += len(line) + 1

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        self._size = self._file.tell()
        if self._size and not self._ends_with_newline():
            self._file.write(b"\n")
            self._size += 1

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _turn(self) -> None:
        self.close()
        self.path.replace(self.previous)
        self._open()
