"""The list of what is in an image, in CycloneDX's form: Python packages, Debian's, Python itself, rebuilt libraries.

    python -m sm86.image.steps.sbom --packages FILE [--assembled FILE] --out FILE

`--packages` is what cyclonedx-py wrote of the virtual environment. No time and no serial number is in it, so two
builds of the same packages give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sm86.errors import CouldNotRun, Sm86Error
from sm86.json_text import parse as parse_json

DPKG_STATUS = Path("/var/lib/dpkg/status")


def debian_packages(status: str) -> Iterator[dict[str, str]]:
    """A component for each installed package in the text of dpkg's status file, in its order."""
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed") and "Version" in fields:
            name, version, arch = fields["Package"], fields["Version"], fields.get("Architecture", "all")
            quoted = version.replace("%", "%25").replace("+", "%2B").replace(":", "%3A")
            purl = f"pkg:deb/debian/{name}@{quoted}?arch={arch}"
            yield {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def rebuilt(assembled: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A component for each library that was compiled here, with its SHA-256."""
    libraries = assembled.get("libraries", {})
    for name in sorted((assembled.get("native") or {}).get("libraries", {})):
        yield {
            "type": "file",
            "name": name,
            "bom-ref": f"file:{name}",
            "hashes": [{"alg": "SHA-256", "content": libraries[name]["sha256"]}],
            "description": f"compiled for SM 8.6 from {assembled['native']['source']}",
        }


def complete(packages: dict[str, Any], python: str, status: str, assembled: dict[str, Any]) -> dict[str, Any]:
    """cyclonedx-py's document with the other components added and all of them in order."""
    others: list[dict[str, Any]] = [
        {"type": "platform", "name": "python", "version": python, "bom-ref": f"pkg:generic/python@{python}"},
        *debian_packages(status),
        *rebuilt(assembled),
    ]
    components = sorted([*packages.get("components", []), *others], key=lambda item: str(item.get("bom-ref")))
    return {**packages, "components": components}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sm86.image.steps.sbom")
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--assembled", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        try:
            packages = parse_json(options.packages.read_bytes())
            assembled = parse_json(options.assembled.read_bytes()) if options.assembled else {}
            status = DPKG_STATUS.read_text()
        except (OSError, ValueError) as error:
            raise CouldNotRun(f"the SBOM cannot be made: {error}", "see the step before this one") from None
        document = complete(packages, platform.python_version(), status, assembled)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    except Sm86Error as error:
        print(f"{error.what}\n  {error.mend}", file=sys.stderr)
        return error.exit_code
    print(f"{len(document['components'])} components")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
