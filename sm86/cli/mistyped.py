"""What a person mistyped on the command line: the word itself, and the nearest that there is.

invoke's parser names the word at which it gave up. Where an option is misspelt that is often the value behind it, which
is right; or it takes the misspelt option for the argument that the task needs.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

ALL_TASKS = "`invoke --list` shows the tasks"


Told = tuple[str, str]


def unknown_option(argv: Sequence[str], contexts: Any, initial: Any) -> Told | None:
    """The first option that its task does not have, and the mend. contexts: invoke's parser contexts by the tasks'
    names; initial: that of invoke's own options."""
    return _walk(argv, contexts, initial)[0]


def explain(argv: Sequence[str], contexts: Any, initial: Any, otherwise: str) -> Told:
    """What is wrong with `argv`, which the parser has refused, and the mend. otherwise: the parser's words, for all
    that is not an option or a task that there is not, or an option without its value."""
    told, task, waiting = _walk(argv, contexts, initial)
    if told is not None:
        return told
    help_of = f"`invoke --help {task}`" if task else "`invoke --help TASK`"
    if waiting is not None:
        return f"{waiting} needs a value", f"{help_of} says which"
    first = argv[0] if argv else ""
    if task is None and first and not first.startswith("-"):
        near = difflib.get_close_matches(first, list(contexts), 1)
        return f"there is no task {first!r}", (f"did you mean {near[0]}? " if near else "") + ALL_TASKS
    return otherwise, f"{ALL_TASKS}, {help_of} one of them"


def _walk(argv: Sequence[str], contexts: Any, initial: Any) -> tuple[Told | None, str | None, str | None]:
    """What `unknown_option` tells; the last task; the option that still waits for its value."""
    task: str | None = None
    waiting: str | None = None
    for word in argv:
        if waiting is not None:
            waiting = None
        elif word == "--":
            break
        elif word.startswith("-") and word.strip("-"):
            own = _flags(contexts[task]) if task is not None else {}
            flags = {**_flags(initial), **own}
            name, equals, _ = word.partition("=")
            if name.startswith("--") and name not in flags:
                # the task's own before invoke's: --dryrun is --dry-run, and not --dry
                near = difflib.get_close_matches(name, own, 1) or difflib.get_close_matches(name, flags, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                options = f"`invoke --help {task}` lists its options" if task else "`invoke --help` lists them"
                return (f"{task or 'invoke'} has no option {name}", hint + options), task, None
            argument = flags.get(name)
            if argument is not None and argument.takes_value and not argument.optional and not equals:
                waiting = name
        elif word in contexts:
            task = word
    return None, task, waiting


def _flags(*contexts: Any) -> dict[str, Any]:
    """Every spelling of every option; None for the --no- forms, which take no value."""
    found: dict[str, Any] = {}
    for context in contexts:
        if context is not None:
            found.update(dict.fromkeys(context.inverse_flags))
            found.update({flag: context.flags[flag] for flag in context.flags})
            found.update({flag: context.flags[flag] for flag in getattr(context.flags, "aliases", {})})
    return found
