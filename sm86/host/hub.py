"""The model hub over HTTP: what a revision holds, and its files' bytes from any place on.

Own code on the standard library and not `huggingface_hub`, for three reasons that were read in its version 2.4: it
deletes a partial file when a download breaks off, so that nothing resumes in the next run; it compares sizes and
never a file's SHA-256; and of a disk too small it warns and goes on. For 142 GiB that must arrive whole, all three
matter more than its speed. What it does better, many connections into one file, is left to it: a folder or a cache
that it filled is understood here as well.

The addresses are the hub's public interface: `/api/models/REPO/revision/REV?blobs=true` lists files with size and
hash, `/REPO/resolve/COMMIT/FILE` gives the bytes, mostly by a redirect to another host.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote, urlsplit

from sm86 import __version__
from sm86.errors import CouldNotRun
from sm86.host.hub_token import Token, require_safe_way, without
from sm86.json_text import parse as parse_json

ENDPOINT_VARIABLE = "HF_ENDPOINT"
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
DEFAULT_ENDPOINT = "https://huggingface.co"

SILENCE_S = 60.0
"""Seconds without a byte after which a connection counts as broken."""

MAX_LISTING = 64 << 20
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
REVISION = re.compile(r"[\w][\w./-]{0,199}", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})

TRIES = 6
"""Failures in a row, without a new byte, before it is given up; the waits between them add up to half a minute."""

LONGEST_WAIT_S = 300.0

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


class Broken(Exception):
    """The connection or the server failed in a way that may pass. after_s: how long the server asked to wait."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a revision. sha256: of large files; git_sha1: git's hash of small ones; size in bytes."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """A revision's files at the top of the repository; commit: what the revision was when it was asked."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and who asks it. silence_s: seconds without a byte that end a connection."""

    endpoint: str
    token: Token | None
    silence_s: float = SILENCE_S

    def listing(
        self,
        repository: str,
        revision: str,
        wait: Callable[[float], object],
        say: Callable[[str], object] = lambda _: None,
    ) -> Listing:
        """What the revision holds; tries TRIES times. wait: sleeps that many seconds; say: is told what is asked, and
        each failure that is waited out. Raises CouldNotRun."""
        say(f"asking {self.host} which files {repository} holds at {revision}")
        for failures in range(1, TRIES + 1):
            try:
                return self._listing_once(repository, revision)
            except Broken as broken:
                if failures == TRIES:
                    raise CouldNotRun(
                        f"{self.host} does not answer: {broken}",
                        f"see whether this machine reaches it, or name a mirror in {ENDPOINT_VARIABLE}",
                    ) from None
                seconds = pause_s(broken, failures)
                say(f"{self.host}: {broken}; again in {seconds:.0f} s (try {failures + 1} of {TRIES})")
                wait(seconds)
        raise AssertionError("unreachable")

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).hostname or self.endpoint

    def _listing_once(self, repository: str, revision: str) -> Listing:
        where = f"{self.endpoint}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        with self._open(urllib.request.Request(where), f"{repository} at {revision}") as response:
            try:
                data = response.read(MAX_LISTING + 1)
            except (OSError, http.client.HTTPException) as error:
                raise Broken(_words(error)) from None
        if len(data) > MAX_LISTING:
            raise CouldNotRun(f"the hub's list of files is larger than {MAX_LISTING >> 20} MiB", "see HF_ENDPOINT")
        try:
            return _listing(repository, parse_json(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CouldNotRun(
                f"{self.host} does not answer as a model hub does",
                f"see whether {ENDPOINT_VARIABLE} names a hub or a mirror of one, and whether a login page is between",
            ) from None

    @contextlib.contextmanager
    def open(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[tuple[int, http.client.HTTPResponse]]:
        """The file's bytes from `start` on; gives where they really begin (0 from a server without ranges).

        Raises Broken for what may pass, CouldNotRun for what waiting cannot mend, also where the answer is not about
        this file.
        """
        where = f"{self.endpoint}/{listing.repository}/resolve/{listing.commit}/{quote(file.name, safe='')}"
        request = urllib.request.Request(where, headers={"Accept-Encoding": "identity"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        wanted = file.sha256 or file.git_sha1
        with self._open(request, file.name, wanted) as response:
            begin = _begin(response, start, file)
            promised = response.headers.get("Content-Length")
            if promised is not None and promised != str(file.size - begin):
                raise CouldNotRun(
                    f"the hub sends {promised[:24]} bytes of {file.name}, its list says {file.size - begin}",
                    f"try again later; a proxy or the mirror in {ENDPOINT_VARIABLE} may change what it passes on",
                )
            commit = response.headers.get("X-Repo-Commit")
            if commit is not None and COMMIT.fullmatch(commit) and commit != listing.commit:
                raise CouldNotRun(f"the hub sends {file.name} of revision {commit[:12]}", "try again later")
            yield begin, response

    @contextlib.contextmanager
    def _open(
        self, request: urllib.request.Request, what: str, wanted: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        require_safe_way(self.token, self.endpoint)
        request.add_header("User-Agent", f"sm86/{__version__}")
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token.value}")
        opener = urllib.request.build_opener(_Redirects(what, wanted))
        try:
            response = opener.open(request, timeout=self.silence_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error, what) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise CouldNotRun(
                    f"the certificate of {urlsplit(request.full_url).hostname} is not trusted",
                    "a proxy may be between: install its certificate (SSL_CERT_FILE), or use another network",
                ) from None
            reason = error.reason
            raise Broken(_words(reason) if isinstance(reason, BaseException) else str(reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise Broken(_words(error)) from None
        except ValueError:
            raise CouldNotRun(f"{self.host} is no web address", f"write {ENDPOINT_VARIABLE}=https://HOST") from None
        with response:
            yield response

    def _refused(self, error: urllib.error.HTTPError, what: str) -> Exception:
        code, host = error.code, self.host
        if code in RETRIED:
            return Broken(f"the hub answers {code}", _seconds(error.headers.get("Retry-After")))
        said = without(error.headers.get("X-Error-Message") or "", self.token)[:200]
        evidence = (said,) if said else ()
        if code == 401:
            whose = f"the token from {self.token.source}" if self.token else "a request without a token"
            return CouldNotRun(
                f"{host} refuses {whose} for {what} (401)",
                "it does not exist, or is private: check the name, and set HF_TOKEN or --token-file if it needs one",
                evidence,
            )
        if code == 403:
            return CouldNotRun(
                f"{host} does not give {what} to this token (403)" if self.token else f"{host} refuses {what} (403)",
                "accept the model's terms on its page, and use a token of that account (HF_TOKEN, --token-file)",
                evidence,
            )
        if code in (404, 410):
            return CouldNotRun(
                f"{host} has no {what} ({code})",
                "check the repository and the revision; a branch may be gone",
                evidence,
            )
        if code == 416:
            return Broken("the hub does not know that part of the file")
        return CouldNotRun(f"{host} answers {code} for {what}", "try again later, or through another mirror", evidence)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects that keep the token on its own host, never lose encryption, and tell early of other contents."""

    def __init__(self, what: str, wanted: str | None) -> None:
        self._what, self._wanted = what, wanted

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        linked = (headers.get("X-Linked-Etag") or "").strip('"')
        if self._wanted and (_SHA256.fullmatch(linked) or _GIT_SHA1.fullmatch(linked)) and linked != self._wanted:
            raise CouldNotRun(f"the hub has other contents for {self._what} than its list says", "try again later")
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if old.scheme == "https" and new.scheme != "https":
            raise CouldNotRun(f"{old.hostname} redirects to an address without encryption", "use another mirror")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        key = req.unredirected_hdrs.get("Authorization")
        if following is not None and key and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            following.add_unredirected_header("Authorization", key)
        return following


def _begin(response: http.client.HTTPResponse, start: int, file: RemoteFile) -> int:
    if response.status == 200:
        return 0
    if response.status != 206:
        raise CouldNotRun(f"the hub answers {response.status} for {file.name}", "try again later")
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", response.headers.get("Content-Range") or "")
    if not found or int(found[1]) != start or found[3] not in ("*", str(file.size)):
        raise CouldNotRun(f"the hub sends another part of {file.name} than was asked for", "try again later")
    return start


def _listing(repository: str, values: Mapping[str, Any]) -> Listing:
    commit = values["sha"]
    if not COMMIT.fullmatch(commit):
        raise ValueError("no commit")
    files = []
    for entry in values["siblings"]:
        name = entry["rfilename"]
        if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            continue  # below the top lies nothing that is served
        if not name.isprintable():
            raise ValueError("a name that is none")
        large = entry.get("lfs") or {}
        size, sha256, git_sha1 = large.get("size", entry.get("size")), large.get("sha256"), entry.get("blobId")
        if type(size) is not int or not 0 <= size < 2**50:
            raise ValueError("no size")
        sha256 = sha256 if sha256 and _SHA256.fullmatch(sha256) else None
        git_sha1 = git_sha1 if not large and git_sha1 and _GIT_SHA1.fullmatch(git_sha1) else None
        if sha256 is None and git_sha1 is None:
            raise ValueError("no hash")
        files.append(RemoteFile(name, size, sha256, git_sha1))
    return Listing(repository, commit, tuple(sorted(files, key=lambda file: file.name)))


def _seconds(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,5}", text) else None


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no byte came for too long"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def require_names(repository: str, revision: str) -> None:
    """Raises CouldNotRun for what cannot be a repository or a revision of a hub."""
    if not REPOSITORY.fullmatch(repository):
        raise CouldNotRun(f"{repository[:80]!r} is no repository", "write OWNER/NAME, as on the model's page")
    if not REVISION.fullmatch(revision) or ".." in revision:
        raise CouldNotRun(f"{revision[:80]!r} is no revision", "give a commit of 40 digits, a branch or a tag")


def pause_s(broken: Broken, in_a_row: int) -> float:
    """Seconds to wait after so many failures in a row: what the server asks for, else 1, 2, 4, 8 ..."""
    asked = broken.after_s if broken.after_s is not None else 2.0 ** max(in_a_row - 1, 0)
    return min(asked, LONGEST_WAIT_S)


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The hub's address. Raises CouldNotRun: HF_ENDPOINT is none, or HF_HUB_OFFLINE forbids asking it."""
    if environment.get(OFFLINE_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on"):
        raise CouldNotRun(f"{OFFLINE_VARIABLE} is set", "unset it to fetch, or copy the files from another machine")
    text = environment.get(ENDPOINT_VARIABLE, "").strip().rstrip("/") or DEFAULT_ENDPOINT
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.query or parts.fragment or not text.isprintable():
        raise CouldNotRun(
            f"{ENDPOINT_VARIABLE} is no address of a hub", "write https://HOST, without a user name; or unset it"
        )
    return text
