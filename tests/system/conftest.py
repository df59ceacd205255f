# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the system tests. A test that leaves a mount, a process or a warning behind fails."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile

import pytest

import harness
import watchdog
from engine import running_engine
from harness import Daemon, fusectl, processes_of, remove_tree, sandboxes_of

_number = itertools.count(1)


def stop(*_):
    raise KeyboardInterrupt


def pytest_configure():
    signal.signal(signal.SIGTERM, stop)  # so that fixtures clean up
    # A shell's background command ignores it, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if harness.SOURCE != 'local':
        for item in items:
            marker = item.get_closest_marker('local')
            if marker:
                item.add_marker(pytest.mark.skip(reason=f'of local workspaces only: {marker.args[0]}'))
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker('root'):
                item.add_marker(pytest.mark.skip(reason='needs root'))


class Guard:
    """The watchdog's other end."""

    def __init__(self, top, control):
        here = os.path.dirname(os.path.abspath(watchdog.__file__))
        self.proc = subprocess.Popen([sys.executable, f'{here}/watchdog.py', top, control],
                                     stdin=subprocess.PIPE, start_new_session=True)
        watchdog.not_for_children.append(self.proc.stdin.fileno())

    def arm(self, seconds):
        self.proc.stdin.write(f'{seconds}\n'.encode())
        self.proc.stdin.flush()

    def end(self):
        self.proc.stdin.write(b'done\n')
        self.proc.stdin.close()
        watchdog.not_for_children.clear()
        self.proc.wait(60)


@pytest.fixture(scope='session')
def top():
    """The directory of this run, which other users can pass through."""
    if not os.access(harness.WSMFS, os.X_OK):
        pytest.exit('WSMFS_BUILD must be a build directory with fs/wsmfs in it', 2)
    path = tempfile.mkdtemp(prefix='wsmfs-test-', dir='/tmp')
    os.chmod(path, 0o755)
    with fusectl(path):
        yield path
    clean_up(path)


@pytest.fixture(scope='session')
def guard(top):
    g = Guard(top, harness.control_directory())
    yield g
    g.end()


@pytest.fixture(autouse=True)
def watched(request, guard):
    """Frees a test that hangs in the mount shortly after its time is over."""
    marker = request.node.get_closest_marker('timeout')
    seconds = marker.args[0] if marker else float(request.config.getini('timeout') or 150)
    guard.arm(seconds + 10)
    yield
    guard.arm(200)


@pytest.fixture
def workdir(top):
    """A fresh directory of this test's own; removed afterwards."""
    path = f'{top}/{next(_number)}'
    os.mkdir(path)
    yield path
    clean_up(path)


def clean_up(path):
    """Removes a directory of a test, and complains of what the test has left there."""
    left = processes_of(path + '/')
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    mounts = watchdog.mounts_below(path)
    for point, _ in mounts:
        subprocess.run(['umount', '-l', point], check=False)
    sandboxes = sandboxes_of(path)
    for pid in sandboxes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_tree(path)
    assert not left, 'a daemon was left running'
    assert not mounts, f'mounts were left: {mounts}'
    assert not sandboxes, f'sandboxes were left: {sandboxes}'


class Factory:
    """Makes daemons below one directory and ends them all."""

    def __init__(self, path):
        self.path = path
        self.daemons = []

    def prepare(self, name=None, **opts):
        """A daemon that has not been started."""
        place = f'{self.path}/{name or "d" + str(len(self.daemons))}'
        os.makedirs(place, exist_ok=True)
        self.daemons.append(Daemon(place, **opts))
        return self.daemons[-1]

    def __call__(self, **opts):
        return self.prepare(**opts).start()

    def test_backend(self, config='', start=True, **opts):
        """A mount whose callers wait as for remote files; see control()."""
        d = self.prepare()
        os.mkdir(f'{d.top}/control')
        d.source = f'{harness.TEST_BACKEND}:'
        d.opts.update(basedir=d.basedir, **opts)
        d.set_config(f'{config}\n[backend testbackend]\ncontrol = {d.top}/control\n')
        if start:
            d.start()
        return d

    def finish(self):
        problems = []
        for daemon in reversed(self.daemons):
            try:
                daemon.stop()
            except (AssertionError, OSError, subprocess.SubprocessError) as e:
                problems.append(str(e))
        if problems:
            pytest.fail('\n'.join(problems), pytrace=False)


@pytest.fixture(scope='session')
def engine():
    """A Docker Engine of this run's own."""
    with running_engine() as running:
        yield running


@pytest.fixture(scope='session', autouse=True)
def source(request):
    """With WSMFS_TEST_SOURCE=docker all mounts whose source a test does not name are of containers."""
    if harness.SOURCE == 'docker':
        Daemon.engine = request.getfixturevalue('engine')
        os.chmod(Daemon.engine.top, 0o711)
        os.chmod(Daemon.engine.socket, 0o666)  # some mounts are an ordinary user's
    yield
    Daemon.engine = None


def ended(mount, *engines):
    """The mounts first: one that lives notices that its containers are removed, and says so."""
    try:
        mount.finish()
    finally:
        for engine in engines:
            for container in engine.containers():
                engine('rm', '-f', container, check=False)


@pytest.fixture
def docker(mount, engine):
    """docker(option=value, …): a mount whose workspaces are containers; of the engine of the test's own module, if
    that has one."""
    def make(image='base:1', config='', start=True, backend='', host=None, **opts):
        d = mount.prepare()
        d.source = f'docker:{image}'
        d.opts.update({'basedir': d.basedir, **opts})
        d.set_config(f'{config}\n[backend docker]\nhost = {host or engine.host}\n{backend}\n')
        return d.start() if start else d
    yield make
    ended(mount, engine)


@pytest.fixture
def mount(workdir):
    """mount(option=value, …): a mounted wsmfs with directories of its own."""
    factory = Factory(workdir)
    yield factory
    factory.finish()


@pytest.fixture
def daemon(mount):
    return mount()


@pytest.fixture
def s(daemon):
    """One session, not provisioned."""
    return daemon.session()


@pytest.fixture(scope='module')
def shared_daemon(top):
    """One mount for all the tests of a module that do nothing to the mount itself."""
    path = f'{top}/{next(_number)}'
    os.mkdir(path)
    factory = Factory(path)
    yield factory()
    try:
        factory.finish()
    finally:
        clean_up(path)


@pytest.fixture
def fresh(shared_daemon):
    """A session that no other test has seen, in the shared mount."""
    yield shared_daemon.session(f'user{next(_number)}/agent/s1')
    shared_daemon.end_children()
    problems = shared_daemon.bad_lines()
    if problems:
        pytest.fail('\n'.join(problems), pytrace=False)
