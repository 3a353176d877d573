#!/usr/bin/env python3
"""An extension of Stemma: gives the tag `quorum` to three nodes of a cluster at the most, and a role's other tags to all.

Run by stemma-extension@placement.socket it serves the socket that it is given; by hand it binds one:

    ./placement.py /tmp/placement.sock &
    curl --unix-socket /tmp/placement.sock -d @question.json http://localhost/
"""

import http.server
import json
import os
import socket
import socketserver
import sys

QUORUM = "quorum"
MOST = 3
LARGEST = 8 * 1024 * 1024
FIRST_GIVEN = 3  # As systemd numbers the sockets that it gives.


def decide(question):
    """The answer to a question (docs/extensions.md)."""
    left = MOST - sum(QUORUM in node["tags"] for node in question["nodes"])
    answers = []
    for asked in question["asked"]:
        tags = [tag for tag in asked["tags"] if tag != QUORUM]
        if QUORUM in asked["tags"] and left > 0:
            tags.append(QUORUM)
            left -= 1
        answers.append({"node": asked["node"], "role": asked["role"], "tags": tags})
    return {"answers": answers}


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10

    def do_POST(self):
        try:
            length = int(self.headers["content-length"])
            if not 0 <= length <= LARGEST:
                raise ValueError("it is too large")
            status, body = 200, json.dumps(decide(json.loads(self.rfile.read(length))))
        except (KeyError, TypeError, ValueError) as error:
            status, body = 400, f"the question cannot be read: {error}"
        body = body.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "controller"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main():
    if os.environ.get("LISTEN_FDS") == "1":
        server = Server("", Handler, bind_and_activate=False)
        server.socket = socket.socket(fileno=FIRST_GIVEN)
    else:
        server = Server(sys.argv[1], Handler)
    server.serve_forever()


if __name__ == "__main__":
    main()
