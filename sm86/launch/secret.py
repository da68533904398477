"""The API key: read from a file, handed to vLLM in its environment, shown nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import open_regular

KEY_VARIABLE = "VLLM_API_KEY"
MAX_BYTES = 4096


def read_key(path: Path, is_given: bool) -> str | None:
    """The key in the file's first line; None for an absent, empty or null file.

    is_given: the user named the file, so that it must be there. Raises CouldNotRun, never with the key in it.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if is_given:
            raise CouldNotRun(
                f"the key file {path} is not there", "write the key to it, or leave SM86_API_KEY_FILE out"
            ) from None
        return None
    except OSError as error:
        raise CouldNotRun(
            f"the key file {path} cannot be read: {error.strerror}",
            "let the server's user read it, and give a file, not a folder",
        ) from None
    if len(data) > MAX_BYTES:
        raise CouldNotRun(f"the key file {path} is larger than {MAX_BYTES} bytes", "give a file with the key alone")
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise CouldNotRun(f"the key file {path} is not UTF-8 text", "write the key as plain text") from None
    if not text:
        return None
    if not text.isascii() or not text.isprintable() or any(character.isspace() for character in text):
        # it travels in an HTTP header, where such a key could never be sent back
        raise CouldNotRun(
            f"the key in {path} holds a space, a line end or another character that no HTTP header carries",
            "use letters, digits and signs on one line (openssl rand -hex 32 makes one)",
        )
    return text


def require_unseen(key: str | None, argv: Sequence[str]) -> None:
    """The key must not stand in the argument list, which the manifest and every process listing show."""
    if key is not None and any(key == part or (len(key) >= 8 and key in part) for part in argv):
        raise CouldNotRun("an argument holds the API key", "take it out of the command; the key file is enough")


def masked(environment: Mapping[str, str], key: str | None) -> dict[str, str]:
    """The environment for showing: a value that holds the key is left out."""
    if key is None:
        return dict(environment)
    return {name: value for name, value in environment.items() if value != key and not (len(key) >= 8 and key in value)}
