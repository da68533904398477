"""Every wording the reader knows, as data, with the vLLM releases it belongs to.

A wording is matched on the message alone: prefixes and the logger's header (with its file names and line numbers,
which move every release) are gone by then.
"""

from sm86.verify.wordings.configuration import CONFIGURATION, LAUNCHER
from sm86.verify.wordings.graphs import GRAPHS
from sm86.verify.wordings.life import LIFE, TRAFFIC
from sm86.verify.wordings.memory import LOADING, MEMORY, RAN_OUT
from sm86.verify.wordings.wording import At, Wording

WORDINGS: tuple[Wording, ...] = (LAUNCHER, *CONFIGURATION, *LOADING, *MEMORY, *RAN_OUT, *GRAPHS, *LIFE, *TRAFFIC)

__all__ = ["LAUNCHER", "WORDINGS", "At", "Wording"]
