"""Specs -> the files a person runs: Compose services, `.env.example`, the runbook's tables. Pure: text in, text out."""

from sm86.render.all import render_all
from sm86.render.tree import Change, apply, compare

__all__ = ["Change", "apply", "compare", "render_all"]
