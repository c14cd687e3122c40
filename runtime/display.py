"""Where people see a run: a live board on a terminal, structured log lines when there is none."""

from __future__ import annotations

import time
from pathlib import Path

import structlog
from rich.console import Console
from rich.live import Live

from runtime.board import View, board, log_fields
from runtime.facts import Facts
from runtime.runfolder import RunFolder

LINE_EVERY_S = 5.0

log = structlog.get_logger()


class Display:
    """What ``busrl up`` shows.

    Args:
        console: the terminal, or what stands in its place.
        live: draw the board; None asks whether the console is a terminal.
    """

    def __init__(self, console: Console | None = None, *, live: bool | None = None) -> None:
        self.console = console or Console()
        self.live = self.console.is_terminal if live is None else live
        self._live: Live | None = None
        self._line_at_s = float("-inf")

    def update(self, facts: Facts, view: View) -> None:
        """Show how the run is now."""
        if self.live:
            drawn = board(facts, view, self.console.width, self.console.height)
            if self._live is None:
                self._live = Live(drawn, console=self.console, auto_refresh=False, vertical_overflow="crop")
                self._live.start()
            self._live.update(drawn, refresh=True)
        elif time.monotonic() - self._line_at_s >= LINE_EVERY_S:
            self._line_at_s = time.monotonic()
            log.info("progress", **log_fields(facts, view))

    def close(self, facts: Facts, view: View) -> None:
        """Show the last state and leave the terminal as it was."""
        if self._live is not None:
            self.update(facts, view)
            self._live.stop()
            self._live = None
        elif not self.live:
            log.info("progress", **log_fields(facts, view))

    def warn(self, text: str) -> None:
        """A line that is not to be missed."""
        self.console.print(f"warning: {text}", style="yellow", markup=False, highlight=False)

    def last_words(self, folder: RunFolder, run_file: Path, headline: str, because: str, code: int) -> None:
        """What came of the run, why it ended, and where everything is."""
        ended = "ended" if code == 0 else "FAILED"
        lines = [f"run {folder.name} {ended}: {because}", *([headline] if headline else [])]
        places = {
            "report": folder.path / "report.md",
            "curves": folder.path / "report.png",
            "summary": folder.summary,
            "checkpoints": folder.checkpoints,
            "history": folder.history,
            "logs": folder.logs,
        }
        lines += [f"  {name:<12}{place}" for name, place in places.items() if place.exists()]
        lines.append(f"  {'continue':<12}busrl up {run_file} --name {folder.name}")
        if any(folder.checkpoints.iterdir()):
            lines.append(f"  {'take it out':<12}busrl export {folder.name} --to FOLDER")
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
