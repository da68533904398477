"""Records: what was run, under which conditions, with which numbers and verdicts. One schema for all."""

from sm86.record.schema import Conditions, Number, Record, Verdict
from sm86.record.store import latest, load, record_path, results_dir, save

__all__ = ["Conditions", "Number", "Record", "Verdict", "latest", "load", "record_path", "results_dir", "save"]
