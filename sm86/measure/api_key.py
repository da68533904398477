"""The API key: from a file or the environment, never from the command line, never in a message."""

from __future__ import annotations

import os
from pathlib import Path

from sm86.errors import CouldNotRun
from sm86.files import read_regular
from sm86.measure.client import is_api_key

VARIABLE = "VLLM_API_KEY"
"""What the launcher sets for the server; the client reads the same name."""


def read_api_key(file: str | None) -> str | None:
    """The key in `file`, else in the environment; None where neither gives one. CouldNotRun for a bad file or key."""
    if file is None:
        text, source = os.environ.get(VARIABLE, ""), VARIABLE
        if not text.strip():
            return None
    else:
        source = file
        try:
            text = read_regular(Path(file)).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise CouldNotRun(f"{file} is not a text file", "put the key alone into it, on one line") from None
        except OSError as error:
            raise CouldNotRun(
                f"cannot read the API key file {file}: {error.strerror}", "give the file the server was started with"
            ) from None
    key = text.strip()
    if not is_api_key(key):
        held = "nothing" if not key else "more than one word, or characters no HTTP header can carry"
        raise CouldNotRun(f"the API key in {source} cannot be used: it holds {held}", "put the key alone on one line")
    return key
