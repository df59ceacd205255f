# SPDX-License-Identifier: Apache-2.0
"""Jobs, as a program uses them: directories and files."""

import contextlib
import json
import os
import select
import shutil
import stat

import pytest

from harness import BOB_UID, BUILD, Child, put, read, wait_for, write


class Job:
    """A job's directory, by the session's own path or by the manager's."""

    def __init__(self, session, name, control=None):
        self.session = session
        self.name = name
        self.dir = f'{control or session.inner}/jobs/{name}'

    def __truediv__(self, name):
        return f'{self.dir}/{name}'

    def make(self, **settings):
        os.mkdir(self.dir)
        for key, value in settings.items():
            write(self / key, value)
        return self

    def start(self, cmd):
        write(self / 'cmd', cmd)
        return self

    def text(self, name):
        return read(self / name)

    def raw(self, name):
        with open(self / name, 'rb') as f:
            return f.read()

    def exit(self, timeout=60):
        """What `exit` says, without its newline; read in a child, since it may hang."""
        return Child(lambda: read(self / 'exit')).result(timeout).rstrip('\n')

    def out(self, timeout=60):
        return Child(lambda: read(self / 'stdout')).result(timeout)

    def status(self):
        return json.loads(self.text('status'))

    def state(self):
        return self.status()['state']

    def wait_state(self, *states, timeout=60):
        wait_for(lambda: self.state() in states, timeout, f'job {self.name} to be {states}')

    def ctl(self, verb):
        put(self / 'ctl', verb + '\n')

    def wait_output(self, text, timeout=60):
        """Until the log holds a text."""
        wait_for(lambda: text in self.text('log'), timeout, f'{text!r} in the log of {self.name}')


def job(session, name='j', **settings):
    return Job(session, name).make(**settings)


def files_kept(daemon):
    """What is kept of jobs: all files but the empty records that removed jobs leave for the next."""
    where, kept = f'{daemon.top}/state/jobs', []
    for name in os.listdir(where):
        with contextlib.suppress(FileNotFoundError):  # one that goes in this moment
            if os.path.getsize(f'{where}/{name}') or not name.endswith('.record'):
                kept.append(name)
    return kept


def run(session, cmd, name='j', timeout=60, **settings):
    """Runs a command to its end: (exit, stdout, stderr)."""
    j = job(session, name, **settings).start(cmd)
    code = j.exit(timeout)
    return code, j.text('stdout'), j.text('stderr')


def output(session, cmd, name='j', **settings):
    code, out, err = run(session, cmd, name, **settings)
    assert code == '0', (code, out, err)
    return out


@contextlib.contextmanager
def ordinary(mount, config='', uid=BOB_UID):
    """A daemon of a user that is not root, not started; stop it before the end."""
    fusermount = shutil.which('fusermount3')
    if not fusermount or not os.stat(fusermount).st_mode & stat.S_ISUID:
        pytest.skip('fusermount3 is not here, or not setuid')
    d = mount.prepare(config=config)
    d.uid = d.gid = uid
    # the build may lie where that user cannot pass
    for part in ('fs/wsmfs', 'backends/guest/wsm-guest', 'backends/docker/docker.so'):
        os.makedirs(os.path.dirname(f'{d.top}/build/{part}'), exist_ok=True)
        shutil.copy(f'{BUILD}/{part}', f'{d.top}/build/{part}')
    d.program = f'{d.top}/build/fs/wsmfs'
    for path in (d.top, d.mnt):
        os.chown(path, uid, uid)
    mode = stat.S_IMODE(os.stat('/dev/fuse').st_mode)
    os.chmod('/dev/fuse', 0o666)
    try:
        yield d
    finally:
        os.chmod('/dev/fuse', mode)


@contextlib.contextmanager
def opened(path, flags):
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def readable(fd, timeout=0):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
