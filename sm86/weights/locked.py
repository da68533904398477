"""A checkpoint against its lock file. Pure: sizes and hashes are given."""

from __future__ import annotations

from collections.abc import Mapping

from sm86.weights.findings import FAIL, NOT_APPLICABLE, NOT_SEEN, PASS, Finding, some
from sm86.weights.folder import ModelFolder
from sm86.weights.lock import Lock, Locked, differences

READABLE = "let this user read them (chmod -R a+rX FOLDER)"
FETCH = "fetch the locked revision again (invoke model.fetch), or lock what is there (invoke model.lock --update)"


def judge_lock(
    lock: Lock | None,
    found: ModelFolder,
    sizes: Mapping[str, int],
    small: Mapping[str, str | OSError],
    every: Mapping[str, str | OSError] | None,
    revision: str | None,
    blobs: Mapping[str, str],
) -> list[Finding]:
    """The rules "lock" and "bytes".

    sizes: of the files that are there; every: SHA-256 of all files, or why one could not be read; None: nobody asked
    for it; small: likewise, of all but the weight files. revision: the commit that the folder's place tells, if any.
    blobs: SHA-256 by which a hub cache names the files' contents; they stand in for a lock's where there is none.
    """
    if lock is None:
        text = "there is no lock file; invoke model.lock writes one"
        own = Lock(None, None, "", {name: Locked(sizes.get(name, 0), sha) for name, sha in blobs.items()})
        without = Finding("bytes", NOT_APPLICABLE, text)
        return [Finding("lock", NOT_APPLICABLE, text), _bytes(own, every, "the hub cache's") if blobs else without]
    return [_lock(lock, found, sizes, small, revision), _bytes(lock, every, "the locked")]


def _lock(
    lock: Lock, found: ModelFolder, sizes: Mapping[str, int], small: Mapping[str, str | OSError], revision: str | None
) -> Finding:
    rule = "lock"
    if revision and lock.revision and revision != lock.revision:
        text = f"the folder is revision {revision[:12]}, locked is {lock.revision[:12]}"
        return Finding(rule, FAIL, text, FETCH)
    different = differences(lock, sizes, {name: digest for name, digest in small.items() if isinstance(digest, str)})
    if different:
        return Finding(rule, FAIL, f"{len(different)} files are not as locked", FETCH, some(different))
    unread = [name for name, digest in small.items() if isinstance(digest, OSError)]
    if unread:
        return Finding(rule, NOT_SEEN, f"{len(unread)} files could not be read", READABLE, some(unread))
    if found.sha256 is None:
        return Finding(rule, NOT_SEEN, "the headers could not all be read", FETCH)
    if found.sha256 != lock.model_hash:
        return Finding(rule, FAIL, "config, index or headers are not as locked", FETCH)
    at = f", revision {lock.revision[:12]}" if lock.revision else ""
    return Finding(rule, PASS, f"sizes, headers and small files of {len(lock.files)} files are as locked{at}")


def _bytes(lock: Lock, every: Mapping[str, str | OSError] | None, whose: str) -> Finding:
    rule = "bytes"
    total = sum(file.size for file in lock.files.values()) / 2**30
    if every is None:
        return Finding(rule, NOT_APPLICABLE, f"not asked for: --hash reads all {total:,.2f} GiB")
    unread = [f"{name} cannot be read: {error.strerror}" for name, error in every.items() if isinstance(error, OSError)]
    if unread:
        return Finding(rule, NOT_SEEN, f"{len(unread)} files could not be read", FETCH, some(unread))
    wrong = [name for name, file in lock.files.items() if name in every and every[name] != file.sha256]
    if wrong:
        return Finding(rule, FAIL, f"{len(wrong)} files have not {whose} SHA-256", FETCH, some(wrong))
    absent = [name for name in lock.files if name not in every]
    if absent:
        return Finding(rule, NOT_SEEN, f"{len(absent)} files are not there", FETCH, some(absent))
    return Finding(rule, PASS, f"all {total:,.2f} GiB have {whose} SHA-256")
