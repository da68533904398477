"""What a person mistyped on the command line: the word itself, and the nearest that there is.

invoke's parser names the word at which it gave up. Where an option is misspelt that is often the value behind it, which
is right.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

ALL_TASKS = "`invoke --list` shows the tasks"


def explain(argv: Sequence[str], contexts: Any, initial: Any, otherwise: str) -> tuple[str, str]:
    """What is wrong with `argv`, and the mend. contexts: invoke's parser contexts by the tasks' names; initial: that of
    invoke's own options; otherwise: the parser's words, for all else that can be wrong."""
    task: str | None = None
    waiting: str | None = None
    for word in argv:
        if waiting is not None:
            waiting = None
            continue
        flags = _flags(contexts[task], initial) if task is not None else _flags(initial)
        if word.startswith("-") and word.strip("-"):
            name, equals, _ = word.partition("=")
            if name.startswith("--") and name not in flags:
                # the task's own before invoke's: --dryrun is --dry-run, and not --dry
                own = _flags(contexts[task]) if task is not None else flags
                near = difflib.get_close_matches(name, own, 1) or difflib.get_close_matches(name, flags, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                options = f"`invoke --help {task}` lists its options" if task else "`invoke --help` lists them"
                return f"{task or 'invoke'} has no option {name}", hint + options
            argument = flags.get(name)
            if argument is not None and argument.takes_value and not argument.optional and not equals:
                waiting = name
        elif word in contexts:
            task = word
        elif task is None:
            near = difflib.get_close_matches(word, list(contexts), 1)
            return f"there is no task {word!r}", (f"did you mean {near[0]}? " if near else "") + ALL_TASKS
    help_of = f"`invoke --help {task}`" if task else "`invoke --help TASK`"
    if waiting is not None:
        return f"{waiting} needs a value", f"{help_of} says which"
    return otherwise, f"{ALL_TASKS}, {help_of} one of them"


def _flags(*contexts: Any) -> dict[str, Any]:
    """Every spelling of every option; None for the --no- forms, which take no value."""
    found: dict[str, Any] = {}
    for context in contexts:
        if context is not None:
            found.update(dict.fromkeys(context.inverse_flags))
            found.update({flag: context.flags[flag] for flag in context.flags})
            found.update({flag: context.flags[flag] for flag in getattr(context.flags, "aliases", {})})
    return found
