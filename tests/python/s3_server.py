"""A small S3 server on the loopback, with its objects in memory. It answers what the cache asks of a store, and nothing else."""

import hashlib
import http.server
import re
import threading
import urllib.parse


class S3Server:
    """`environment` has the variables with which caju finds the server. `objects` has the bytes of each `bucket/key`. Objects of
    more than `max_bytes` are refused. `reads` has the keys of the objects that were read.
    """

    def __init__(self):
        self.objects, self.lock, self.max_bytes, self.reads = {}, threading.Lock(), 1 << 40, []
        handler = type("Handler", (_Handler,), {"store": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.environment = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        }

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _tag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in {**headers, "Content_Length": len(body)}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    @property
    def key(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")

    @property
    def query(self):
        return urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_GET(self):
        if "list-type" in self.query:
            return self.list_objects(self.query["prefix"][0])
        with self.store.lock:
            data = self.store.objects.get(self.key)
            self.store.reads.append(self.key)
        if data is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        described = {"ETag": _tag(data), "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self.answer(200, data, **described)
        start = int(span[1]) if span[1] else max(len(data) - int(span[2]), 0)
        end = min(int(span[2]) + 1, len(data)) if span[1] and span[2] else len(data)
        self.answer(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}", **described)

    def list_objects(self, prefix):
        bucket = self.key + "/"
        with self.store.lock:
            found = {key.removeprefix(bucket): data for key, data in self.store.objects.items() if key.startswith(bucket + prefix)}
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>{_tag(data)}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, data in sorted(found.items())
        )
        self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode())

    def do_PUT(self):
        data = self.body()
        if len(data) > self.store.max_bytes:
            return self.answer(400, b"<Error><Code>EntityTooLarge</Code></Error>")
        with self.store.lock:
            before = self.store.objects.get(self.key)
            is_refused = before is not None and self.headers.get("If-None-Match") == "*"
            if "If-Match" in self.headers:
                is_refused = before is None or _tag(before) != self.headers["If-Match"]
            if not is_refused:
                self.store.objects[self.key] = data
        if is_refused:
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        self.answer(200, ETag=_tag(data))

    def do_POST(self):
        body = self.body().decode()
        if "delete" not in self.query:
            return self.answer(501)
        with self.store.lock:
            for key in re.findall(r"<Key>(.*?)</Key>", body):
                self.store.objects.pop(f"{self.key}/{key}", None)
        self.answer(200, b"<DeleteResult></DeleteResult>")
