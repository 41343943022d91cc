"""Write the bill of materials of this installation, CycloneDX 1.6 in JSON: python -m tools.sbom dist/sbom.cdx.json."""

from __future__ import annotations

import argparse
import os
import uuid
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tacit.files import write_json
from tools.dependencies import ROOT, installed, normal, requirements


def bill_of_materials(extras: tuple[str, ...] = ()) -> dict[str, Any]:
    """Tacit and everything it needs at run time: names, versions, licences, and who needs whom."""
    distributions = installed(extras)
    components = {name: _component(distribution) for name, distribution in distributions.items()}
    root = components.pop(ROOT)
    edges = []
    for name, distribution in distributions.items():
        needs = {normal(need.name) for need in requirements(distribution, extras if name == ROOT else ())}
        below = sorted(_reference(distributions[need]) for need in needs if need in distributions)
        edges.append({"ref": _reference(distribution), "dependsOn": below})
    # Two builds of one release are to be alike where the builder says when it was.
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    content = "\n".join(_reference(distribution) for distribution in distributions.values())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"timestamp": moment.isoformat(timespec="seconds"), "component": root},
        "components": list(components.values()),
        "dependencies": edges,
    }


def _reference(distribution: metadata.Distribution) -> str:
    return f"pkg:pypi/{normal(distribution.metadata['Name'])}@{distribution.version.replace('+', '%2B')}"


def _component(distribution: metadata.Distribution) -> dict[str, Any]:
    about = distribution.metadata
    kind = "application" if normal(about["Name"]) == ROOT else "library"
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": _reference(distribution),
        "name": about["Name"],
        "version": distribution.version,
        "purl": _reference(distribution),
    }
    if expression := about.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif named := [
        c for c in about.get_all("Classifier") or () if c.startswith("License :: OSI Approved :: ")
    ]:
        component["licenses"] = [{"license": {"name": line.rpartition(" :: ")[2]}} for line in named]
    return component


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--extra", action="append", default=[])
    given = parser.parse_args()
    bill = bill_of_materials(tuple(given.extra))
    write_json(given.path, bill)
    print(f"{given.path}: {len(bill['components'])} components")


if __name__ == "__main__":
    main()
