"""The state of a server's process, whatever runs it. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

MISSING = "missing"
CREATED = "created"
RUNNING = "running"
RESTARTING = "restarting"
EXITED = "exited"


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is known of the server's process right now.

    kind: MISSING (never started, or removed), CREATED (made, never ran), RUNNING, RESTARTING (died, will run
    again by its restart policy), EXITED.
    exit_code: of the last end, as a shell shows it (128 + signal); None while running or where nobody saw it.
    oom_killed: the kernel ended it for want of memory. restart_count: how often the policy started it again.
    health: the container's health check, "" where there is none; error: the engine's words when it could not start it.
    """

    kind: str
    exit_code: int | None = None
    oom_killed: bool = False
    restart_count: int = 0
    restart_cap: int = 0
    health: str = ""
    error: str = ""
    started_at: str = ""
    image_id: str | None = None

    @property
    def is_up(self) -> bool:
        """A process runs, or soon will again."""
        return self.kind in (RUNNING, RESTARTING)

    def has_died(self, restarts_before: int = 0) -> bool:
        """The process ended, on its own or by a signal, since its policy had restarted it so many times."""
        return self.kind in (EXITED, RESTARTING) or self.restart_count > restarts_before

    def words(self) -> str:
        """One plain clause: "running, health check: healthy", "exited with code 137 (out of memory)"."""
        if self.kind == EXITED:
            code = "an unknown code" if self.exit_code is None else f"code {self.exit_code}"
            return f"exited with {code}{' (killed for want of memory)' if self.oom_killed else ''}"
        if self.kind == MISSING:
            return "not started, or removed"
        again = f", restarted {self.restart_count} times" if self.restart_count else ""
        health = f", health check: {self.health}" if self.health else ""
        return f"{self.kind}{health}{again}"
