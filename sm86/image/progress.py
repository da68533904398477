"""BuildKit's plain progress, line by line -> which step runs, what it printed last, which one failed. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

_LINE = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:(?P<stage>[\w-]+) )?(?:stage-\d+ )? *(?P<number>\d+)/(?P<total>\d+)\] (?P<text>.*)")
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")
_COUNT = re.compile(r"\[(\d+)/([1-9]\d*)\] ")
_DONE = re.compile(r"DONE ([\d.]+)s")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
KEPT_LINES = 12


@dataclass(slots=True)
class Step:
    """One step: `title` in words, its state ("running", "done", "cached", "failed"), its last lines of output.

    tenths: how much of it was told, by the count that a compiler's driver prints before each line ("[41/82] ...").
    """

    title: str
    state: str = "running"
    seconds: float = 0.0
    told: bool = False
    tenths: int = 0
    output: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


@dataclass(slots=True)
class Progress:
    """Feed it lines in order. `steps` by BuildKit's number; `tail` the last lines that belong to no step."""

    steps: dict[int, Step] = field(default_factory=dict)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def feed(self, line: str) -> str | None:
        """Take one line; returns what is worth telling a person, or None."""
        line = _ANSI.sub("", line).rstrip("\r\n").split("\r")[-1]
        found = _LINE.fullmatch(line)
        if not found:
            if line.strip():
                self.tail.append(line.strip())
            return None
        number, text = int(found[1]), found[2]
        step = self.steps.get(number)
        if step is None:
            # told only once it prints something: what comes from the cache is named and over in the same moment
            self.steps[number] = Step(_title(text), told=text.startswith("[internal]"))
            return None
        return self._advance(step, text)

    def failed(self) -> Step | None:
        """The step that failed; of several the first, the others were only stopped."""
        failures = [step for step in self.steps.values() if step.state == "failed"]
        real = [step for step in failures if not any("context canceled" in line for line in step.output)]
        return next(iter(real or failures), None)

    def words(self) -> str:
        """Everything that may say why it failed: the failing step's last lines, then the client's own."""
        step = self.failed()
        return "\n".join([*(step.output if step else ()), *self.tail])

    def _advance(self, step: Step, text: str) -> str | None:
        done = _DONE.fullmatch(text)
        if done:
            worth_telling = step.state == "running" and float(done[1]) >= 1
            step.state, step.seconds = "done", float(done[1])
            return f"{step.title}: {step.seconds:.0f} s" if worth_telling else None
        if text == "CACHED":
            step.state = "cached"
        elif text.startswith("ERROR"):
            step.state = "failed"
            step.output.append(text)
        elif text == "CANCELED":
            step.state = "canceled"
        elif not _DIGEST.fullmatch(text):
            output = _OUTPUT.fullmatch(text)
            words = (output[1] if output else text).strip()
            if words:
                step.output.append(words)
            if not step.told:
                step.told = True
                return f"{step.title} ..."
            return _counted(step, words)
        return None


def _counted(step: Step, words: str) -> str | None:
    """What is worth telling of a step that counts: once for each tenth of it, and not its end, which is told anyway."""
    found = _COUNT.match(words)
    if not found:
        return None
    number, total = int(found[1]), int(found[2])
    tenths = number * 10 // total
    if tenths <= step.tenths or number >= total:
        return None
    step.tenths = tenths
    return f"{step.title.partition(': ')[0]}: {number} of {total}"


def _title(text: str) -> str:
    found = _STEP.match(text)
    if not found:
        return text if len(text) <= 100 else text[:97] + "..."
    words = re.sub(r"--mount=\S+ *|\\", "", found["text"])
    words = " ".join(words.split())
    head = f"{found['stage']} {found['number']}/{found['total']}: " if found["stage"] else ""
    return head + (words if len(words) <= 80 else words[:77] + "...")
