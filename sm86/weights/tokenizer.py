"""The checkpoint's tokenizer: present, and such that vLLM can read it. Reads files, loads no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm86.weights.findings import FAIL, PASS, Finding
from sm86.weights.folder import json_object, read

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
MAX_BYTES = 256 << 20
RULE = "tokenizer"

_MEND = "fetch these files again (invoke model.fetch), or copy them from the same revision"


def judge(folder: Path, config: Mapping[str, Any] | None) -> Finding:
    """One finding. config: the checkpoint's, for its vocabulary's size; None: that is not compared."""
    settings, problem = _object(folder / SETTINGS)
    if settings is None:
        return Finding(RULE, FAIL, problem, _MEND)
    whole, problem = _object(folder / FILE)
    if whole is None:
        return Finding(RULE, FAIL, problem, _MEND)
    numbers = _numbers(whole)
    if numbers is None:
        return Finding(RULE, FAIL, f"{FILE} has no vocabulary", _MEND)
    if not numbers:
        return Finding(RULE, FAIL, f"the vocabulary of {FILE} is empty", _MEND)
    size = (config or {}).get("vocab_size")
    if type(size) is int and max(numbers) >= size:
        return Finding(
            RULE,
            FAIL,
            f"{FILE} has tokens up to {max(numbers):,}, but the model's vocabulary ends at {size:,}",
            "use the tokenizer of this very checkpoint",
        )
    return Finding(RULE, PASS, f"{FILE} has {len(numbers):,} tokens, {SETTINGS} is read")


def _object(path: Path) -> tuple[dict[str, Any] | None, str]:
    data, problem = read(path, MAX_BYTES)
    return json_object(data, path.name) if data is not None else (None, problem)


def _numbers(whole: Mapping[str, Any]) -> set[int] | None:
    """Every token's number; None where the file is no tokenizer."""
    model = whole.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        numbers = set(vocabulary.values())
    elif isinstance(vocabulary, list):
        # a unigram model lists its tokens in order
        numbers = set(range(len(vocabulary)))
    else:
        return None
    added = whole.get("added_tokens") or []
    if not isinstance(added, list):
        return None
    numbers |= {entry.get("id") if isinstance(entry, dict) else None for entry in added}
    return numbers if all(type(number) is int and number >= 0 for number in numbers) else None
