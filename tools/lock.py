"""Pin every dependency by version and hash: python -m tools.lock writes two lock files (needs the package index).

``requirements.lock``: the project with its development extras, at the newest versions that fit together. Its versions,
without hashes and so for any platform, are in ``constraints.txt``, which `make` installs with.
``requirements-oldest.lock``: what a user can install, at the oldest version that pyproject.toml allows, with the newest
test tools. Flower is left out there: one version of it allows only new versions of others. The federated extra is tried
at the version in ``requirements.lock``.

pip resolves both from nothing, and the hash of each file that it would install on this platform is written down.
``pip install --require-hashes`` then takes these files and no other.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tacit.files import write_text
from tools.dependencies import ROOT, normal

HOME = Path(__file__).parent.parent


@dataclass(frozen=True)
class Lock:
    """A lock file: the extras that it covers, and whether their dependencies are the oldest that are allowed."""

    file: str
    extras: tuple[str, ...]
    oldest: bool = False


CONSTRAINTS = "constraints.txt"
NEWEST = Lock("requirements.lock", ("dev", "peers"))
OLDEST = Lock("requirements-oldest.lock", ("figures", "data", "onnx", "peers", "test"), oldest=True)


def declared(extras: Iterable[str]) -> list[Requirement]:
    """What pyproject.toml asks for, for the core and these extras and those that they name."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    todo, found = [*project["dependencies"], *(line for extra in extras for line in optional[extra])], []
    while todo:
        need = Requirement(todo.pop())
        if normal(need.name) == ROOT:
            todo += [line for extra in need.extras for line in optional[extra]]
        elif need.marker is None or need.marker.evaluate():
            found.append(need)
    return found


def lower_bound(need: Requirement) -> str:
    """The oldest version that a requirement allows."""
    bounds = [part.version for part in need.specifier if part.operator in (">=", "==")]
    if len(bounds) != 1:
        raise SystemExit(f"{need} needs one lower bound, so that the oldest version can be tried.")
    return bounds[0]


def pins(wanted: Lock) -> list[str]:
    """What pip is bound to: PyTorch's version, and for the oldest lock every lower bound that a user can meet."""
    lines = [line for line in (HOME / CONSTRAINTS).read_text().splitlines() if line.startswith("torch==")]
    if wanted.oldest:
        tools = {normal(need.name) for need in declared(["test"])} - {normal(n.name) for n in declared([])}
        runtime = [need for need in declared(wanted.extras) if normal(need.name) not in tools]
        bounds = {normal(need.name): lower_bound(need) for need in runtime}
        lines += [f"{name}=={version}" for name, version in sorted(bounds.items()) if name != "torch"]
    return lines


def resolved(wanted: Lock) -> list[dict[str, Any]]:
    """What pip would install, as its report tells."""
    with tempfile.TemporaryDirectory() as place:
        constraints, report = Path(place, "pins.txt"), Path(place, "report.json")
        constraints.write_text("\n".join(pins(wanted)) + "\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(constraints), f"{HOME}[{','.join(wanted.extras)}]"]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"lock: pip found no versions for {wanted.file} that fit together (above).")
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return found


def lock(report: list[dict[str, Any]]) -> str:
    """The text of the lock file."""
    lines = [
        "# Written by python -m tools.lock (make lock); do not edit.",
        f"# For Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]} on "
        f"{platform.system()} {platform.machine()}, with PyTorch's CPU build.",
    ]
    found = {}
    for entry in report:
        name = normal(entry["metadata"]["name"])
        if name == ROOT:
            continue
        digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise SystemExit(f"pip reports no hash for {name}; use a pip of at least 22.2.")
        found[name] = f"{name}=={entry['metadata']['version']} \\\n    --hash=sha256:{digest}"
    return "\n".join([*lines, *(found[name] for name in sorted(found))]) + "\n"


def constraints(report: list[dict[str, Any]]) -> str:
    """The versions of a lock file, for pip's option -c."""
    versions = {normal(e["metadata"]["name"]): e["metadata"]["version"].split("+")[0] for e in report}
    lines = [f"{name}=={versions[name]}" for name in sorted(versions) if name != ROOT]
    return "\n".join(["# Written by python -m tools.lock: the versions that `make` installs.", *lines]) + "\n"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="?", choices=["newest", "oldest"], help="write this one only")
    only = parser.parse_args().only
    for name, wanted in (("newest", NEWEST), ("oldest", OLDEST)):
        if only in (None, name):
            report = resolved(wanted)
            write_text(HOME / wanted.file, lock(report))
            if wanted is NEWEST:
                write_text(HOME / CONSTRAINTS, constraints(report))
            print(f"Written: {wanted.file}")


if __name__ == "__main__":
    main()
