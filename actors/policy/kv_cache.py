"""The keys and values of every running sequence, in one block per layer with one write column for all rows.

Promise: rows 0..n-1 are exactly the running sequences; row r owns the `lengths[r]` columns before `end`, all
rows write their next token into column `end`, and a column outside a row's own is masked. Hence a decode step
writes by slicing, attends over no more columns than the longest sequence has, and looks to any model like a
left-padded batch. Memory is `rows x columns` tokens and never grows on its own: only `reserve` allocates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from actors.policy.bands import Band, arrange

LayerKV = tuple[torch.Tensor, torch.Tensor]

# A band costs a few calls per layer; reading this many bytes of keys and values takes about as long.
BAND_BYTES = 1 << 18


class KVCache:
    """Per layer keys and values [rows, heads, columns, head size]; all rows end at the same column.

    n: rows in use. begin, end: the columns in use, end exclusive. lengths int64 [rows]: columns of each row.
    bands: which rows attend together; none after rows came or went, until `arrange`.
    """

    def __init__(self, band_bytes: int = BAND_BYTES) -> None:
        self._band_bytes = band_bytes
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.rows = 0
        self.columns = 0
        self.n = 0
        self.begin = 0
        self.end = 0
        self.lengths: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.bands: list[Band] = []
        self._steps = 0
        self._grain = 1
        self._valid = torch.zeros(0)
        self._bias = torch.zeros(0)

    @property
    def used(self) -> int:
        """Columns that the longest row occupies."""
        return self.end - self.begin

    @property
    def whole(self) -> Band:
        """All rows as one band."""
        return Band(0, self.n, self.used - self._steps)

    def reserve(self, rows: int, columns: int, like: Sequence[LayerKV]) -> None:
        """Reallocate to rows x columns tokens, keeping the running rows; `like` gives heads, sizes and dtype."""
        if rows < self.n or columns < self.used:
            raise ValueError(f"KV cache: {rows} x {columns} cannot hold {self.n} rows of {self.used} columns")
        begin, used, n = self.begin, self.used, self.n
        keys = [_grown(k, rows, columns) for k, _ in like]
        values = [_grown(v, rows, columns) for _, v in like]
        if n:
            for old, new in (*zip(self.keys, keys, strict=True), *zip(self.values, values, strict=True)):
                new[:n, :, :used] = old[:n, :, begin : begin + used]
        lengths = np.zeros(rows, np.int64)
        lengths[:n] = self.lengths[:n]
        self.keys, self.values, self.lengths = keys, values, lengths
        self._grain = self._band_bytes // sum(x[0, :, 0].nbytes for x in (keys[0], values[0])) + 1
        self.rows, self.columns, self.begin, self.end = rows, columns, 0, used
        self._valid = torch.ones(rows, columns, dtype=torch.bool, device=keys[0].device)
        self._bias = torch.zeros(rows, columns, dtype=keys[0].dtype, device=keys[0].device)
        self._remask()

    def make_column(self) -> None:
        """Make sure that column `end` exists, sliding everything to the front when the block is used up."""
        if self.end < self.columns:
            return
        if self.used >= self.columns:
            raise ValueError(f"KV cache: a row fills all {self.columns} columns; reserve more before it grows")
        self._slide(self.used)
        self._remask()

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write one token's [n, heads, size] at column `end`."""
        self.keys[layer][: self.n, :, self.end].copy_(keys)
        self.values[layer][: self.n, :, self.end].copy_(values)

    def read(self, layer: int, band: Band) -> LayerKV:
        """The keys and values that a band's next token attends over, column `end` included: [rows, heads, w, size]."""
        rows, columns = slice(band.start, band.stop), slice(self.begin_of(band), self.end + 1)
        return self.keys[layer][rows, :, columns], self.values[layer][rows, :, columns]

    def begin_of(self, band: Band) -> int:
        """First column of a band."""
        return self.end - band.width - self._steps

    def arrange(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Choose the bands for the rows as they are now; return the row moves made (sources, targets)."""
        bands, sources, targets = arrange(self.lengths[: self.n], self._grain)
        if len(sources):
            self._copy_rows(sources, targets)
            self._remask()
        self.bands, self._steps = bands, 0
        return sources, targets

    def advance(self) -> None:
        """Every layer has written column `end`: it now belongs to every row."""
        self.end += 1
        self._steps += 1
        self.lengths[: self.n] += 1

    def bias(self, band: Band) -> torch.Tensor:
        """What is added to the scores of a band's next token: 0 or -inf, [rows, w]."""
        return self._bias[band.start : band.stop, self.begin_of(band) : self.end + 1]

    def valid(self) -> torch.Tensor:
        """Which columns the next token sees, bool [n, begin..end]."""
        return self._valid[: self.n, self.begin : self.end + 1]

    def place(self, prompt: Sequence[LayerKV], source: torch.Tensor, lengths: npt.NDArray[np.int64]) -> None:
        """Add len(lengths) rows: row i copies row source[i] of the left-padded prompt KV [b, heads, columns,
        size].
        """
        first, n = self.n, self.n + len(lengths)
        width = int(lengths.max())
        if n > self.rows or max(width, self.used) > self.columns:
            raise ValueError(f"KV cache: {n} rows of {width} columns do not fit into {self.rows} x {self.columns}")
        if self.end < width:
            self._slide(width)
        span = slice(self.end - width, self.end)
        for layer, (keys, values) in enumerate(prompt):
            self.keys[layer][first:n, :, span] = keys[:, :, -width:].index_select(0, source)
            self.values[layer][first:n, :, span] = values[:, :, -width:].index_select(0, source)
        self.lengths[first:n] = lengths
        self.n, self.bands = n, []
        self._remask()

    def keep(self, sources: npt.NDArray[np.intp], targets: npt.NDArray[np.intp], n: int) -> None:
        """Copy row sources[i] over row targets[i], then drop the rows from n on."""
        if len(sources) and n:
            self._copy_rows(sources, targets)
        self.n, self.bands = n, []
        self._remask()

    def _copy_rows(self, sources: npt.NDArray[np.intp], targets: npt.NDArray[np.intp]) -> None:
        device = self._valid.device
        source = torch.from_numpy(sources).to(device, non_blocking=True)
        target = torch.from_numpy(targets).to(device, non_blocking=True)
        span = slice(self.end - int(self.lengths[sources].max()), self.end)
        for block in (*self.keys, *self.values):
            block[:, :, span].index_copy_(0, target, block[:, :, span].index_select(0, source))
        self.lengths[targets] = self.lengths[sources]

    def _slide(self, end: int) -> None:
        """Move all rows' columns so that they end at `end`."""
        begin, used, n = self.begin, self.used, self.n
        if n and end != self.end:
            for block in (*self.keys, *self.values):
                block[:n, :, end - used : end] = block[:n, :, begin : begin + used].clone()
        self.begin, self.end = end - used, end

    def _remask(self) -> None:
        """Recompute the first column in use and which columns lie before each row's own."""
        n = self.n
        self.begin = self.end - int(self.lengths[:n].max()) if n else self.end
        starts = torch.from_numpy(self.end - self.lengths[:n]).to(self._valid.device, non_blocking=True)
        column = torch.arange(self.columns, device=self._valid.device)
        torch.ge(column, starts[:, None], out=self._valid[:n])
        self._bias[:n] = 0
        self._bias[:n].masked_fill_(~self._valid[:n], -math.inf)


def _grown(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A zeroed block [rows, heads, columns, size]; zeroed because 0 x uninitialised memory may be NaN."""
    return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=like.dtype, device=like.device)
