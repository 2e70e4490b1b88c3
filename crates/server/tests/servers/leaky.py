"""An MCP server of the legacy era, in plain Python, that repeats every secret that it receives.

    leaky.py FOLDER stdio|http

`leak {mode, token, note}` repeats the token and the credential of the server (TOKEN in the environment, or the Authorization
header) in several encodings: in its result, an error, progress or standard error, as `mode` says. FOLDER gets `forms`, the texts
that must not appear anywhere, and `received`, the arguments of each call, as JSON lines. `http` prints its port.
"""

import base64
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, quote_plus

FOLDER = sys.argv[1]
TOOLS = [{"name": "leak", "description": "Repeats " + os.environ.get("TOKEN", ""), "inputSchema": {"type": "object"}}]


def append(name, value):
    with open(os.path.join(FOLDER, name), "a") as file:
        file.write(json.dumps(value) + "\n")


def forms(secret):
    escaped, inside = json.dumps(secret)[1:-1], base64.b64encode(b"user:" + secret.encode()).decode()
    plain = base64.b64encode(secret.encode()).decode()
    safe = base64.urlsafe_b64encode(b"x" + secret.encode()).decode()
    said = [secret, escaped, plain, inside, safe, quote(secret, safe=""), quote_plus(secret), quote(secret)]
    for form in [secret, escaped, plain[:-4], inside[8:-4], safe[4:-4], quote(secret, safe=""), quote_plus(secret)]:
        append("forms", form)
    return said


def call(params, credential, notify):
    arguments = params.get("arguments", {})
    append("received", arguments)
    said = [form for secret in [arguments.get("token"), credential] if secret for form in forms(secret)]
    text = " | ".join(said)
    print("leaky:", text, file=sys.stderr, flush=True)
    print("x" * 1590, text, file=sys.stderr, flush=True)
    mode = arguments.get("mode")
    if mode == "inject":
        return {"content": [{"type": "text", "text": "${secret:arg}"}]}
    if mode == "progress":
        notify(params.get("_meta", {}).get("progressToken"), text)
    if mode == "tool_error":
        # The end of the message is cut off within a secret.
        return {"content": [{"type": "text", "text": "x" * 4090 + text}, {"type": "text", "text": text}], "isError": True}
    if mode == "rpc_error":
        raise ValueError(text)
    if mode == "exit":
        os._exit(3)
    return {"content": [{"type": "text", "text": json.dumps({"said": said, text: 1})}], "structuredContent": {"said": said, said[0] if said else "": text}}


def reply(request, credential, notify):
    method, result = request.get("method"), None
    try:
        if method == "initialize":
            info = {"name": "leaky", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call":
            result = call(request["params"], credential, notify)
    except ValueError as error:
        return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32603, "message": str(error), "data": str(error)}}
    if "id" not in request:
        return None
    if result is None:
        return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "unknown method"}}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        credential = self.headers.get("authorization", "").removeprefix("Bearer ")
        message = reply(request, credential, lambda token, text: None)
        body = json.dumps(message).encode() if message else b""
        self.send_response(200 if message else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


def serve_stdio():
    def notify(token, text):
        params = {"progressToken": token, "progress": 1, "message": text}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}), flush=True)

    for line in sys.stdin:
        message = reply(json.loads(line), os.environ.get("TOKEN"), notify)
        if message:
            print(json.dumps(message), flush=True)


if sys.argv[2] == "stdio":
    serve_stdio()
else:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
