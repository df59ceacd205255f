# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of the docker backend is compared with and run on: an engine of its own, its API
spoken to directly, and a proxy before it that lets a pull of one workspace hang."""

import contextlib
import http.client
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

from machine import CHECKOUT
from variants import Trouble, Wsmfs, die_with_parent

sys.path.insert(0, f'{CHECKOUT}/tests/system')
# pylint: disable=wrong-import-position
from engine import Engine  # noqa: E402

IMAGE = 'base:1'
TRUE = ['/bin/busybox', 'true']
WAIT = ['/bin/busybox', 'sleep', '100000']


class BenchEngine(Engine):
    """One that ends with the benchmark, also when that is killed."""

    def __init__(self, top):
        missing = [p for p in ('dockerd', 'docker') if not shutil.which(p)]
        if missing:
            raise Trouble(f'{" and ".join(missing)} is not on this machine')
        os.mkdir(top)
        super().__init__(top, before=['setpriv', '--pdeathsig', 'TERM'])

    def begin(self):
        try:
            self.start()
        except AssertionError as e:
            raise Trouble(f'dockerd does not start here: {self.log()[-300:]}') from e
        self.make_image(IMAGE)
        return self

    def stop(self):
        for container in Api(self.socket).containers():
            Api(self.socket).remove(container)
        super().stop()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__('docker', timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Api:
    """The engine's API over one connection, which is kept."""

    def __init__(self, path):
        self.path = path
        self.connection = _Connection(path)

    def raw(self, method, path, body=None, connection=None):
        c = connection or self.connection
        headers = {'Content-Type': 'application/json'} if body is not None else {}
        c.request(method, path, None if body is None else json.dumps(body), headers)
        answer = c.getresponse()
        data = answer.read()
        if answer.status >= 300 and answer.status != 304:
            raise Trouble(f'{method} {path}: {answer.status} {data[:300].decode(errors="replace")}')
        return data

    def call(self, method, path, body=None):
        data = self.raw(method, path, body)
        return json.loads(data) if data.strip() else None

    def containers(self):
        return [c['Id'] for c in self.call('GET', '/containers/json?all=1')]

    def create_and_start(self, body):
        container = self.call('POST', '/containers/create', body)['Id']
        self.call('POST', f'/containers/{container}/start')
        return container

    def execute(self, container, words):
        """Runs a command to its end; the stream of its output is a connection of its own."""
        number = self.call('POST', f'/containers/{container}/exec',
                           {'Cmd': words, 'AttachStdout': True, 'AttachStderr': True})['Id']
        with contextlib.closing(_Connection(self.path)) as c:
            self.raw('POST', f'/exec/{number}/start', {'Detach': False, 'Tty': False}, c)
        code = self.call('GET', f'/exec/{number}/json')['ExitCode']
        if code != 0:
            raise Trouble(f'{words} by the API ended with {code}')

    def remove(self, container):
        self.raw('DELETE', f'/containers/{container}?force=1&v=1')


class StallingProxy:
    """Before an engine, in a process of its own: what it does must not delay who measures. Containers whose name
    is among those that stall() was given find no image, and a pull never ends."""

    def __init__(self, path, engine_socket):
        self.path = path
        self.engine_socket = engine_socket
        self.names = f'{path}.stalled'
        self.stall(())
        fork = multiprocessing.get_context('fork')
        self._pulls, self._refused, self._requests = (fork.Value('i', 0) for _ in range(3))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(256)
        self._process = fork.Process(target=self._run, daemon=True)
        self._process.start()
        self._listener.close()

    def stall(self, names):
        with open(f'{self.names}.new', 'w', encoding='ascii') as f:
            f.writelines(f'{name}\n' for name in names)
        os.rename(f'{self.names}.new', self.names)

    def pulls(self):
        """How many hang; many workspaces may wait for one."""
        return self._pulls.value

    def refused(self):
        """How many containers found no image."""
        return self._refused.value

    def requests(self):
        """How many have come; each has a connection of its own."""
        return self._requests.value

    def stop(self):
        self._process.kill()
        self._process.join()

    def _run(self):
        die_with_parent(signal.SIGKILL)()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            client, _ = self._listener.accept()
            self._requests.value += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _is_stalled(self, path):
        with open(self.names, encoding='ascii') as f:
            return any(path.endswith(f'/containers/create?name={name}') for name in f.read().split())

    def _hang(self, client):
        """Until the client goes away."""
        with self._pulls.get_lock():
            self._pulls.value += 1
        with contextlib.suppress(OSError):
            while client.recv(65536):
                pass
        with self._pulls.get_lock():
            self._pulls.value -= 1

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            head = b''
            while b'\r\n\r\n' not in head:
                piece = client.recv(65536)
                if not piece:
                    return
                head += piece
            path = head.split(b' ', 2)[1].decode()
            if '/images/create' in path:
                self._hang(client)
            elif self._is_stalled(path):
                with self._refused.get_lock():
                    self._refused.value += 1
                self._refuse(client)
            else:
                self._pass_on(client, head)

    @staticmethod
    def _refuse(client):
        text = b'{"message":"No such image: %s"}' % IMAGE.encode()
        client.sendall(b'HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nConnection: close\r\n'
                       b'Content-Length: %d\r\n\r\n%s' % (len(text), text))

    def _pass_on(self, client, head):
        """One request a connection: the next one is to be looked at too."""
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(self.engine_socket)
            engine.sendall(head.replace(b'\r\n', b'\r\nConnection: close\r\n', 1))
            up = threading.Thread(target=self._copy, args=(client, engine), daemon=True)
            up.start()
            self._copy(engine, client)

    @staticmethod
    def _copy(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


class DockerMount(Wsmfs):
    """A mount whose workspaces are containers; nothing is provisioned at first."""

    def __init__(self, name, top, program, host, options=()):
        super().__init__(name, top, program, options=options)
        with open(f'{self.top}/config.ini', 'w', encoding='utf-8') as f:
            f.write(f'[backend docker]\nhost = {host}\n')

    def words(self):
        options = ','.join([f'state_dir={self.top}/state', f'basedir={self.basedir}', f'config={self.top}/config.ini',
                            *self.options])
        return [self.program, '-f', f'docker:{IMAGE}', self.mnt, '-o', options]

    def place(self):
        return self.mnt

    def path(self, agent):
        """A session that nobody has used."""
        return f'{self.mnt}/bench/{agent}/s1'

    def control(self, agent):
        return f'{self.mnt}/.wsm/sessions/bench/{agent}/s1'

    def ctl(self, agent, verb):
        fd = os.open(f'{self.control(agent)}/ctl', os.O_WRONLY)
        try:
            os.write(fd, f'{verb}\n'.encode())
        finally:
            os.close(fd)

    def sandbox(self, agent):
        with open(f'{self.control(agent)}/status', encoding='utf-8') as f:
            return json.load(f)['sandbox']

    def state(self, agent):
        with open(f'{self.control(agent)}/state', encoding='utf-8') as f:
            return f.read().strip()


def cli(engine, *words):
    """A command of the docker CLI."""
    return ['docker', '-H', engine.host, *words]


def run_quietly(words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
                          preexec_fn=die_with_parent())
    if done.returncode != 0:
        raise Trouble(f'{words} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}')
    return done.stdout.strip()
