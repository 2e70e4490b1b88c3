"""A faulty MCP server of the legacy era, in plain Python. It logs each call before it executes it.

    ledger.py LOG stdio|http [PORT]

Tools: `work {n, seconds}` writes `n` to LOG, sleeps and responds; `read` does the same and is annotated as read-only; `die`
ends the process; `big` responds with 40 MB; `garbage` responds with text that is not JSON; `refuse {status}` responds with that
HTTP status, with 429 only the first time; `typed {n}` does what `work` does and requires an integer.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOG = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
TOOLS = [
    {"name": "work", "inputSchema": {"type": "object"}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "die", "inputSchema": {"type": "object"}},
    {"name": "big", "inputSchema": {"type": "object"}},
    {"name": "garbage", "inputSchema": {"type": "object"}},
    {"name": "refuse", "inputSchema": {"type": "object"}},
    {"name": "typed", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
]
refused = []


class Refused(Exception):
    pass


def answer(request):
    method, params = request.get("method"), request.get("params", {})
    if method == "initialize":
        info = {"name": "ledger", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        arguments = params.get("arguments", {})
        os.write(LOG, f"{params['name']} {arguments.get('n')}\n".encode())
        if params["name"] == "die":
            os._exit(9)
        if params["name"] == "refuse" and (arguments["status"] != 429 or not refused):
            refused.append(arguments["status"])
            raise Refused(arguments["status"])
        if params["name"] == "big":
            return {"content": [{"type": "text", "text": "x" * 40_000_000}]}
        time.sleep(arguments.get("seconds", 0))
        return {"content": [{"type": "text", "text": f"did {arguments.get('n')}"}]}
    return None


def is_garbage(request):
    return request.get("params", {}).get("name") == "garbage"


def reply(request):
    result = answer(request)
    if result is None:
        return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def serve_stdio():
    lock = threading.Lock()

    def work(request):
        text = "{]\n" if is_garbage(request) else json.dumps(reply(request)) + "\n"
        with lock:
            sys.stdout.write(text)
            sys.stdout.flush()

    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            threading.Thread(target=work, args=(request,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, body = 202, b""
        try:
            if is_garbage(request):
                status, body = 200, b"{]"
            elif "id" in request:
                status, body = 200, json.dumps(reply(request)).encode()
        except Refused as refusal:
            status, body = refusal.args[0], b'{"message": "not like this"}'
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", "1")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


if sys.argv[2] == "stdio":
    serve_stdio()
else:
    Server(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
