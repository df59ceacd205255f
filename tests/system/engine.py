# SPDX-License-Identifier: Apache-2.0
"""A Docker Engine of the tests' own, and images made without any registry."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile

from harness import HOST_IMAGE, run, wait_for

BUSYBOX = '/bin/busybox'
SHELL = f'{BUSYBOX} sh -c'


class Engine:
    """dockerd on directories and a socket of its own; it touches no network of the machine."""

    def __init__(self, top, before=(), more=()):
        """before: words in front of the command, e.g. of unshare, with {top} for its directory; more: of its own."""
        self.top = top
        self.before, self.more = [word.format(top=top) for word in before], more
        self.socket = f'{top}/docker.sock'
        self.host = f'unix://{self.socket}'
        self.proc = None

    def start(self):
        with open(f'{self.top}/dockerd.log', 'ab') as log:
            self.proc = subprocess.Popen(
                [*self.before, 'dockerd', *self.more, '--data-root', f'{self.top}/root', '--exec-root', f'{self.top}/exec', '-H', self.host,
                 '--pidfile', f'{self.top}/pid', '--bridge=none', '--iptables=false'],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_for(self.answers, 120, 'the engine to answer')
        return self

    def answers(self):
        assert self.proc.poll() is None, self.log()
        return self('version', '--format', '{{.Server.Version}}', check=False) != ''

    def stop(self):
        self.proc.terminate()
        self.proc.wait(120)

    def end(self):
        """Nothing of it stays: no container, process or mount."""
        if self.proc.poll() is not None:
            self.start()
        for container in self('ps', '-aq').split():
            self('rm', '-f', container, check=False)
        self.stop()
        with open('/proc/self/mounts', encoding='utf-8', errors='replace') as f:
            below = [line.split()[1] for line in f if line.split()[1].startswith(self.top + '/')]
        for mount in sorted(below, reverse=True):
            run('umount', '-l', mount, check=False)

    def log(self):
        with open(f'{self.top}/dockerd.log', encoding='utf-8', errors='replace') as f:
            return f.read()[-4000:]

    def __call__(self, *words, check=True, stdin=None):
        done = subprocess.run(['docker', '-H', self.host, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              input=stdin, check=False)
        if check and done.returncode:
            raise AssertionError(f'docker {" ".join(words)}: {done.stderr.decode(errors="replace")}')
        return done.stdout.decode(errors='replace').strip() if done.returncode == 0 else ''

    def make_image(self, name='base:1'):
        """busybox and nothing else: no shell at /bin/sh, no libc."""
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(f'{root}/bin')
            os.makedirs(f'{root}/etc')
            shutil.copy(BUSYBOX, f'{root}/bin/busybox')
            for applet in ['sh', 'cat', 'sleep', 'id', 'ls', 'mkdir', 'chmod', 'kill', 'env']:
                os.symlink('busybox', f'{root}/bin/{applet}')
            with open(f'{root}/etc/passwd', 'w', encoding='ascii') as f:
                f.write('root:x:0:0::/root:/bin/sh\nworker:x:1234:1234::/:/bin/sh\n')
            tar = subprocess.run(['tar', '-C', root, '-c', '.'], stdout=subprocess.PIPE, check=True).stdout
        self('import', '-', name, stdin=tar)

    def make_host_image(self, name=HOST_IMAGE):
        """A root that has the programs of this machine, once its /usr is bound there (HOST_BIND)."""
        with tempfile.TemporaryDirectory() as root:
            os.chmod(root, 0o755)
            for path in ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32']:
                if os.path.islink(f'/{path}'):
                    os.symlink(f'usr/{path}', f'{root}/{path}')
            for path in ['etc', 'usr', 'tmp', 'var', 'var/tmp', 'root', 'home', 'workspace']:
                os.mkdir(f'{root}/{path}')
            for path in ['tmp', 'var/tmp']:
                os.chmod(f'{root}/{path}', 0o1777)
            shutil.copytree('/etc/alternatives', f'{root}/etc/alternatives', symlinks=True)
            for path in ['passwd', 'group']:
                shutil.copy(f'/etc/{path}', f'{root}/etc/{path}')
            with open(f'{root}/etc/passwd', 'a', encoding='ascii') as f:
                f.write('worker:x:1234:1234::/:/bin/sh\n')
            tar = subprocess.run(['tar', '-C', root, '-c', '.'], stdout=subprocess.PIPE, check=True).stdout
        self('import', '-', name, stdin=tar)

    def containers(self, what='-aq'):
        return self('ps', what, '--no-trunc').split()

    def inspect(self, container):
        return json.loads(self('inspect', container))[0]


def ready(s):
    """An access, and the container that it brings."""
    os.listdir(s.path)
    wait_for(lambda: s.state() != 'provisioning', 60)
    assert s.state() == 'ready', s.error()
    return s


def container_of(engine, s):
    name = s.status()['sandbox']
    return next(iter(engine('ps', '-aq', '--no-trunc', '--filter', f'name=^/{name}$').split()), None)


@contextlib.contextmanager
def running_engine(**how):
    """Skips where there is no dockerd; the words are Engine's."""
    import pytest  # pylint: disable=import-outside-toplevel; the benchmarks start an engine without it

    if not shutil.which('dockerd') or not shutil.which('docker') or not os.path.exists(BUSYBOX):
        pytest.skip('no dockerd, docker or busybox here')
    top = tempfile.mkdtemp(prefix='wsmfs-engine-')
    engine = Engine(top, **how)
    try:
        try:
            engine.start()
        except AssertionError:
            if engine.proc.poll() is None:
                engine.stop()
            engine.proc = None
            pytest.skip(f'dockerd does not start here: {engine.log()[-300:]}')
        engine.make_image()
        engine.make_host_image()
        yield engine
    finally:
        if engine.proc:
            engine.end()
        shutil.rmtree(top, ignore_errors=True)
