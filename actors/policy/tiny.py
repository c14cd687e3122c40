"""The tiny policy: a Llama of about a million parameters with a character tokenizer, made here from nothing.

Every printable ASCII character has an id, fixed phrases of the domains have one id each, and any other
character becomes the unknown token: nothing is ever dropped or split silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from actors.domains.registry import phrases_of

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
MAX_IDS = 192
CONTEXT = 512


def tiny_tokenizer(phrases: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single characters plus one id for each of ``phrases``; the longest phrase wins.

    Raises:
        ValueError: more phrases than ids are left (192 in all).
    """
    keywords = sorted({phrase for phrase in phrases if len(phrase) > 1}, key=lambda text: (-len(text), text))
    tokens = [PAD, EOS, UNKNOWN, *CHARACTERS, *keywords]
    if len(tokens) > MAX_IDS:
        raise ValueError(f"{len(keywords)} phrases make {len(tokens)} ids: leave out {len(tokens) - MAX_IDS} of them")
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNKNOWN))
    pieces = "|".join([*map(re.escape, keywords), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tiny_model(n_ids: int, seed: int) -> LlamaForCausalLM:
    """Return a Llama with fresh weights (float32, untied): hidden 128, 4 layers of 4 heads, feed-forward 384."""
    config = LlamaConfig(
        vocab_size=n_ids,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def write_tiny_policy(folder: Path, seed: int = 0, source: str = "demo") -> None:
    """Write a fresh policy for the prompts of a task source as a Hugging Face folder that ``from_pretrained`` loads."""
    tokenizer = tiny_tokenizer(phrases_of(source))
    tiny_model(len(tokenizer), seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
