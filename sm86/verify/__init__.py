"""A server's log judged: bytes -> events -> boots -> rules -> findings with line numbers."""

from sm86.verify.findings import Evidence, Finding, Report

__all__ = ["Evidence", "Finding", "Report"]
