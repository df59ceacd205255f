# SPDX-License-Identifier: Apache-2.0
"""A registry of images of the tests' own, on loopback."""

import base64
import contextlib
import glob
import json
import os
import shutil
import socket
import subprocess
import tempfile

import pytest

from harness import read, wait_for, write

USER, SECRET = 'ali', 'open sesame'
ENTRY = 'ali:$2b$04$wsmfswsmfswsmfswsmfsweYFzcajYx0Z/kKAXVY/3T.7S50GjwYSS\n'


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def base64_of(user=USER, secret=SECRET):
    return base64.b64encode(f'{user}:{secret}'.encode()).decode()


class Registry:
    """docker-registry with its files in a directory of its own; `locked`: it wants USER and SECRET."""

    def __init__(self, top, locked):
        self.top = top
        self.locked = locked
        self.proc = None
        self.host = None

    def start(self):
        self.host = f'127.0.0.1:{free_port()}'
        config = {'version': 0.1, 'log': {'accesslog': {'disabled': True}, 'level': 'warn'},
                  'storage': {'filesystem': {'rootdirectory': f'{self.top}/files'}},
                  'http': {'addr': self.host}}
        if self.locked:
            write(f'{self.top}/users', ENTRY)
            config['auth'] = {'htpasswd': {'realm': 'tests', 'path': f'{self.top}/users'}}
        write(f'{self.top}/config.yml', json.dumps(config))  # JSON is YAML
        with open(f'{self.top}/log', 'ab') as log:
            self.proc = subprocess.Popen(['docker-registry', 'serve', f'{self.top}/config.yml'], stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, start_new_session=True)
        os.makedirs(f'{self.top}/login')
        self.allow(f'{self.top}/login')
        wait_for(self.answers, 60, 'the registry to answer')
        return self

    def answers(self):
        assert self.proc.poll() is None, read(f'{self.top}/log')[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(self.host.split(':')):
            return True
        return False

    def end(self):
        if self.proc:
            self.proc.kill()
            self.proc.wait(60)

    def allow(self, directory, **entry):
        """A configuration of the docker command there that knows the registry."""
        write(f'{directory}/config.json', json.dumps({'auths': {self.host: entry or {'auth': base64_of()}}}))

    def push(self, engine, image, name):
        """Makes an image of the engine be this registry's alone, and returns what it is called now."""
        ref = f'{self.host}/{name}'
        engine('tag', image, ref)
        engine('--config', f'{self.top}/login', 'push', ref)
        engine('rmi', ref)
        return ref

    def largest_blob(self):
        return max(glob.glob(f'{self.top}/files/docker/registry/v2/blobs/sha256/*/*/data'), key=os.path.getsize)


@contextlib.contextmanager
def running_registry(locked=False):
    """Skips where there is none."""
    if not shutil.which('docker-registry'):
        pytest.skip('no docker-registry here')
    top = tempfile.mkdtemp(prefix='wsmfs-registry-')
    registry = Registry(top, locked)
    try:
        yield registry.start()
    finally:
        registry.end()
        shutil.rmtree(top, ignore_errors=True)
