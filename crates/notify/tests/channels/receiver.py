"""An HTTP receiver for the tests: receiver.py HOST [CERTIFICATE KEY].

Prints its port, then each request as one line of JSON. The start of the path says how it answers."""
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        request = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
        print(json.dumps(request), flush=True)
        behaviour = urlsplit(self.path).path.split("/")[1].replace("-", "_")
        getattr(self, f"answer_{behaviour}", self.answer_ok)(body)

    do_DELETE = do_GET = do_POST

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def answer_ok(self, _):
        receipt = "rLqVuqTRh62UzxtmqiaLzQmVcPgiCy" if "priority=2" in _ else ""
        self.answer(200, json.dumps({"status": 1, "request": "r1", "receipt": receipt}).encode())

    def answer_fail(self, _):
        self.answer(500, b"out of order\x1b[2J")

    def answer_limited(self, _):
        self.answer(429, b"slow down", Retry_After="120")

    def answer_busy(self, _):
        self.answer(503, b"", Retry_After="Tue, 18 Nov 2025 10:05:00 GMT")

    def answer_gone(self, _):
        self.answer(410, b"channel_is_archived")

    def answer_missing(self, _):
        self.answer(404, b"page not found")

    def answer_echo(self, body):
        self.answer(400, f"bad {self.headers.get('Authorization')} {self.path} {body}".encode())

    def answer_hang(self, _):
        threading.Event().wait()

    def answer_hang_body(self, _):
        self.send_response(500)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.flush()
        threading.Event().wait()

    def answer_huge(self, _):
        self.endless(200)

    def answer_huge_error(self, _):
        self.endless(500)

    def endless(self, status):
        self.send_response(status)
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            self.close_connection = True

    def answer_redirect(self, _):
        query = parse_qs(urlsplit(self.path).query)
        self.answer(int(query["code"][0]), Location=query["to"][0])

    def answer_circle(self, _):
        self.answer(308, Location=self.path)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer((sys.argv[1], 0), Handler)
server.daemon_threads = True
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
