"""What Tacit is made of: every dependency pinned by hash, and a bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tools.dependencies import installed, normal
from tools.lock import NEWEST, OLDEST, Lock, declared, lower_bound
from tools.lock import lock as written
from tools.sbom import bill_of_materials

ROOT = Path(__file__).parent.parent
PINS = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


def pins(lock: Lock) -> dict[str, Version]:
    text = (ROOT / lock.file).read_text()
    found = {name: Version(version) for name, version, _ in PINS.findall(text)}
    assert len(found) == sum("==" in line for line in text.splitlines()), "every pin has its hash"
    return found


@pytest.mark.parametrize("lock", [NEWEST, OLDEST], ids=lambda lock: lock.file)
def test_every_dependency_that_is_declared_is_pinned_at_a_version_it_allows(lock: Lock) -> None:
    found = pins(lock)
    for need in declared(lock.extras):
        assert normal(need.name) in found, f"run make lock: {need.name} is not in {lock.file}"
        assert found[normal(need.name)] in need.specifier, f"run make lock: {need} in {lock.file}"


def test_the_oldest_lock_holds_every_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, user_extras = pins(OLDEST), ("figures", "data", "onnx", "text", "integrations")
    assert set(user_extras) | {"federated"} == set(project["optional-dependencies"]) - {
        *("test", "dev", "docs", "browser", "peers", "opponents")
    }, "an extra that a user installs belongs in the oldest lock"
    for need in declared(user_extras):
        assert found[normal(need.name)] in Requirement(f"x=={lower_bound(need)}").specifier


def test_a_dependency_without_a_lower_bound_is_noticed() -> None:
    assert lower_bound(Requirement("a>=1.5,<2")) == "1.5"
    assert lower_bound(Requirement("a==0.1")) == "0.1"
    with pytest.raises(SystemExit, match="needs one lower bound"):
        lower_bound(Requirement("a<2"))


@pytest.mark.parametrize("lock", [NEWEST, OLDEST], ids=lambda lock: lock.file)
def test_pytorch_is_pinned_alike_in_all_files(lock: Lock) -> None:
    (line,) = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x.startswith("torch==")]
    assert pins(lock)["torch"] in Requirement(line).specifier


def test_make_installs_the_versions_of_the_newest_lock() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    without_build = {name: version.public for name, version in pins(NEWEST).items()}
    assert lines == [f"{name}=={version}" for name, version in sorted(without_build.items())]


def test_a_file_without_a_hash_is_not_locked() -> None:
    entry = {"metadata": {"name": "A_b", "version": "1.0"}, "download_info": {"url": "x"}}
    with pytest.raises(SystemExit, match="no hash for a-b"):
        written([entry])
    entry["download_info"] = {"archive_info": {"hashes": {"sha256": "0" * 64}}}
    assert PINS.findall(written([entry])) == [("a-b", "1.0", "0" * 64)]


def test_the_bill_names_what_is_installed_and_who_needs_whom() -> None:
    bill = bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "tacit-dp"
    named = {normal(component["name"]): component for component in bill["components"]}
    assert {"torch", "numpy", "cryptography", "safetensors"} <= set(named)
    assert named["torch"]["version"] == installed()["torch"].version
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)
    known = {*references, bill["metadata"]["component"]["bom-ref"]}
    assert {edge["ref"] for edge in bill["dependencies"]} == known
    assert all(set(edge["dependsOn"]) <= known for edge in bill["dependencies"])
    (root,) = [edge for edge in bill["dependencies"] if edge["ref"].startswith("pkg:pypi/tacit-dp@")]
    assert any(reference.startswith("pkg:pypi/torch@") for reference in root["dependsOn"])


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    path = tmp_path / "sbom.cdx.json"
    subprocess.run([sys.executable, "-m", "tools.sbom", str(path)], cwd=ROOT, check=True, capture_output=True)
    assert json.loads(path.read_text())["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_the_bill_fits_the_schema() -> None:
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="cyclonedx-python-lib is not installed"
    )
    from cyclonedx.schema import SchemaVersion

    validator = validation.JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill_of_materials())) is None
