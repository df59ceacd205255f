# SPDX-License-Identifier: Apache-2.0
"""Random sequences of operations, chosen by hypothesis, do on the mount what they do on a tmpfs:
the same results, the same errors, the same tree. Each goes through one of two sessions that share
the files, and some descriptors stay open over what happens to their names."""

import errno
import itertools
import os
import stat

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from harness import RENAME_EXCHANGE, RENAME_NOREPLACE, SLOWNESS, renameat2, run
from workbench import tmpfs

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

# Few names, so that one operation meets what another has left. Each run begins with FIRST.
NAMES = ['a', 'b', 'd', 'd/a', 'd/b', 'd/dd', 'd/dd/a', 'd/dd/b', '.hid', '.hid/a', 'd/.hid', 'a/b', 'b/dd']
FIRST = ['d', 'd/dd']
paths = st.sampled_from(NAMES)
# a length and a letter
data = st.tuples(st.sampled_from([0, 1, 100, 4095, 4096, 5000, 70000]), st.sampled_from('xyz'))
# No setuid and setgid: a write takes them, also one by root (docs/posix.md).
modes = st.sampled_from([0o600, 0o644, 0o755, 0o700, 0o444, 0o1777, 0o111])
targets = st.sampled_from(['a', 'd/b', '../a', '../d', 'd', 'dd', 'nowhere', '.', 'a/../b', '.hid/../d/a', 'd/dd/../b'])
views = st.booleans()
NEVER_WAIT = os.O_NONBLOCK  # some are FIFOs
_number = itertools.count(1)


def bytes_of(text):
    return text[1].encode() * text[0]


def outcome(function, *words):
    """What a call gives, or the errno it fails with."""
    try:
        return function(*words)
    except OSError as e:
        return errno.errorcode[e.errno]


def facts(path, follow):
    got = os.stat(path, follow_symlinks=follow)
    kind = stat.S_IFMT(got.st_mode)
    is_dir = kind == stat.S_IFDIR
    return (kind, stat.S_IMODE(got.st_mode), got.st_uid, got.st_gid, None if is_dir else got.st_nlink,
            None if is_dir else got.st_size)


# Which links the mount gives in other words, that lead to the same: docs/posix.md.
REWORDED = {'raw': lambda text: False, 'contained': lambda text: '/../' in text, 'anchored': lambda text: '..' in text}


def whole(path, model, reworded):
    """Everything below `path`; `model` is the same tree on the other side, or itself."""
    found = {}
    for where, dirs, files in os.walk(path):
        for name in dirs + files:
            full = f'{where}/{name}'
            got = facts(full, False)
            if got[0] == stat.S_IFREG:
                with open(full, 'rb') as f:
                    got += (f.read(),)
            elif got[0] == stat.S_IFLNK:
                text = os.readlink(full)
                if reworded(os.readlink(os.path.join(model, os.path.relpath(full, path)))):
                    got, text = got[:5], None
                got += (text, outcome(facts, full, True))
            found[os.path.relpath(full, path)] = got
    return found


