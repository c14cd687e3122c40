"""Sequences that begin alike are read once: a padded batch whose rows are trees of tokens instead of sequences.

Samples of one group repeat their prompt, often also the first tokens of the response. A row holds such sequences as
the preorder of their prefix tree: a token stands once however many sequences it serves, at the position it has in
each of them, and an attention mask shows it its ancestors and nothing else. Every log-prob and gradient is that of a
row per sequence up to float rounding. Tokens behind a sequence's last scored one are not read at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.policy.logprobs import PaddedBatch, ScoredSequence, micro_batches, pad, padding_allowance, scored_batch

MAX_TREE_TOKENS = 2048
"""Longest row that gets a mask, which is dense: its memory is this many elements per padded token."""

ATTENTION_TOKENS = 512
"""Row length whose dense attention costs as much as the rest of the layer; a causal kernel skips half of it."""

WORTHWHILE = 0.9
"""A sequence joins a row if that costs less than this share of a row of its own."""

Ids = npt.NDArray[np.int64]


def row_cost(tokens: int, branching: bool) -> float:
    """Return what a row of ``tokens`` costs, in tokens without attention: linear plus quadratic, dense if branching."""
    return tokens + tokens * tokens / (ATTENTION_TOKENS * (1 if branching else 2))


def joining_pays(row_tokens: int, row_branches: bool, tokens: int, shared: int) -> bool:
    """Whether a sequence of ``tokens``, ``shared`` of which a row of ``row_tokens`` has, should join that row."""
    added = row_cost(row_tokens + tokens - shared, branching=True) - row_cost(row_tokens, row_branches)
    return added <= WORTHWHILE * row_cost(tokens, branching=False)


@dataclass
class _Tree:
    """Sequences that were added in lexicographic order, as the preorder of their prefix tree.

    ``members`` are indices into the batch; ``nodes`` has, for each, the place in the row of each of its tokens.
    """

    size: int = 0
    branches: bool = False
    members: list[int] = field(default_factory=list)
    nodes: list[Ids] = field(default_factory=list)
    _tokens: list[Ids] = field(default_factory=list)
    _depths: list[Ids] = field(default_factory=list)
    _closed: list[tuple[Ids, int]] = field(default_factory=list)

    def add(self, index: int, ids: Ids, shared: int) -> None:
        """Append sequence ``index``, whose first ``shared`` tokens are those of the one before."""
        path = self.nodes[-1] if self.nodes else ids[:0]
        if path.size > shared:
            self._closed.append((path[shared:], self.size))
            self.branches = True
        self._tokens.append(ids[shared:])
        self._depths.append(np.arange(shared, ids.size))
        self.nodes.append(np.concatenate((path[:shared], np.arange(self.size, self.size + ids.size - shared))))
        self.members.append(index)
        self.size += ids.size - shared

    def fill(self, ids: Ids, positions: Ids, ends: Ids) -> None:
        """Write tokens, depths and the ends of subtrees into the first ``size`` places of a row."""
        ids[: self.size] = np.concatenate(self._tokens)
        positions[: self.size] = np.concatenate(self._depths)
        ends[: self.size] = self.size
        for places, end in self._closed:
            ends[places] = end


@dataclass(frozen=True)
class SequenceBatch:
    """A micro-batch: which sequences, in the order in which ``padded`` scores their tokens."""

    indices: list[int]
    padded: PaddedBatch


def sequence_batches(
    sequences: Sequence[ScoredSequence], micro_batch_tokens: int, model: PreTrainedModel, share: bool
) -> list[SequenceBatch]:
    """Return micro-batches that cover ``sequences`` once, on the model's device, longest rows first.

    Each is of at most ``micro_batch_tokens``, padding included; a longer sequence goes alone. With ``share``,
    sequences that begin alike stand in one row where :func:`joining_pays`; without, each has its own.
    """
    device = model.device
    allowance = padding_allowance(device)
    if not share:
        lengths = [sequence.ids.size for sequence in sequences]
        parts = micro_batches(lengths, micro_batch_tokens, allowance)
        return [SequenceBatch(part, pad([sequences[i] for i in part], device)) for part in parts]
    trees = _trees(sequences, min(micro_batch_tokens, MAX_TREE_TOKENS))
    batches = []
    for kind in ([t for t in trees if t.size > MAX_TREE_TOKENS], [t for t in trees if t.size <= MAX_TREE_TOKENS]):
        for part in micro_batches([tree.size for tree in kind], micro_batch_tokens, allowance):
            chosen = [kind[i] for i in part]
            padded = _padded(chosen, sequences, device, model.dtype)
            batches.append(SequenceBatch([i for tree in chosen for i in tree.members], padded))
    return batches


def takes_trees(model: PreTrainedModel) -> bool:
    """Whether ``model`` reads a tree as it reads its sequences one by one. Tried on a few tokens, not looked up.

    False for attention that takes no such mask (flash, flex), depends on more than mask and position (alibi,
    recurrent layers), or that narrows its own mask by distance (sliding window, chunks), which the trial is too
    short to show.
    """
    config: Any = model.config
    narrow = any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    layers = getattr(config, "layer_types", None) or ()
    if narrow or any(kind != "full_attention" for kind in layers):
        return False
    if getattr(config, "_attn_implementation", None) not in ("sdpa", "eager"):
        return False
    ids = np.arange(8, dtype=np.int64) % int(config.vocab_size)
    branches = [np.append(ids[:4], last) for last in (ids[4:6], ids[6:8])]
    tree = _Tree()
    for i, branch in enumerate(branches):
        tree.add(i, branch, 4 * i)
    arrays = np.zeros((3, 1, tree.size), dtype=np.int64)
    tree.fill(*arrays[:, 0])
    row, positions, ends = (torch.from_numpy(array).to(model.device) for array in arrays)
    try:
        with torch.no_grad():
            mask = ancestor_mask(ends, model.dtype)
            options = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
            found = model.base_model(input_ids=row, **options).last_hidden_state[0]
            plain = torch.from_numpy(np.stack(branches)).to(model.device)
            expected = model.base_model(input_ids=plain, use_cache=False).last_hidden_state
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return False
    tolerance = 1e-4 * float(expected.abs().max())
    return all(torch.allclose(found[tree.nodes[i]], expected[i], rtol=0, atol=tolerance) for i in range(2))


def ancestor_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (b, 1, t, t) of rows in preorder; ``ends`` (b, t): where each token's subtree ends.

    Token i sees j where j <= i < ends[j]: itself and its ancestors. A row of padding sees itself, so none is empty.
    """
    places = torch.arange(ends.shape[1], device=ends.device)
    visible = (places[:, None] >= places) & (places[:, None] < ends[:, None, :])
    mask = torch.zeros(visible.shape, dtype=dtype, device=ends.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def _trees(sequences: Sequence[ScoredSequence], most_tokens: int) -> list[_Tree]:
    """Group sequences, in lexicographic order so that those that begin alike are neighbours."""
    inputs = [_read(sequence) for sequence in sequences]
    order = sorted(range(len(inputs)), key=lambda i: (inputs[i].astype(">i4").tobytes(), i))
    trees: list[_Tree] = []
    previous = np.zeros(0, dtype=np.int64)
    for i in order:
        ids = inputs[i]
        shared = _common(previous, ids)
        tree = trees[-1] if trees else None
        if (
            tree is None
            or tree.size + ids.size - shared > most_tokens
            or not joining_pays(tree.size, tree.branches, ids.size, shared)
        ):
            tree, shared = _Tree(), 0
            trees.append(tree)
        tree.add(i, ids, shared)
        previous = ids
    return trees


def _read(sequence: ScoredSequence) -> Ids:
    """Return the ids that must be read to score the sequence: those before its last scored token, at least one."""
    scored = np.flatnonzero(sequence.scored)
    return sequence.ids[: int(scored[-1]) if scored.size else 1].astype(np.int64)


def _common(a: Ids, b: Ids) -> int:
    """Length of the common beginning."""
    n = min(a.size, b.size)
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def _padded(
    trees: Sequence[_Tree], sequences: Sequence[ScoredSequence], device: torch.device, dtype: torch.dtype
) -> PaddedBatch:
    """Return one row per tree; positions and mask only where a tree branches."""
    longest = max(tree.size for tree in trees)
    ids, positions = (np.zeros((len(trees), longest), dtype=np.int64) for _ in range(2))
    ends = np.tile(np.arange(1, longest + 1), (len(trees), 1))
    rows, columns = [], []
    for row, tree in enumerate(trees):
        tree.fill(ids[row], positions[row], ends[row])
        for i, nodes in zip(tree.members, tree.nodes, strict=True):
            before = np.flatnonzero(sequences[i].scored) - 1
            columns.append(nodes[before])
            rows.append(np.full(before.size, row))
    members = [sequences[i] for tree in trees for i in tree.members]
    batch = scored_batch(ids, np.concatenate(rows), np.concatenate(columns), members, device)
    if any(tree.branches for tree in trees):
        batch.positions = torch.from_numpy(positions).to(device)
        batch.mask = ancestor_mask(torch.from_numpy(ends).to(device), dtype)
    return batch
