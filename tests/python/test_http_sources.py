"""Sources on web servers: how a changed file is recognised, by what the server says of its versions."""

import http.server
import threading

import caju as cj
import pytest


class Files(http.server.ThreadingHTTPServer):
    """Serves one CSV file, with ranges, and with the given headers about its version."""

    def __init__(self, headers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.headers, self.content = headers, b""
        # Whether the last row changes each time that the whole file has been read.
        self.changes = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def write(self, rows):
        self.content = b"x\n" + b"".join(b"%06d\n" % row for row in rows)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/rows.csv"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content, status = self.server.content, 200
        etag = self.server.headers.get("ETag")
        match = self.headers.get("If-Match")
        # RFC 9110: `If-Match` compares strongly, and a weak e-tag is equal to none.
        if match is not None and (match != etag or match.startswith("W/")):
            content, status = b"", 412
        elif "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            status = 206
            total, end = len(content), min(int(last or len(content) - 1), len(content) - 1)
            content = content[int(first) : end + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end}/{total}")
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            if status == 206 and len(content) == total and self.server.changes:
                self.server.content = content[:-7] + b"%06d\n" % (int(content[-7:]) + 1)
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(**headers):
        servers.append(Files({name.replace("_", "-"): value for name, value in headers.items()}))
        servers[-1].write(range(1000))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def read(url, version="listed"):
    rows = cj.from_yaml(f"source: {{ csv: {{ path: '{url}', version: {version} }} }}")
    return [int(row["x"]) for row in rows]


TIME = "Sun, 29 Nov 2026 08:00:00 GMT"


@pytest.mark.parametrize("headers", [{"ETag": '"1"'}, {"ETag": 'W/"1"'}, {"Last_Modified": TIME}])
def test_a_file_is_read_by_what_the_server_says_of_its_version(serve, headers):
    assert read(serve(**headers).url) == list(range(1000))


def test_a_file_that_a_server_gives_no_version_is_read_by_its_content_alone(serve):
    server = serve()
    with pytest.raises(cj.CajuError, match="neither an e-tag nor a time of modification.*`version: content`"):
        read(server.url)
    assert read(server.url, "content") == list(range(1000))
    server.write(range(1000, 2000))
    assert read(server.url, "content") == list(range(1000, 2000))


def test_a_file_without_a_version_that_changes_while_it_is_read_is_an_error(serve):
    server = serve()
    # Above 512 KiB: rows are read in several requests, and only a hash reads the whole file in one.
    server.write(range(100_000, 200_000))
    assert read(server.url, "content") == list(range(100_000, 200_000))
    # As many bytes after each hash, and never the same: the rows are not those that were hashed.
    server.changes = True
    with pytest.raises(cj.CajuError, match=r"rows\.csv: the file changed while it was read \(its content is another one\)"):
        read(server.url, "content")
