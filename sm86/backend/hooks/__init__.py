"""Every function of vLLM that the backend replaces, one small module each: what, why, and the hash of what it replaces.

A hook module holds one `HOOK`. `sm86.backend.hooks.catalogue` lists them all; `sm86.backend.hooks.install` applies
them when their target is imported (vLLM's decorators choose at import time whether graphs may break, so nothing is
imported early).
"""
