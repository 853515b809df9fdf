"""A server with the API of OpenAI's chat models that follows a script, for agents whose frameworks ask a model over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALL = {"id": "call_1", "type": "function", "function": {"name": "switch_light", "arguments": '{"room": "hall", "on": true}'}}
USAGE = {"prompt_tokens": 30, "completion_tokens": 8, "total_tokens": 38}


class Model(BaseHTTPRequestHandler):
    """Answers a request as a model would."""

    def do_POST(self) -> None:
        """Answer, whole or as a stream of one piece."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]
        if last["role"] == "tool":
            message = {"role": "assistant", "content": "The light in the hall is on."}
        elif "light" in json.dumps(last["content"]).lower():
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        else:
            message = {"role": "assistant", "content": "You are welcome."}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        known = {"id": "chat_1", "created": 0, "model": "scripted"}
        if asked.get("stream"):
            delta = message | {"tool_calls": [{"index": 0, **call} for call in message.get("tool_calls", [])]}
            chunk = known | {"object": "chat.completion.chunk"}
            pieces = [
                chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
                chunk | {"choices": [], "usage": USAGE},
            ]
            kind, body = "text/event-stream", "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
        else:
            choice = {"index": 0, "message": message, "finish_reason": reason}
            kind, body = "application/json", json.dumps(known | {"object": "chat.completion", "choices": [choice], "usage": USAGE})
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


def serve() -> str:
    """Serve the model on this machine until the process ends; return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
