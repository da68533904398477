"""How the backend refuses: one exception that stops the engine with what is wrong and how to mend it."""

from __future__ import annotations


class Refused(RuntimeError):
    """The server must not start (or go on): serving would be wrong or would crash later.

    what: one line; mend: one line. The message holds both, since vLLM prints only the exception's text.
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"SM86 backend refused: {what}. To mend: {mend}.")
        self.what = what
        self.mend = mend
