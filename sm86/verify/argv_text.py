"""Two argument lists of `vllm serve` compared by meaning: order, JSON spacing and the model path do not count. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sm86.json_text import parse as parse_json


@dataclass(frozen=True, slots=True)
class Options:
    """An argument list as flags and values; a flag without a value is "true", `--no-x` is `--x` with "false"."""

    values: Mapping[str, str]
    others: tuple[str, ...]

    @classmethod
    def of(cls, argv: Iterable[str]) -> Options:
        """Reads from "serve" on; the argument after it is the model and left out."""
        words = list(argv)
        words = words[words.index("serve") + 1 :] if "serve" in words else words
        model_given = bool(words) and not words[0].startswith("-")
        return cls(*_read(words[1:] if model_given else words))

    def without(self, flag: str, key: str) -> Options:
        """The same list with one key left out of a flag's JSON object."""
        config = _meaning(self.values.get(flag, ""))
        if not isinstance(config, dict) or key not in config:
            return self
        rest = json.dumps({name: value for name, value in config.items() if name != key})
        return Options({**self.values, flag: rest}, self.others)


def _read(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    values: dict[str, str] = {}
    others: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--"):
            others.append(word)
            continue
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if not equals:
            has_value = index < len(words) and not words[index].startswith("--")
            value = words[index] if has_value else "true"
            index += has_value
        if flag.startswith("--no-") and value == "true":
            flag, value = f"--{flag[5:]}", "false"
        # argparse lets the last one win
        values[flag] = value
    return values, tuple(others)


def differences(spec: Options, given: Options, ignored: Iterable[str] = ()) -> list[str]:
    """What differs, in words: `--block-size is 128, not 256`. Empty where the lists mean the same."""
    left_out = set(ignored)
    found = []
    for flag in [*spec.values, *(flag for flag in given.values if flag not in spec.values)]:
        if flag in left_out:
            continue
        wanted, there = spec.values.get(flag), given.values.get(flag)
        if wanted is None:
            found.append(f"{flag} is added ({there})")
        elif there is None:
            found.append(f"{flag} is missing ({wanted})")
        elif _meaning(wanted) != _meaning(there):
            found.append(f"{flag} is {there}, not {wanted}")
    found += [f"{word} is added" for word in given.others if word not in spec.others]
    found += [f"{word} is missing" for word in spec.others if word not in given.others]
    return found


def _meaning(value: str) -> object:
    if value[:1] in "{[":
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value
