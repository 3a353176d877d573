"""Runs a Python command-line client as forks of a process that has already imported it.

forked.py serve SOCKET PROGRAM MODULE:FUNCTION [MODULE...]   imports the modules, prints "ready", serves until its standard input ends;
                                                             FUNCTION is called with the arguments
forked.py run SOCKET ARGUMENT...                             runs one command in a fork, with this process's files, directory and variables
"""
import os
import socket
import sys


def serve(path, program, main, *also):
    import importlib
    import select
    import signal

    # Clients read their own name from sys.argv, some of them while they are imported.
    sys.argv = [program]
    module, function = main.split(":")
    function = getattr(importlib.import_module(module), function)
    for name in also:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    while True:
        # The server does not wait for its children. Each child sends its exit status to the caller itself.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return
        peer, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            answer(peer, program, function)
        peer.close()


def answer(peer, program, function):
    import json

    text, files, _, _ = socket.recv_fds(peer, 65536, 3)
    while piece := peer.recv(65536):
        text += piece
    asked = json.loads(text)
    for target, file in enumerate(files):
        os.dup2(file, target)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    sys.argv = [program, *asked["arguments"]]
    status = 1
    try:
        status = function(asked["arguments"])
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    if isinstance(status, str):
        print(status, file=sys.stderr)
    status = status if isinstance(status, int) else 1 if status else 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    peer.sendall(str(status).encode())
    os._exit(0)


def run(path, *arguments):
    import json

    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    asked = {"arguments": arguments, "directory": os.getcwd(), "variables": dict(os.environ)}
    text = json.dumps(asked).encode()
    sent = socket.send_fds(peer, [text], [0, 1, 2])
    peer.sendall(text[sent:])
    peer.shutdown(socket.SHUT_WR)
    status = peer.recv(16)
    sys.exit(int(status) if status else "the command ended without a status")


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](*sys.argv[2:])
