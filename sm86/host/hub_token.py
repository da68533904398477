"""The access token of the model hub: found where its own tools keep it, sent nowhere else, shown nowhere."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sm86.errors import CouldNotRun
from sm86.files import read_regular

TOKEN_VARIABLE = "HF_TOKEN"
TOKEN_FILE_VARIABLE = "HF_TOKEN_PATH"
HOME_VARIABLE = "HF_HOME"
MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Token:
    """A token and where it came from. Its repr does not show it."""

    value: str = field(repr=False)
    source: str


def find_token(environment: Mapping[str, str], given: Path | None, home: Path) -> Token | None:
    """The token of the named file, of HF_TOKEN, of HF_TOKEN_PATH's file, or of the file that the hub's login wrote.

    home: the user's home folder. None: there is none, and public checkpoints need none. Raises CouldNotRun, never with
    the token in it: the named file is missing or unreadable, or what it holds is no token.
    """
    if given is not None:
        return _of_file(given, str(given), must_be=True)
    value = environment.get(TOKEN_VARIABLE, "").strip()
    if value:
        return _checked(value, TOKEN_VARIABLE)
    named = environment.get(TOKEN_FILE_VARIABLE)
    if named:
        return _of_file(Path(named), f"{TOKEN_FILE_VARIABLE}={named}", must_be=True)
    place = Path(environment.get(HOME_VARIABLE) or home / ".cache" / "huggingface") / "token"
    return _of_file(place, str(place), must_be=False)


def require_safe_way(token: Token | None, endpoint: str) -> None:
    """A token goes over TLS, or stays on this machine. Raises CouldNotRun otherwise."""
    parts = urlsplit(endpoint)
    if token is None or parts.scheme == "https" or _is_here(parts.hostname or ""):
        return
    raise CouldNotRun(
        f"the token from {token.source} would go to {parts.hostname} unencrypted",
        "use an https address in HF_ENDPOINT, or unset the token if the mirror needs none",
    )


def without(text: str, token: Token | None) -> str:
    """The text with the token taken out: a server may repeat what it was sent."""
    return text.replace(token.value, "(token)") if token else text


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _of_file(path: Path, source: str, must_be: bool) -> Token | None:
    try:
        text = read_regular(path, MAX_BYTES).decode("ascii").strip()
    except FileNotFoundError:
        if not must_be:
            return None
        raise CouldNotRun(f"the token file {path} is not there", "give the file that holds the token") from None
    except UnicodeDecodeError:
        raise CouldNotRun(f"the token file {path} holds no token", "write the token alone into it") from None
    except OSError as error:
        raise CouldNotRun(
            f"the token file {path} cannot be read: {error.strerror}", "give a file that this user may read"
        ) from None
    if not text:
        if not must_be:
            return None
        raise CouldNotRun(f"the token file {path} is empty", "write the token into it")
    return _checked(text, source)


def _checked(value: str, source: str) -> Token:
    if not value.isascii() or not value.isprintable() or " " in value or len(value) > MAX_BYTES:
        raise CouldNotRun(f"what {source} holds is no token", "a token is one word of letters, digits and signs")
    return Token(value, source)
