"""The container's entrypoint, and the process that `--engine local` starts: check, print the manifest, become vLLM.

python3 -P -m sm86.launch --envelope NAME [--set NAME=VALUE]... [-- serve ...]
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

BEGAN = time.time()


def main() -> int:
    from sm86.errors import EXIT_INTERRUPTED, CouldNotRun, Sm86Error
    from sm86.launch import refusal
    from sm86.launch.command import launch
    from sm86.launch.options import parse
    from sm86.launch.places import BUILD_FILE, CONTAINER_LOCKS, build_record

    # a stream that is closed is None here and a fault of every print; the checks and the exit code matter all the same
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    arguments = sys.argv[1:]
    # only a container restarts by itself; a dry run is asked for and always answers
    in_image = build_record(Path(os.environ.get("SM86_BUILD_FILE") or BUILD_FILE)) is not None
    shared = Path(os.environ.get("SM86_LOCK_DIR") or CONTAINER_LOCKS)
    marks = refusal.mark_paths(shared) if in_image and "--dry-run" not in arguments else ()
    try:
        return launch(parse(arguments), os.environ)
    except Sm86Error as error:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        return refusal.say(error, BEGAN, marks)
    except KeyboardInterrupt:
        print("sm86: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("SM86_TRACEBACK") == "1":
            raise
        fault = CouldNotRun(f"a fault of the launcher: {error!r}", "set SM86_TRACEBACK=1 to see where, and report it")
        return refusal.say(fault, BEGAN, marks)


if __name__ == "__main__":
    sys.exit(main())
