"""How long the client waits, and for what. Every wait has an end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, except where the name says otherwise.

    connect_s: until the connection stands. answer_s: for a whole plain answer (models, metrics, tokenize).
    prefill_tok_s: the slowest prefill that still counts as work: with first_token_s it bounds the first token.
    between_tokens_s: the longest pause after it; a first-time kernel compilation takes some ten seconds.
    token_s: the slowest decode that still counts as work, per token, over a whole request.
    """

    connect_s: float = 10.0
    answer_s: float = 60.0
    first_token_s: float = 120.0
    prefill_tok_s: float = 100.0
    between_tokens_s: float = 120.0
    token_s: float = 2.0

    def until_first_token(self, queued_tokens: int) -> float:
        """Until the first token, when `queued_tokens` prompt tokens may have to be prefilled before it."""
        return self.first_token_s + queued_tokens / self.prefill_tok_s

    def whole(self, queued_tokens: int, max_tokens: int) -> float:
        """Until the end of a request."""
        return self.until_first_token(queued_tokens) + self.between_tokens_s + max_tokens * self.token_s
