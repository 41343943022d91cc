"""Pin every dependency by version and hash: python -m tools.lock writes requirements.lock (needs the package index).

pip resolves the project with its development extras at the versions that are installed here, and the hash of each file
it would install on this platform is written down. ``pip install --require-hashes`` then takes these files and no other.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tacit.files import write_text
from tools.dependencies import ROOT, installed, normal

EXTRAS = ("dev", "peers")


def resolved(root: Path) -> list[dict[str, Any]]:
    """What pip would install, as its report tells."""
    pins = [f"{name}=={found.version}" for name, found in installed(EXTRAS).items() if name != ROOT]
    with tempfile.TemporaryDirectory() as place:
        constraints, report = Path(place, "pins.txt"), Path(place, "report.json")
        constraints.write_text("\n".join(pins) + "\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(constraints), f"{root}[{','.join(EXTRAS)}]"]
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return found


def lock(report: list[dict[str, Any]]) -> str:
    """The text of the lock file."""
    lines = [
        "# Written by python -m tools.lock (make lock); do not edit.",
        f"# For Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]} on "
        f"{platform.system()} {platform.machine()}, with PyTorch's CPU build.",
    ]
    pins = {}
    for entry in report:
        name = normal(entry["metadata"]["name"])
        if name == ROOT:
            continue
        digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise SystemExit(f"pip reports no hash for {name}; use a pip of at least 22.2.")
        pins[name] = f"{name}=={entry['metadata']['version']} \\\n    --hash=sha256:{digest}"
    return "\n".join([*lines, *(pins[name] for name in sorted(pins))]) + "\n"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, nargs="?", default=Path("requirements.lock"))
    write_text(parser.parse_args().path, lock(resolved(Path(__file__).parent.parent)))


if __name__ == "__main__":
    main()
