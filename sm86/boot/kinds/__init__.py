"""The kinds of failure that a boot can end in: the words that show each, what else must hold, and a mend. Pure.

The order of the table is the order of judgement: causes before consequences. A worker that died because its GPU
was full is "capture OOM"; that it died is what remains to be said when no cause is in the log.
"""

from sm86.boot.kinds import aftermath, driver, launch, machine, memory, model
from sm86.boot.kinds.case import Case, Kind

__all__ = ["KINDS", "Case", "Kind"]

KINDS: tuple[Kind, ...] = (
    *launch.KINDS,
    *driver.KINDS,
    *model.KINDS,
    *memory.KINDS,
    *machine.KINDS,
    *aftermath.KINDS,
)