class Pair(RuleBasedStateMachine):
    """Everything is done on both sides."""

    places = None  # the two sessions, the tmpfs
    reworded = None  # the function for this mount

    def __init__(self):
        super().__init__()
        self.name = f'run{next(_number)}'
        self.sessions = [f'{p}/{self.name}' for p in self.places[:2]]
        self.model = f'{self.places[2]}/{self.name}'
        for path in [self.sessions[0], self.model]:
            os.mkdir(path)
        for name in FIRST:
            self.both(False, os.mkdir, name)
        self.open = []

    def both(self, view, function, *names):
        """`function` of the names below the session and below the model gives the same."""
        got = outcome(function, *(f'{self.sessions[view]}/{n}' for n in names))
        expected = outcome(function, *(f'{self.model}/{n}' for n in names))
        assert got == expected, names

    @rule(view=views, path=paths, text=data, mode=modes)
    def write(self, view, path, text, mode):
        def act(p):
            fd = os.open(p, NEVER_WAIT | os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            try:
                return os.write(fd, bytes_of(text))
            finally:
                os.close(fd)
        self.both(view, act, path)

    @rule(view=views, path=paths, text=data)
    def append(self, view, path, text):
        def act(p):
            fd = os.open(p, NEVER_WAIT | os.O_WRONLY | os.O_APPEND)
            try:
                return os.write(fd, bytes_of(text))
            finally:
                os.close(fd)
        self.both(view, act, path)

    @rule(view=views, path=paths, text=data, at=st.integers(0, 20000))
    def write_at(self, view, path, text, at):
        def act(p):
            fd = os.open(p, NEVER_WAIT | os.O_RDWR)
            try:
                return os.pwrite(fd, bytes_of(text), at), os.pread(fd, 1 << 20, 0), os.fstat(fd).st_size
            finally:
                os.close(fd)
        self.both(view, act, path)

    @rule(view=views, path=paths)
    def create_new(self, view, path):
        self.both(view, lambda p: os.close(os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)), path)

    @rule(view=views, path=paths)
    def read(self, view, path):
        def act(p):
            fd = os.open(p, NEVER_WAIT | os.O_RDONLY)
            try:
                return os.read(fd, 1 << 20)
            finally:
                os.close(fd)
        self.both(view, act, path)

    @rule(view=views, path=paths, size=st.sampled_from([0, 1, 4096, 5000, 100000]))
    def truncate(self, view, path, size):
        self.both(view, lambda p: os.truncate(p, size), path)

    @rule(view=views, path=paths, mode=modes)
    def mkdir(self, view, path, mode):
        self.both(view, lambda p: os.mkdir(p, mode), path)

    @rule(view=views, path=paths)
    def rmdir(self, view, path):
        self.both(view, os.rmdir, path)

    @rule(view=views, path=paths)
    def unlink(self, view, path):
        self.both(view, os.unlink, path)

    @rule(view=views, old=paths, new=paths, flags=st.sampled_from([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]))
    def rename(self, view, old, new, flags):
        self.both(view, lambda o, n: renameat2(o, n, flags), old, new)

    @rule(view=views, old=paths, new=paths)
    def link(self, view, old, new):
        self.both(view, lambda o, n: os.link(o, n, follow_symlinks=False), old, new)

    @rule(view=views, path=paths, text=targets)
    def symlink(self, view, path, text):
        # not further up than the run's own directory, which lies at another depth on the other side
        if text.startswith('..') and '/' not in path:
            text = 'a'
        self.both(view, lambda p: os.symlink(text, p), path)

    @rule(view=views, path=paths)
    def mkfifo(self, view, path):
        self.both(view, lambda p: os.mkfifo(p, 0o600), path)

    @rule(view=views, path=paths, mode=modes)
    def chmod(self, view, path, mode):
        self.both(view, lambda p: os.chmod(p, mode), path)

    @rule(view=views, path=paths, owner=st.sampled_from([(1, 1), (0, 0), (65534, -1)]))
    def chown(self, view, path, owner):
        self.both(view, lambda p: os.chown(p, *owner), path)

    @rule(view=views, path=paths, when=st.integers(0, 2 ** 31))
    def utime(self, view, path, when):
        def act(p):
            os.utime(p, ns=(when * 1000 + 1, when * 1000 + 2))
            return os.stat(p).st_mtime_ns
        self.both(view, act, path)

    @rule(view=views, path=paths)
    def listdir(self, view, path):
        self.both(view, lambda p: sorted(os.listdir(p)), path)

    @rule(view=views, path=paths, follow=st.booleans())
    def stat(self, view, path, follow):
        if follow or not self.is_reworded(path):
            self.both(view, lambda p: facts(p, follow), path)

    @rule(view=views, path=paths)
    def readlink(self, view, path):
        act = (lambda p: bool(os.readlink(p))) if self.is_reworded(path) else os.readlink
        self.both(view, act, path)

    def is_reworded(self, path):
        return self.reworded(outcome(os.readlink, f'{self.model}/{path}'))

    # descriptors that stay

    @rule(view=views, path=paths, append=st.booleans())
    def keep_open(self, view, path, append):
        if len(self.open) >= 4:
            return
        flags = NEVER_WAIT | os.O_RDWR | (os.O_APPEND if append else 0)
        got = [outcome(os.open, f'{where}/{path}', flags) for where in (self.sessions[view], self.model)]
        if all(isinstance(fd, int) for fd in got):
            self.open.append(got)
        else:
            assert got[0] == got[1]

    def on_open(self, function, n):
        if self.open:
            pair = self.open[n % len(self.open)]
            got, expected = (outcome(function, fd) for fd in pair)
            assert got == expected

    @rule(n=st.integers(0, 3), text=data, at=st.integers(0, 9000))
    def write_open(self, n, text, at):
        self.on_open(lambda fd: os.pwrite(fd, bytes_of(text), at), n)

    @rule(n=st.integers(0, 3))
    def read_open(self, n):
        def act(fd):
            got = os.fstat(fd)
            return os.pread(fd, 1 << 20, 0), got.st_size, got.st_nlink, got.st_mode
        self.on_open(act, n)

    @rule(n=st.integers(0, 3), size=st.sampled_from([0, 100, 8192]), mode=modes)
    def change_open(self, n, size, mode):
        def act(fd):
            os.ftruncate(fd, size)
            os.fchmod(fd, mode)
            os.fchown(fd, 1, 1)
        self.on_open(act, n)

    @rule(n=st.integers(0, 3))
    def close(self, n):
        if self.open:
            for fd in self.open.pop(n % len(self.open)):
                os.close(fd)

    @invariant()
    def the_names_are_the_same(self):
        expected = sorted(os.listdir(self.model))
        assert sorted(os.listdir(self.sessions[0])) == expected == sorted(os.listdir(self.sessions[1]))

    def teardown(self):
        for pair in self.open:
            for fd in pair:
                os.close(fd)
        expected = whole(self.model, self.model, self.reworded)
        for path in self.sessions:
            assert whole(path, self.model, self.reworded) == expected
        run('rm', '-rf', self.sessions[0], self.model)


def explore(daemon, workdir, examples, steps):
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    with tmpfs(f'{workdir}/model', '256m') as model:
        reworded = REWORDED[daemon.opts.get('symlinks', 'contained')]
        machine = type('Machine', (Pair,), {'places': [a.path, b.path, model], 'reworded': staticmethod(reworded)})
        machine.TestCase.settings = settings()
        run_state_machine_as_test(machine, settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None, derandomize=True,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)))


WAYS = [{'passthrough': 'auto'}, {'passthrough': 'off', 'symlinks': 'raw'}]


@pytest.mark.parametrize('way', WAYS, ids=str)
def test_any_sequence_of_operations_does_what_it_does_on_a_tmpfs(mount, workdir, way):
    explore(mount(**way), workdir, 60, 50)


@pytest.mark.slow
@pytest.mark.parametrize('way', [*WAYS, {'passthrough': 'off'}, {'symlinks': 'anchored'}], ids=str)
def test_many_more_sequences_do_too(mount, workdir, way):
    explore(mount(**way), workdir, 300, 60)
