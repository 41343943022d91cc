"""Checkpoint files: every bit counts, and nothing that is read can run, hang or escape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.faults.damage import HOSTILE

from tacit import FileError
from tacit.tensors import read_tensors, tensors_digest, write_tensors


@pytest.fixture
def written(tmp_path: Path) -> Path:
    tensors = {
        "a": torch.randn(3, 2),
        "b:weight": torch.arange(5),
        "empty": torch.empty(0),
        "one": torch.tensor(1.5),
    }
    write_tensors(tmp_path / "c.safetensors", tensors, {"step": 3, "names": ["x"]})
    return tmp_path / "c.safetensors"


def test_what_was_written_is_read(written: Path) -> None:
    tensors, numbers = read_tensors(written)
    assert numbers == {"step": 3, "names": ["x"]}
    assert tensors["a"].shape == (3, 2)
    assert tensors["one"] == 1.5


def test_what_a_file_holds_already_is_not_written_again_and_a_damaged_file_is(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    tensors = {name: torch.full((2,), index) for index, name in enumerate("abc")}
    write_tensors(path, tensors, {"step": 3})
    first, written = path.read_bytes(), path.stat().st_ino
    write_tensors(path, dict(reversed(tensors.items())), {"step": 3})
    assert path.stat().st_ino == written
    path.write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
    write_tensors(path, tensors, {"step": 3})
    assert read_tensors(path)[1] == {"step": 3}
    write_tensors(path, tensors, {"step": 4})
    assert read_tensors(path)[1] == {"step": 4}


def test_a_file_of_other_tensors_with_the_same_digest_is_written_anew(tmp_path: Path) -> None:
    """The digest runs over names and contents without saying where each ends."""
    path = tmp_path / "c.safetensors"
    one, two = torch.tensor([120, 121, 122], dtype=torch.uint8), torch.tensor([7, 8], dtype=torch.uint8)
    joined = {"a torch.uint8 (3,)xyzb": two}
    assert tensors_digest(joined) == tensors_digest({"a": one, "b": two})
    write_tensors(path, joined, None)
    write_tensors(path, {"a": one, "b": two}, None)
    assert set(read_tensors(path)[0]) == {"a", "b"}


def test_a_single_flipped_bit_is_found_wherever_it_is(written: Path) -> None:
    content = written.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        written.write_bytes(changed)
        with pytest.raises(FileError) as refused:
            read_tensors(written)
        assert "\n" not in str(refused.value)


def test_a_file_that_was_cut_is_found_wherever_it_ends(written: Path) -> None:
    content = written.read_bytes()
    for place in range(len(content)):
        written.write_bytes(content[:place])
        with pytest.raises(FileError):
            read_tensors(written)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_made_to_do_harm_is_refused(tmp_path: Path, what: str) -> None:
    marker = tmp_path / "struck"
    path = tmp_path / "run" / "inner" / "checkpoint.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(HOSTILE[what](marker))
    with pytest.raises(FileError):
        read_tensors(path)
    assert not marker.exists()
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == [path.name]


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    """The file is what it is said to be: pickle runs it."""
    import pickle

    pickle.loads(HOSTILE["a pickle"](tmp_path / "struck"))
    assert (tmp_path / "struck").is_dir()
