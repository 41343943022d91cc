from __future__ import annotations

import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tacit.data.sources import Source, fetch, find_or_fetch
from tacit.errors import FileError

BODY = bytes(range(256)) * 500
MD5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inner.csv", BODY)
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    requests: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).requests.append((self.path, wanted))
        if self.path == "/absent":
            self.send_error(404)
            return
        body = {"/zip": zipped(), "/gz": gzip.compress(BODY)}.get(self.path, BODY)
        start = (
            int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.path != "/whole" else 0
        )
        if start > len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut = len(body) // 2 if self.path == "/cut" and not start else len(body)
        self.wfile.write(body[start:cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.requests = []
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    thread.join()
    http.server_close()


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_fetched_once_checked_and_in_place(server: str, tmp_path: Path) -> None:
    for digest in (MD5, hashlib.sha256(BODY).hexdigest()):
        source = Source(f"{server}/file", f"{digest[:4]}/a.bin", digest)
        assert fetch(source, tmp_path).read_bytes() == BODY
        assert fetch(source, tmp_path).read_bytes() == BODY
    assert len(Handler.requests) == 2
    assert all(not Path(name).name.startswith(".") for name in names(tmp_path))


def test_wrong_checksum_leaves_nothing(server: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not the known file"):
        fetch(Source(f"{server}/file", "a.bin", "0" * 64), tmp_path)
    assert names(tmp_path) == []


def test_answer_404_leaves_nothing(server: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="answered 404"):
        fetch(Source(f"{server}/absent", "a.bin", MD5), tmp_path)
    assert names(tmp_path) == []


def test_truncated_body_is_noticed_and_resumed(server: str, tmp_path: Path) -> None:
    source = Source(f"{server}/cut", "a.bin", MD5)
    with pytest.raises(FileError, match=f"after {len(BODY) // 2} bytes.*resume"):
        fetch(source, tmp_path)
    assert names(tmp_path) == [".a.bin.part"]
    assert fetch(source, tmp_path).read_bytes() == BODY
    assert Handler.requests[-1] == ("/cut", f"bytes={len(BODY) // 2}-")
    assert names(tmp_path) == ["a.bin"]


def test_a_server_that_cannot_resume_starts_anew(server: str, tmp_path: Path) -> None:
    (tmp_path / ".a.bin.part").write_bytes(b"half")
    assert fetch(Source(f"{server}/whole", "a.bin", MD5), tmp_path).read_bytes() == BODY


def test_a_part_longer_than_the_file_is_dropped(server: str, tmp_path: Path) -> None:
    (tmp_path / ".a.bin.part").write_bytes(BODY + b"more")
    source = Source(f"{server}/file", "a.bin", MD5)
    with pytest.raises(FileError, match="start over"):
        fetch(source, tmp_path)
    assert fetch(source, tmp_path).read_bytes() == BODY


def test_gzip_is_checked_unpacked_and_zip_gives_its_member(server: str, tmp_path: Path) -> None:
    packed = fetch(Source(f"{server}/gz", "a.gz", MD5, unpacked=True), tmp_path)
    assert gzip.decompress(packed.read_bytes()) == BODY
    assert fetch(Source(f"{server}/zip", "a.csv", MD5, member="inner.csv"), tmp_path).read_bytes() == BODY
    assert names(tmp_path) == ["a.csv", "a.gz"]
    with pytest.raises(FileError, match="no readable other"):
        fetch(Source(f"{server}/zip", "b.csv", MD5, member="other"), tmp_path)
    with pytest.raises(FileError, match="no whole gzip"):
        fetch(Source(f"{server}/file", "b.gz", MD5, unpacked=True), tmp_path)
    assert names(tmp_path) == ["a.csv", "a.gz"]


def test_no_server_and_no_permission(tmp_path: Path) -> None:
    source = Source("http://127.0.0.1:9/x", "folder/a.bin", MD5)
    with pytest.raises(FileError, match="cannot be downloaded"):
        fetch(source, tmp_path)
    with pytest.raises(FileError, match="is not in"):
        find_or_fetch(tmp_path, "a.bin", source, download=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        fetch(source, tmp_path / "file")
