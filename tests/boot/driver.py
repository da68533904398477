"""Runs one command of `sm86.cli.boot` with the stand-in launcher in place of the embedded engine's.

driver.py ROOT FUNCTION JSON: ROOT has .env and .cache; JSON holds the arguments.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from sm86.cli import boot, engines  # noqa: E402
from sm86.cli.guard import guard  # noqa: E402

engines.ROOT = Path(sys.argv[1])
engines._embedded = lambda envelope, root, dry_run: (HERE / "standin_server.py", Path("/models/m"))
sys.exit(guard(lambda: getattr(boot, sys.argv[2])(**json.loads(sys.argv[3]))))
