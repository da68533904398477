"""Readouts of one boot's diagnostics: how decode batches were dispatched, and what becomes of drafts."""
