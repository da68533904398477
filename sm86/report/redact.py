"""Takes out of texts what names a person or a machine, before a report is posted. Pure.

The same thing gets the same word everywhere in one report ("[host 1]"), so that a reader can still tell two apart.
What is measured, hashes and versions stay. Host and user names have no form of their own: they are known from the
records' own fields, from the machine that makes the report, and from those given.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sm86.record import Conditions, Number, Record, Verdict

LEAST_NAME = 3
"""A shorter name would be found inside ordinary words."""

COMMON = frozenset(
    ("root", "localhost", "user", "admin", "nobody", "none", "unknown", "linux", "docker", "local", "ubuntu", "debian")
)
"""Names that tell nothing about anyone."""

FORMAT = frozenset(one.name for made in (Record, Conditions, Number, Verdict) for one in fields(made)) | {
    "schema",
    "version",
}
"""Keys of every record. A user that is called like one ("host") must not break it, and the word names nobody."""

NAME_FIELDS = dict.fromkeys(("hostname", "host_name", "node", "nodename", "fqdn"), "host")
NAME_FIELDS |= dict.fromkeys(("user", "username", "user_name", "login", "owner"), "user")
SECRET_FIELDS = frozenset(
    ("api_key", "apikey", "token", "access_token", "hf_token", "password", "secret", "authorization")
)
SERIAL_FIELDS = frozenset(("serial", "serial_number", "mac", "mac_address", "board_id"))

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("key", re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S)),
    ("key", re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{6,}")),
    ("key", re.compile(r"\b(?:hf_|sk-|rk-|nvapi-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza)[\w-]{8,}")),
    ("key", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")),
    (
        "key",
        re.compile(
            r"""(?ix)(?:api[_-]?key|token|passw(?:or)?d|secret|authorization)["']?\s*[=:]\s*["']?"""
            r"""(?!none\b|null\b|true\b|false\b|\[)(?P<private>[^\s,'"\]\[}{]{6,})"""
        ),
    ),
    ("GPU", re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{2,}){2,}[\w/]*")),
    ("id", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("mail", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")),
    ("login", re.compile(r"\b[\w.-]+@(?=[\w.-]*[A-Za-z])[\w.-]+(?::\S*)?")),
    ("MAC", re.compile(r"\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}\b")),
    (
        "address",
        re.compile(r"(?<![\w:.])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(?![\w.]*\w)"),
    ),
    ("host", re.compile(r"(?<=://)(?!localhost\b|\[)[A-Za-z0-9][\w.-]*(?::\d+)?")),
    (
        "host",
        re.compile(
            r"(?i)\b[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*"
            r"\.(?:local|lan|internal|intranet|corp|home|localdomain|example|com|net|org|io|dev|edu|ai|de|cloud)\b"
        ),
    ),
    ("path", re.compile(r"(?<![\w.])[A-Za-z]:\\[^\s\"'<>|,;]+")),
    ("path", re.compile(r"(?<![\w./:\]<])(?:~[\w.-]*)?/(?!/)[^\s\"'`<>|,;()\[\]{}]+(?:/[^\s\"'`<>|,;()\[\]{}]*)*")),
    ("path", re.compile(r"(?<![\w./])(?:\.{1,2}/)+[^\s\"'`<>|,;()\[\]{}]+")),
)

PUBLIC_HOSTS = ("huggingface.co", "github.com", "arxiv.org")
_PLACEHOLDER = re.compile(r"\[(?:key|GPU|id|mail|login|address|MAC|host|user|name|path|serial) \d+\]")
_CHECKPOINT = re.compile(r"/models/([\w][\w.-]*)/?")


@dataclass(slots=True)
class Redactor:
    """Changes texts; knows what it has already replaced. names: host and user names, by their kind."""

    names: dict[str, str] = field(default_factory=dict)
    _seen: dict[tuple[str, str], int] = field(default_factory=dict)
    _names_re: re.Pattern[str] | None = None

    def learn(self, kind: str, name: object, asked: bool = False) -> None:
        """Take a name out wherever it stands; kind "host", "user" or "name". Names that tell nothing are left, unless
        a person asked for them."""
        text = str(name).strip()
        if (text and asked) or (len(text) >= LEAST_NAME and text.lower() not in COMMON | FORMAT and not text.isdigit()):
            self.names.setdefault(text.lower(), kind)
            self._names_re = None

    def learn_from(self, value: Any) -> None:
        """Learn the host and user names that JSON values name in their fields, and those in home folders."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                kind = NAME_FIELDS.get(str(key).lower())
                if kind and isinstance(item, str):
                    self.learn(kind, item)
                    self.learn(kind, item.split(".")[0])
                self.learn_from(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.learn_from(item)
        elif isinstance(value, str):
            for name in re.findall(r"/(?:home|Users)/([\w.-]+)|\\Users\\([\w.-]+)", value):
                self.learn("user", name[0] or name[1])
            for name, host in re.findall(r"\b([\w.-]+)@([A-Za-z][\w.-]*)", value):
                self.learn("user", name)
                self.learn("host", host)
            for host in re.findall(r"://([A-Za-z][\w-]*)", value):
                if not any(public.startswith(host.lower() + ".") for public in PUBLIC_HOSTS):
                    self.learn("host", host)

    def values(self, value: Any, key: str = "") -> Any:
        """JSON values of the same shape without what is private; keys that name a secret or a serial lose theirs."""
        if isinstance(value, Mapping):
            return {
                str(name) if name in FORMAT else self.text(str(name)): self.values(item, str(name).lower())
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.values(item, key) for item in value]
        if value in (None, "", True, False):
            return value
        if key in SECRET_FIELDS:
            return self._word("key", str(value))
        if key in SERIAL_FIELDS:
            return self._word("serial", str(value))
        if key in NAME_FIELDS and isinstance(value, str):
            return self._word(NAME_FIELDS[key], value)
        if key == "model" and isinstance(value, str) and (folder := _CHECKPOINT.fullmatch(value)):
            # the folder of the container; its name is the checkpoint's, which a report has to say
            return self.text(folder[1])
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """The text without what is private. What has been taken out already stays as it is, and a second look at what
        is left between finds what had been glued to it."""
        while (changed := self._once(text)) != text:
            text = changed
        return text

    def _once(self, text: str) -> str:
        parts: list[str] = []
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            parts += [self._plain(text[end : found.start()]), found[0]]
            end = found.end()
        return "".join((*parts, self._plain(text[end:])))

    def _plain(self, text: str) -> str:
        held: list[str] = []

        def hold(kind: str, private: str) -> str:
            held.append(self._word(kind, private))
            # what later patterns must not look into; no pattern knows these signs
            return f"\x02{len(held) - 1}\x03"

        for kind, pattern in _PATTERNS:
            text = pattern.sub(lambda found, kind=kind: _replace(found, kind, hold), text)  # type: ignore[misc]
        if (names := self._names()) is not None:
            text = names.sub(lambda found: hold(self.names[found[0].lower()], found[0]), text)
        while "\x02" in text and held:
            changed = re.sub(r"\x02(\d+)\x03", lambda found: held[int(found[1])], text)
            if changed == text:
                break
            text = changed
        return text

    def _names(self) -> re.Pattern[str] | None:
        if self._names_re is None and self.names:
            every = "|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True))
            self._names_re = re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{every})(?![A-Za-z0-9])")
        return self._names_re

    def _word(self, kind: str, private: str) -> str:
        number = self._seen.setdefault((kind, private), sum(1 for known, _ in self._seen if known == kind) + 1)
        return f"[{kind} {number}]"


def _replace(found: re.Match[str], kind: str, hold: Any) -> str:
    whole = found[0]
    if kind == "address" and not _is_address(whole):
        return whole
    if kind == "host" and any(whole.lower() == host or whole.lower().endswith("." + host) for host in PUBLIC_HOSTS):
        return whole
    if "private" in found.groupdict():
        start, end = found.span("private")
        return whole[: start - found.start()] + hold(kind, found["private"]) + whole[end - found.start() :]
    return str(hold(kind, whole))


def _is_address(text: str) -> bool:
    if not any(char.isdigit() for char in text):
        return False  # a name such as a::b of a program
    try:
        ipaddress.ip_address(text.rstrip(".:") if not text.endswith("::") else text)
    except ValueError:
        return False  # a time of day, a version
    return True


def redactor(
    values: Iterable[Any], hosts: Iterable[str] = (), users: Iterable[str] = (), asked: Iterable[str] = ()
) -> Redactor:
    """A redactor that knows the names in `values` and those given; asked: names that a person wants taken out."""
    made = Redactor()
    for name in asked:
        made.learn("name", name, asked=True)
    for host in hosts:
        made.learn("host", host)
        made.learn("host", host.split(".")[0])
    for user in users:
        made.learn("user", user)
    for value in values:
        made.learn_from(value)
    return made
