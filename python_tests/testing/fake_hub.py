"""The part of the Hugging Face hub's HTTP API that pushing, fetching and listing models uses, in memory, on localhost.

Files named *.safetensors go through its large file store, others into the commit, as on the hub.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class FakeHub(ThreadingHTTPServer):
    """repositories: commits by repository, each a dictionary of files; stored: large files by their SHA-256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_port}"

    def revision(self, repository: str) -> str:
        """The latest commit of a repository."""
        return hashlib.sha1(f"{repository} {len(self.repositories[repository])}".encode()).hexdigest()

    def tags(self, repository: str) -> list[str]:
        """The tags in the metadata of a repository's card."""
        import yaml

        card = self.repositories[repository][-1].get("README.md", b"").decode()
        metadata = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else {}
        return [*metadata.get("tags", []), *([metadata["library_name"]] if "library_name" in metadata else [])]


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _missing(self, code: str) -> None:
        self._answer({"error": code}, 404, {"X-Error-Code": code, "X-Error-Message": code})

    def do_POST(self) -> None:
        hub, body, path = self.server, self._body(), urlsplit(self.path).path
        hub.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            made = json.loads(body)
            name = f"{made['organization']}/{made['name']}" if made.get("organization") else made["name"]
            if name in hub.repositories:
                self._answer({"error": "exists", "url": f"{hub.url}/{name}"}, 409)
                return
            hub.repositories[name] = []
            self._answer({"url": f"{hub.url}/{name}", "name": name})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            mode = {True: "lfs", False: "regular"}
            files = [
                {"path": name, "uploadMode": mode[name.endswith(".safetensors")], "shouldIgnore": False}
                for name in names
            ]
            self._answer({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = {row["oid"]: {"upload": {"href": f"{hub.url}/store/{row['oid']}"}} for row in wanted}
            objects = [{**row, "actions": actions[row["oid"]]} for row in wanted]
            self._answer(
                {"transfer": "basic", "objects": objects}, headers={"Content-Type": "application/vnd.git-lfs+json"}
            )
        elif "/commit/" in path:
            repository = path.removeprefix("/api/models/").partition("/commit/")[0]
            lines = [json.loads(line) for line in body.splitlines()]
            files = dict(hub.repositories[repository][-1]) if hub.repositories[repository] else {}
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.stored[value["oid"]]
            hub.repositories[repository].append(files)
            sha = hub.revision(repository)
            self._answer({"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{repository}/commit/{sha}"})
        else:
            self._missing("EntryNotFound")

    def do_PUT(self) -> None:
        data = self._body()
        oid = self.path.removeprefix("/store/")
        assert hashlib.sha256(data).hexdigest() == oid
        self.server.stored[oid] = data
        self._answer({})

    def do_GET(self) -> None:
        hub, parts = self.server, urlsplit(self.path)
        path = parts.path
        hub.requests.append(f"{self.command} {path}")
        if path == "/api/models":
            asked = parse_qs(parts.query)
            author, tag = asked.get("author", [""])[0], asked.get("filter", [""])[0]
            names = [name for name in hub.repositories if name.startswith(f"{author}/") or not author]
            listed = [{"id": name, "sha": hub.revision(name), "tags": hub.tags(name)} for name in names]
            self._answer([model for model in listed if not tag or tag in model["tags"]])
        elif "/tree/" in path:
            files = hub.repositories[path.removeprefix("/api/models/").partition("/tree/")[0]][-1]
            rows = ((name, len(data), hashlib.sha1(data).hexdigest()) for name, data in files.items())
            self._answer([{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in rows])
        elif path.startswith("/api/models/"):
            self._about(*path.removeprefix("/api/models/").partition("/revision/")[::2])
        elif "/resolve/" in path:
            repository, _, rest = path.strip("/").partition("/resolve/")
            self._file(repository, *rest.partition("/")[::2])
        else:
            self._missing("EntryNotFound")

    do_HEAD = do_GET

    def _about(self, repository: str, revision: str) -> None:
        hub = self.server
        if not hub.repositories.get(repository):
            self._missing("RepoNotFound")
        elif revision not in ("", "main", hub.revision(repository)):
            self._missing("RevisionNotFound")
        else:
            names = [{"rfilename": name} for name in hub.repositories[repository][-1]]
            self._answer(
                {"id": repository, "sha": hub.revision(repository), "tags": hub.tags(repository), "siblings": names}
            )

    def _file(self, repository: str, revision: str, name: str) -> None:
        data = self.server.repositories[repository][-1].get(name)
        if data is None:
            self._missing("EntryNotFound")
            return
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": self.server.revision(repository)}
        self._answer(data, headers=headers)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that answers while the block runs."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
