# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of an engine's socket, which spoils what it is told to spoil. It looks at the first request of
each connection; wsmfs makes no second one."""

import contextlib
import os
import re
import select
import socket
import threading


class Exchange:
    """One connection of a client, and what the fault does with it."""

    def __init__(self, client, target, head):
        self.client = client
        self.target = target
        self.head = head
        self.server = None

    def send(self):
        """The request goes to the engine."""
        self.server = socket.socket(socket.AF_UNIX)
        self.server.connect(self.target)
        self.server.sendall(self.head)

    def pump(self, take):
        """Both ways until an end; `take(data)` gets what the engine says and returns False for the end."""
        while True:
            for end in select.select([self.client, self.server], [], [])[0]:
                data = end.recv(65536)
                if end is self.server:
                    if not data or not take(data):
                        return
                elif data:
                    self.server.sendall(data)
                else:
                    return

    def wait_gone(self):
        """Until the client goes, or the proxy ends the connection."""
        with contextlib.suppress(OSError):
            while self.client.recv(65536):
                pass

    def close(self):
        for end in (self.client, self.server):
            if end:
                end.close()


# ── faults ──────────────────────────────────────────────────────────────────────────────────

class Fault:
    """What happens to requests that match. `hits` counts them, `holding` those that are under way."""

    def __init__(self, times=None):
        self.times = times
        self.hits = 0
        self.holding = 0
        self.done = False  # of those that say so

    def run(self, x):
        raise NotImplementedError


class Stall(Fault):
    """The engine never hears of it, and the client gets no answer."""

    def run(self, x):
        x.wait_gone()


class Swallow(Fault):
    """The engine does it, and the client gets no answer."""

    def run(self, x):
        x.send()
        x.pump(lambda data: True)
        x.wait_gone()


class Late(Fault):
    """The engine hears of it when the client is gone, or the proxy is healed."""

    def run(self, x):
        x.wait_gone()
        x.send()
        x.server.recv(65536)
        self.done = True


class Behind(Fault):
    """The engine hears of it after so many seconds, or if the client has gone by then, when `go` is set."""

    def __init__(self, seconds, times=None):
        super().__init__(times)
        self.seconds = seconds
        self.go = threading.Event()

    def run(self, x):
        if select.select([x.client], [], [], self.seconds)[0]:
            self.go.wait(60)
        x.send()
        answer = x.server.recv(65536)
        self.done = True
        x.client.sendall(answer)


class Meanwhile(Fault):
    """What `do()` does has happened between the engine's answer and the client's hearing of it."""

    def __init__(self, do, times=None):
        super().__init__(times)
        self.do = do

    def run(self, x):
        x.send()
        answer = x.server.recv(65536)
        self.do()
        x.client.sendall(answer)


class Cut(Fault):
    """The answer ends after so many bytes."""

    def __init__(self, size, times=None):
        super().__init__(times)
        self.size = size

    def run(self, x):
        left = self.size

        def take(data):
            nonlocal left
            x.client.sendall(data[:left])
            left -= len(data[:left])
            return left > 0
        x.send()
        x.pump(take)


class Trickle(Fault):
    """The answer comes a byte at a time, the next when the last was taken and `pause()` has returned."""

    def __init__(self, pause, times=None):
        super().__init__(times)
        self.pause = pause

    def run(self, x):
        def take(data):
            for byte in data:
                x.client.sendall(bytes([byte]))
                self.pause()
            return True
        x.send()
        x.pump(take)


class Say(Fault):
    """The engine never hears of it; the client is told this, and `endless` for ever after it."""

    def __init__(self, data, endless=b'', times=None):
        super().__init__(times)
        self.data = data.encode() if isinstance(data, str) else data
        self.endless = endless

    def run(self, x):
        x.client.sendall(self.data)
        while self.endless:
            x.client.sendall(self.endless)
        x.client.shutdown(socket.SHUT_WR)


def status(code, body='', times=None):
    return Say(f'HTTP/1.1 {code} Said\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}', times=times)


# ── the proxy ───────────────────────────────────────────────────────────────────────────────

class Proxy:
    """fail('POST /containers/create', Stall()) until heal(). Patterns are searched in "METHOD /path?query"
    without the version of the API; the latest one that matches counts."""

    def __init__(self, target, path):
        self.target = target
        self.socket = path
        self.host = f'unix://{path}'
        self.lock = threading.Lock()  # guards what follows
        self.faults = []
        self.spoilt = set()           # connections of which a fault has hold
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(256)
        self.seen = []                # the requests
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, pattern, fault):
        with self.lock:
            self.faults.insert(0, (re.compile(pattern), fault))
        return fault

    def heal(self):
        """From now on all goes through; what a fault had hold of ends."""
        with self.lock:
            self.faults.clear()
            for client in self.spoilt:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.heal()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.unlink(self.socket)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _choose(self, request, client):
        with self.lock:
            self.seen.append(request)
            for pattern, fault in self.faults:
                if pattern.search(request) and (fault.times is None or fault.hits < fault.times):
                    fault.hits += 1
                    fault.holding += 1
                    self.spoilt.add(client)
                    return fault
        return None

    def _serve(self, client):
        head = b''
        with contextlib.suppress(OSError):
            while b'\r\n\r\n' not in head:
                data = client.recv(65536)
                if not data:
                    break
                head += data
        x = Exchange(client, self.target, head)
        words = head.split(b'\r\n')[0].decode(errors='replace').split()
        if len(words) < 2:
            x.close()
            return
        fault = self._choose(f'{words[0]} {re.sub("^/v1[.][0-9]+", "", words[1])}', client)
        try:
            if fault:
                fault.run(x)
            else:
                x.send()
                x.pump(lambda data: client.sendall(data) is None)
        except OSError:
            pass
        finally:
            with self.lock:
                self.spoilt.discard(client)
                if fault:
                    fault.holding -= 1
            x.close()


@contextlib.contextmanager
def proxied(engine, name='proxy'):
    """A proxy in front of an engine of the tests."""
    proxy = Proxy(engine.socket, f'{engine.top}/{name}.sock')
    try:
        yield proxy
    finally:
        proxy.close()
