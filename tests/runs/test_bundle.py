"""A bundle: the same bytes every time, and no part of it can be swapped, deleted or edited unnoticed."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.errors import FileError
from tacit.jobs.export import export
from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.runs import make_key, sign
from tacit.runs.bundle import MANIFEST, NEEDED, unpacked, verify_bundle
from tacit.runs.certificate import certificate_page
from tacit.runs.certificate_file import certificate_to_record, load_certificate
from tacit.tensors import read_tensors, write_tensors

Parts = dict[str, bytes]


def make_run(folder: Path, name: str, shift: int) -> Path:
    rows = "\n".join(
        f"{i % 17 + shift},{'|<b>x' if i % 2 else 'y'},{'yes' if i % 17 > 8 else 'no'}" for i in range(300)
    )
    (folder / f"{name}.csv").write_text(f"a b,<script>,y\n{rows}\n")
    experiment = Experiment(
        data=DataConfig(str(folder / f"{name}.csv"), target="y"),
        method=MethodConfig("dp-sgd"),
        privacy=PrivacyConfig(epsilon=8, accountant="rdp"),
        training=TrainingConfig(batch_size=50, epochs=2.0),
    )
    run_job(experiment, folder / name, progress=False)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return make_run(folder, "run", 0)


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    return make_run(folder, "other", 5)


@pytest.fixture(scope="module")
def bundle(folder: Path, run: Path) -> Path:
    export(run, folder / "m.tacit", "tacit", use="Tests, and <i>nothing</i> else.")
    return folder / "m.tacit"


def parts_of(path: Path) -> Parts:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, parts: Parts) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def with_manifest(parts: Parts) -> Parts:
    """What somebody does who edits a part and knows how bundles are made."""
    record = json.loads(parts[MANIFEST])
    names = sorted(name for name in parts if not name.startswith("manifest."))
    record["parts"] = {name: hashlib.sha256(parts[name]).hexdigest() for name in names}
    return {**parts, MANIFEST: json.dumps(record).encode()}


def test_the_same_run_gives_the_same_bytes_and_they_verify(run: Path, bundle: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "m.tacit", "tacit", use="Tests, and <i>nothing</i> else.")
    assert (tmp_path / "m.tacit").read_bytes() == bundle.read_bytes()
    verdict = verify_bundle(bundle)
    assert verdict.agrees
    assert verdict.for_release
    assert verdict.epsilon is None
    assert any("no ledger" in sentence for sentence in verdict.unchecked)
    assert verdict.statement is not None
    # Rounded up, as that of the run.
    assert "claims epsilon = 2.99253." in str(dataclasses.replace(verdict, claimed=2.992521))


def test_nothing_raw_and_nothing_of_this_machine_is_in_it(run: Path, bundle: Path) -> None:
    content = bundle.read_bytes()
    assert str(run.parent).encode() not in content
    assert set(parts_of(bundle)) == {MANIFEST, *NEEDED, "schema.toml", "settings.toml"}
    assert b"\nseed" not in content
    card = parts_of(bundle)["model_card.md"].decode()
    assert "<script>" not in card.replace("`<script>`", "")
    assert "<i>" not in card.replace("\\<i\\>", "")
    for words in ("ε = 8 promised", "unit of privacy", "Not covered by ε", "95 % interval", "Intended use"):
        assert words in card


@pytest.mark.parametrize("name", [*NEEDED, "schema.toml", "settings.toml"])
def test_a_part_that_is_edited_or_gone_is_noticed(bundle: Path, tmp_path: Path, name: str) -> None:
    parts = parts_of(bundle)
    flipped = bytearray(parts[name])
    flipped[len(flipped) // 2] ^= 1
    for changed in ({**parts, name: bytes(flipped)}, {k: v for k, v in parts.items() if k != name}):
        path = packed(tmp_path / "changed.tacit", changed)
        assert not verify_bundle(path).agrees
        with pytest.raises(FileError, match="cannot be used"), unpacked(path):
            pass


@pytest.mark.parametrize("name", ["model.safetensors", "schema.toml", "inputs.json", "certificate.txt"])
def test_a_part_of_another_run_is_noticed_even_with_a_new_manifest(
    bundle: Path, other: Path, tmp_path: Path, name: str
) -> None:
    parts = parts_of(bundle)
    swapped = with_manifest({**parts, name: (other / name).read_bytes()})
    if name == "inputs.json":
        assert (other / name).read_bytes() != parts[name]
    verdict = verify_bundle(packed(tmp_path / "swapped.tacit", swapped))
    assert not verdict.agrees
    assert any(name in problem for problem in verdict.problems), verdict.problems


def test_a_model_with_other_weights_is_noticed_by_its_digest_alone(bundle: Path, tmp_path: Path) -> None:
    parts = parts_of(bundle)
    (tmp_path / "model.safetensors").write_bytes(parts["model.safetensors"])
    tensors, numbers = read_tensors(tmp_path / "model.safetensors")
    name = next(iter(tensors))
    write_tensors(tmp_path / "model.safetensors", {**tensors, name: tensors[name] + 1e-3}, numbers)
    swapped = with_manifest({**parts, "model.safetensors": (tmp_path / "model.safetensors").read_bytes()})
    verdict = verify_bundle(packed(tmp_path / "other.tacit", swapped))
    assert verdict.problems == (
        "model.safetensors is not the one that the certificate speaks of: it has another digest",
    )


def test_a_missing_model_is_noticed_even_with_a_new_manifest(bundle: Path, tmp_path: Path) -> None:
    parts = {name: part for name, part in parts_of(bundle).items() if name != "model.safetensors"}
    verdict = verify_bundle(packed(tmp_path / "gone.tacit", with_manifest(parts)))
    assert any("model.safetensors is missing" in problem for problem in verdict.problems)


def test_the_ledger_goes_along_if_asked_and_is_recounted(run: Path, other: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "paid.tacit", "tacit", with_ledger=True)
    verdict = verify_bundle(tmp_path / "paid.tacit")
    assert verdict.agrees, verdict.problems
    assert verdict.epsilon is not None
    assert verdict.claimed is not None
    assert verdict.epsilon <= verdict.claimed
    parts = parts_of(tmp_path / "paid.tacit")
    for name in ("ledger.jsonl", "plan.json"):
        swapped = with_manifest({**parts, name: (other / name).read_bytes()})
        if swapped[name] == parts[name]:
            continue  # both runs have the same plan
        assert not verify_bundle(packed(tmp_path / f"{name}.tacit", swapped)).agrees


EDITS: dict[str, object] = {
    "not_covered": ("nothing",),
    "unit": "all patients of a hospital",
    "relation": "zero-out",
    "examples": 10**6,
    "method": "magic",
    "phases": (),
    "tuning": "nothing was ever compared",
    "for_release": False,
}


@pytest.fixture(scope="module")
def paid(folder: Path, run: Path) -> Parts:
    export(run, folder / "paid.tacit", "tacit", with_ledger=True)
    return parts_of(folder / "paid.tacit")


@pytest.mark.parametrize("field", EDITS)
def test_a_certificate_that_says_otherwise_than_the_ledger_beside_it_is_noticed(
    paid: Parts, run: Path, tmp_path: Path, field: str
) -> None:
    """Whoever edits it may write its page, its statement and the manifest anew."""
    edited = dataclasses.replace(load_certificate(run / "certificate.json"), **{field: EDITS[field]})  # type: ignore[arg-type]
    changed = {
        "certificate.json": json.dumps(certificate_to_record(edited)).encode(),
        "certificate.txt": certificate_page(edited).encode(),
    }
    verdict = verify_bundle(packed(tmp_path / "edited.tacit", with_manifest({**paid, **changed})))
    assert not verdict.agrees


@pytest.mark.parametrize("name", ["plan.json", "run.json", "ledger.head"])
def test_a_ledger_comes_with_all_that_it_is_compared_with(paid: Parts, tmp_path: Path, name: str) -> None:
    rest = {part: content for part, content in paid.items() if part != name}
    verdict = verify_bundle(packed(tmp_path / "less.tacit", with_manifest(rest)))
    assert any(f"{name} is missing" in problem for problem in verdict.problems)


def test_signatures_bind_the_bundle_or_at_least_the_certificate(
    run: Path, bundle: Path, tmp_path: Path
) -> None:
    public, stranger = make_key(tmp_path / "lab.key"), make_key(tmp_path / "stranger.key")
    assert not verify_bundle(bundle, trust=public).agrees
    export(run, tmp_path / "signed.tacit", "tacit", key=tmp_path / "lab.key")
    assert verify_bundle(tmp_path / "signed.tacit", trust=public).agrees
    assert not verify_bundle(tmp_path / "signed.tacit", trust=stranger).agrees
    parts = parts_of(tmp_path / "signed.tacit")
    card = with_manifest({**parts, "model_card.md": b"# Cures everything\n"})
    card["manifest.sig"] = parts["manifest.sig"]
    assert any("not genuine" in p for p in verify_bundle(packed(tmp_path / "card.tacit", card)).problems)
    shutil.copytree(run, tmp_path / "run")
    sign(tmp_path / "run", tmp_path / "lab.key")
    export(tmp_path / "run", tmp_path / "certificate.tacit", "tacit")
    verdict = verify_bundle(tmp_path / "certificate.tacit", trust=public)
    assert verdict.agrees
    assert any("not for model_card.md" in sentence for sentence in verdict.unchecked)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda parts: {**parts, "../evil": b"x"},
        lambda parts: {**parts, "other.bin": b"x"},
        lambda parts: {name: part for name, part in parts.items() if name != MANIFEST},
        lambda parts: {**parts, MANIFEST: b"{}"},
        lambda parts: {**parts, MANIFEST: b"["},
        lambda parts: {**parts, MANIFEST: b'{"format": "tacit-bundle", "version": 9, "parts": {}}'},
    ],
)
def test_an_archive_that_is_no_bundle_is_a_sentence(
    bundle: Path, tmp_path: Path, spoil: Callable[[Parts], Parts]
) -> None:
    path = packed(tmp_path / "spoilt.tacit", spoil(parts_of(bundle)))
    with pytest.raises(FileError):
        verify_bundle(path)


def test_parts_that_would_unpack_to_more_than_the_file_are_refused(bundle: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts_of(bundle).items():
            archive.writestr(name, part if name == MANIFEST else part + bytes(10**6))
    (tmp_path / "bomb.tacit").write_bytes(buffer.getvalue())
    with pytest.raises(FileError, match="packed in another way"):
        verify_bundle(tmp_path / "bomb.tacit")


def test_export_refuses_what_it_cannot_write(run: Path, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="already exists"):
        export(run, bundle, "tacit")
    with pytest.raises(FileError, match="no run directory"):
        export(tmp_path / "nowhere", tmp_path / "m.tacit", "tacit")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no run directory of tacit train"):
        export(tmp_path / "empty", tmp_path / "m.tacit", "tacit")
    assert not (tmp_path / "m.tacit").exists()
