#!/usr/bin/env python3
"""Measures what silent connections, crowds and clients that never read cost others: perf/door.py [SCUDA]

It starts a server with the simulated GPU on this machine, and ends it again:

- silent: opens so many connections that say nothing, replaces those that the server closes, and measures how long a
  client needs to be let in and answered (scuda's "info").
- crowd: opens so many CUDA sessions at once, and one after the other.
- mute: what of a processor a client costs that asks for a gigabyte and reads nothing of it.
"""
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

TOKEN = b"a-token-for-measurements"
OP_PRIMARY, OP_COPY_D2H, OP_MEM_ALLOC = 0xF00A, 0xF003, 324
BASE, SLOTS = 0x100000000000, 1 << 20


def receive(c, n):
    """Reads n bytes."""
    b = b""
    while len(b) < n:
        d = c.recv(n - len(b))
        if not d:
            raise ConnectionError("the server closed the connection")
        b += d
    return b


class Session:
    """A connection that has been let in."""

    def __init__(self, port, kind, digest=""):
        self.c = socket.create_connection(("127.0.0.1", port))
        self.seq = 0
        hello = json.dumps({"Kind": kind, "Digest": digest, "ClientBase": BASE, "ClientSlots": SLOTS,
                            "ServerBase": 2 * BASE, "ServerSlots": SLOTS}).encode()
        self.c.sendall(b"SCUDA\r\n\x1a" + struct.pack("<II", 1, len(TOKEN)) + TOKEN + struct.pack("<I", len(hello)) +
                       hello)
        self.status, n = struct.unpack("<12xII", receive(self.c, 20))
        self.welcome = json.loads(receive(self.c, n))

    def command(self, op, payload, context=0, answer=1):
        """Sends a command of thread 1."""
        b = struct.pack("<IHHQQII", 32 + len(payload), op, answer, self.seq, context, 1, 0) + payload
        self.seq += len(b)
        self.c.sendall(struct.pack("<II", 0x46435553, len(b)) + b)

    def reply(self):
        """Gives the next reply's result and payload."""
        while True:
            n, kind, result = struct.unpack("<IH6xi16x", receive(self.c, 32))
            data = receive(self.c, (n + 7) & ~7)[:n]
            if kind == 1:
                return result, data


class Server:
    """A server of its own."""

    def __init__(self, scuda):
        self.folder = tempfile.TemporaryDirectory()
        path = self.folder.name + "/token"
        with open(path, "wb") as f:
            f.write(TOKEN)
        self.log = open(self.folder.name + "/log", "wb+")
        self.p = subprocess.Popen([scuda, "-l", "127.0.0.1:0", "--gpu", "sim", "--token-file", path, "--cache-dir",
                                   "none", "--max-sessions-per-client", "0", "--transport", "tcp"],
                                  stdout=subprocess.PIPE, stderr=self.log)
        self.port = int(self.p.stdout.readline().split(b":")[-1])
        self.digest = Session(self.port, "info").welcome["Digest"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait()
        self.log.close()
        self.folder.cleanup()


def silent(server, counts, rounds=40):
    """Prints how long clients need beside so many silent connections."""
    for n in counts:
        held, stop = [], threading.Event()

        def hold():
            while not stop.is_set():
                while len(held) < n and not stop.is_set():
                    held.append(socket.create_connection(("127.0.0.1", server.port)))
                for c in held[:]:
                    try:
                        if c.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b"":
                            raise ConnectionError
                    except BlockingIOError:
                        continue
                    except OSError:
                        c.close()
                        held.remove(c)
                stop.wait(0.05)

        t = threading.Thread(target=hold)
        t.start()
        while len(held) < n * 0.9 and not stop.wait(0.05):
            pass
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            Session(server.port, "info").c.close()
            times.append(time.perf_counter() - began)
        stop.set()
        t.join()
        for c in held:
            c.close()
        print(f"silent: {n} connections: median {1e3 * statistics.median(times):.1f} ms, longest "
              f"{1e3 * max(times):.1f} ms", flush=True)


def crowd(server, counts):
    """Prints how long so many sessions take to open, at once and one after the other."""
    for n in counts:
        sessions, failed = [], []

        def one():
            try:
                s = Session(server.port, "cuda", server.digest)
                (sessions if s.status == 0 else failed).append(s)
            except OSError as e:
                failed.append(e)

        for name, together in (("at once", True), ("one after the other", False)):
            began = time.perf_counter()
            if together:
                threads = [threading.Thread(target=one) for _ in range(n)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
            else:
                for _ in range(n):
                    one()
            took = time.perf_counter() - began
            print(f"crowd: {n} sessions {name}: {took:.1f} s, {len(sessions)} open, {len(failed)} failed", flush=True)
            for s in sessions:
                s.c.close()
            sessions.clear()
            failed.clear()
            time.sleep(2)


def processor(pid):
    """Gives the seconds of processor time of a process."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid):
    """Gives the children of all threads of a process."""
    own = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            own += [int(x) for x in f.read().split()]
    return own


def mute(server, seconds=10):
    """Prints what a client costs that reads nothing."""
    size = 1 << 20
    s = Session(server.port, "cuda", server.digest)
    s.command(OP_PRIMARY, struct.pack("<QQII", 0, BASE, 0, 0))
    s.reply()
    s.command(OP_MEM_ALLOC, struct.pack("<QQ", 1, size), BASE)
    at = struct.unpack("<QQ", s.reply()[1])[1]
    s.c.settimeout(3)
    try:
        for i in range(1024):  # downloads that nobody waits for; the last ones stay in the socket
            s.command(OP_COPY_D2H, struct.pack("<QQQII", at, size, 0, 65536 + i, 2), BASE, 0)
    except TimeoutError:
        pass
    time.sleep(3)
    workers = {p: processor(p) for p in children(server.p.pid)}
    time.sleep(seconds)
    worst = max(processor(p) - before for p, before in workers.items())
    print(f"mute: {100 * worst / seconds:.2f} % of a processor", flush=True)
    s.c.close()


def main():
    """Measures."""
    scuda = sys.argv[1] if len(sys.argv) > 1 else "build/scuda"
    with Server(scuda) as server:
        mute(server)
        crowd(server, (10, 40, 200))
        silent(server, (0, 200, 1000, 4000))


if __name__ == "__main__":
    main()
