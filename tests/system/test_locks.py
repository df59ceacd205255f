# SPDX-License-Identifier: Apache-2.0
"""Locks taken on the mount and locks taken on the same file in the directory below exclude each
other, whichever side was first, and behave like locks of one file system."""

import ctypes
import errno
import fcntl
import os
import signal
import struct
import time

import pytest

from harness import Child, Hang, errno_of, in_child, read, wait_for, write
from workbench import below

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
KINDS = {'fcntl': fcntl.lockf, 'flock': fcntl.flock}


def ofd(fd, command, kind, start=0, length=0):
    """An open file description lock; returns what the kernel left in the struct: the type."""
    request = struct.pack('hhqqi4x', kind, os.SEEK_SET, start, length, 0)
    return struct.unpack('hhqqi4x', fcntl.fcntl(fd, command, request))[0]


class Sides:
    """One file with its names in two sessions of the workspace and on the disk below."""

    def __init__(self, first, second, path):
        write(first / 'f', 'x' * 100)
        self.paths = {'mount': first / 'f', 'other session': second / 'f', 'below': path}

    def __getitem__(self, side):
        return self.paths[side]


@pytest.fixture
def sides(fresh):
    other = fresh.daemon.session(os.path.dirname(fresh.names) + '/s2').use()
    return Sides(fresh.use(), other, below(fresh, 'f'))


PAIRS = [('mount', 'below'), ('below', 'mount'), ('mount', 'other session'), ('other session', 'below')]
both = pytest.mark.parametrize('kind', KINDS)
pairs = pytest.mark.parametrize('holder, other', PAIRS, ids=lambda p: p.replace(' ', '-'))


class Holder:
    """A process that holds a lock until it is told to let go (or dies)."""

    def __init__(self, path, kind, how=fcntl.LOCK_EX, keep_open=False):
        self.told, self.tell = os.pipe()
        answer, say = os.pipe()

        def hold():
            os.close(self.tell)
            fd = os.open(path, os.O_RDWR)
            KINDS[kind](fd, how)
            os.write(say, b'1')
            os.read(self.told, 1)
            if not keep_open:
                os.close(fd)
        self.child = Child(hold)
        os.close(say)
        assert os.read(answer, 1) == b'1'
        os.close(answer)
        os.close(self.told)

    def let_go(self):
        os.write(self.tell, b'1')  # later children have a copy of it: closing it would say nothing
        os.close(self.tell)
        self.child.result()

    def kill(self):
        os.kill(self.child.pid, signal.SIGKILL)
        os.close(self.tell)


def attempt(path, kind, how=fcntl.LOCK_EX):
    """What a process gets that does not wait."""
    def go():
        fd = os.open(path, os.O_RDWR)
        return errno_of(KINDS[kind], fd, how | fcntl.LOCK_NB)
    return in_child(go)


def waiter(path, kind, how=fcntl.LOCK_EX):
    """A process that waits for the lock; it has begun to when this returns."""
    answer, say = os.pipe()

    def go():
        fd = os.open(path, os.O_RDWR)
        os.write(say, b'1')
        KINDS[kind](fd, how)
        return time.monotonic()
    child = Child(go)
    os.close(say)
    assert os.read(answer, 1) == b'1'
    os.close(answer)
    # It is asleep in the call: in the kernel's lock code or in a request to the daemon.
    wait_for(lambda: read(f'/proc/{child.pid}/stat').rsplit(')', 1)[1].split()[0] in 'SD' and
             read(f'/proc/{child.pid}/wchan') not in ('', '0', 'pipe_read'))
    return child


FREE, HELD = None, ('EAGAIN', 'EACCES')


@both
@pairs
def test_a_lock_on_one_side_keeps_the_other_out_until_it_is_given_back(sides, kind, holder, other):
    h = Holder(sides[holder], kind)
    assert attempt(sides[other], kind) in HELD
    assert attempt(sides[other], kind, fcntl.LOCK_SH) in HELD
    h.let_go()
    wait_for(lambda: attempt(sides[other], kind) is FREE)


@both
@pairs
def test_shared_locks_share_and_keep_writers_out(sides, kind, holder, other):
    h = Holder(sides[holder], kind, fcntl.LOCK_SH)
    assert attempt(sides[other], kind, fcntl.LOCK_SH) is FREE
    assert attempt(sides[other], kind) in HELD
    h.let_go()


@both
@pairs
def test_who_waits_gets_the_lock_when_it_is_given_back(sides, kind, holder, other):
    h = Holder(sides[holder], kind)
    w = waiter(sides[other], kind)
    assert not w.done()
    h.let_go()
    w.result()


@both
@pairs
def test_a_lock_goes_when_its_holder_is_killed(sides, kind, holder, other):
    h = Holder(sides[holder], kind)
    w = waiter(sides[other], kind)
    h.kill()
    w.result()


@both
@pairs
def test_a_waiter_can_be_killed_and_leaves_nothing(sides, kind, holder, other):
    h = Holder(sides[holder], kind)
    w = waiter(sides[other], kind)
    os.kill(w.pid, signal.SIGKILL)
    with pytest.raises(Exception) as e:
        w.result(30)
    assert not isinstance(e.value, Hang)
    h.let_go()
    wait_for(lambda: attempt(sides[holder], kind) is FREE)
    wait_for(lambda: attempt(sides[other], kind) is FREE)


@both
@pytest.mark.parametrize('holder, other', PAIRS[:3], ids=lambda p: p.replace(' ', '-'))
def test_a_signal_ends_the_wait_with_eintr(sides, kind, holder, other):
    h = Holder(sides[holder], kind)

    def wait_and_be_interrupted():
        libc = ctypes.CDLL(None, use_errno=True)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        fd = os.open(sides[other], os.O_RDWR)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        # not by Python's functions, which begin again
        if kind == 'flock':
            r = libc.flock(fd, fcntl.LOCK_EX)
        else:
            r = libc.lockf(fd, 1, ctypes.c_long(0))  # F_LOCK
        return r, errno.errorcode.get(ctypes.get_errno())
    assert in_child(wait_and_be_interrupted, 30) == (-1, 'EINTR')
    h.let_go()
    wait_for(lambda: attempt(sides[other], kind) is FREE)


@pairs
def test_ranges_that_do_not_overlap_do_not_exclude_each_other(sides, holder, other):
    def lock(fd, start, length, how=fcntl.LOCK_EX):
        fcntl.lockf(fd, how | fcntl.LOCK_NB, length, start)
    with open(sides[holder], 'r+b') as f:
        lock(f, 10, 10)

        def others():
            fd = os.open(sides[other], os.O_RDWR)
            return [errno_of(lock, fd, *r) for r in [(0, 10), (20, 5), (19, 2), (5, 6), (0, 0)]]
        got = in_child(others)
        assert got[:2] == [None, None]
        assert all(e in HELD for e in got[2:])
        fcntl.lockf(f, fcntl.LOCK_UN, 0, 15)
        assert in_child(others)[2] is FREE  # 19 to 20: the tail was given back


@pairs
def test_a_lock_of_the_process_is_upgraded_and_downgraded(sides, holder, other):
    with open(sides[holder], 'r+b') as f:
        fcntl.lockf(f, fcntl.LOCK_SH)
        assert attempt(sides[other], 'fcntl', fcntl.LOCK_SH) is FREE
        fcntl.lockf(f, fcntl.LOCK_EX)
        assert attempt(sides[other], 'fcntl', fcntl.LOCK_SH) in HELD
        fcntl.lockf(f, fcntl.LOCK_SH)
        assert attempt(sides[other], 'fcntl', fcntl.LOCK_SH) is FREE


@pytest.mark.parametrize('holder, other', PAIRS[:3], ids=lambda p: p.replace(' ', '-'))
def test_closing_one_of_two_descriptors_drops_the_locks_of_the_process(sides, holder, other):
    """As POSIX has it, and as a disk does it."""
    with open(sides[holder], 'r+b') as f:
        second = os.open(sides[holder], os.O_RDWR)
        fcntl.lockf(f, fcntl.LOCK_EX)
        assert attempt(sides[other], 'fcntl') in HELD
        os.close(second)
        wait_for(lambda: attempt(sides[other], 'fcntl') is FREE)


@pytest.mark.parametrize('holder, other', PAIRS[:3], ids=lambda p: p.replace(' ', '-'))
def test_a_flock_belongs_to_the_description_and_a_fork_keeps_it(sides, holder, other):
    fd = os.open(sides[holder], os.O_RDWR)
    second = os.open(sides[holder], os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(second)
    assert attempt(sides[other], 'flock') in HELD
    told, tell = os.pipe()

    def heir():
        os.close(tell)
        os.read(told, 1)
    child = Child(heir)
    os.close(told)
    os.close(fd)
    assert attempt(sides[other], 'flock') in HELD
    os.close(tell)
    child.result()
    wait_for(lambda: attempt(sides[other], 'flock') is FREE)


@pytest.mark.parametrize('holder, other', PAIRS[:3], ids=lambda p: p.replace(' ', '-'))
def test_a_fork_does_not_inherit_the_locks_of_the_process(sides, holder, other):
    with open(sides[holder], 'r+b') as f:
        fcntl.lockf(f, fcntl.LOCK_EX)

        def child():
            refused = errno_of(fcntl.lockf, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(f.fileno())  # and its close does not take the parent's away
            return refused
        assert in_child(child) in HELD
        assert attempt(sides[other], 'fcntl') in HELD


@pairs
def test_locks_of_open_descriptions_exclude_each_other_within_a_process_too(sides, holder, other):
    one, two, three = (os.open(p, os.O_RDWR) for p in [sides[holder], sides[other], sides[holder]])
    try:
        ofd(one, F_OFD_SETLK, fcntl.F_WRLCK, 0, 10)
        for fd in [two, three]:
            assert errno_of(ofd, fd, F_OFD_SETLK, fcntl.F_WRLCK, 5, 10) in HELD
            assert ofd(fd, F_OFD_GETLK, fcntl.F_WRLCK, 5, 10) == fcntl.F_WRLCK
            assert errno_of(ofd, fd, F_OFD_SETLK, fcntl.F_WRLCK, 10, 10) is None
            ofd(fd, F_OFD_SETLK, fcntl.F_UNLCK, 10, 10)
        assert attempt(sides[other], 'fcntl') in HELD
        copy = os.dup(one)
        os.close(one)
        assert errno_of(ofd, two, F_OFD_SETLK, fcntl.F_WRLCK, 0, 1) in HELD
        os.close(copy)
        one = None
        wait_for(lambda: errno_of(ofd, two, F_OFD_SETLK, fcntl.F_WRLCK, 0, 1) is None)
    finally:
        for fd in [one, two, three]:
            if fd is not None:
                os.close(fd)


def test_the_two_kinds_of_locks_do_not_disturb_each_other(sides):
    h = Holder(sides['mount'], 'flock')
    assert attempt(sides['below'], 'fcntl') is FREE
    assert attempt(sides['mount'], 'fcntl') is FREE
    h.let_go()


@both
def test_a_hundred_waiters_of_both_sides_get_the_lock_one_after_the_other(sides, kind):
    write(sides['below'] + '.count', '0')

    def count(path):
        for _ in range(5):
            with open(path, 'r+b') as f:
                KINDS[kind](f, fcntl.LOCK_EX)
                n = int(read(sides['below'] + '.count'))
                write(sides['below'] + '.count', str(n + 1))
    children = [Child(lambda p=p: count(p)) for p in list(sides.paths.values()) * 8]
    for child in children:
        child.result(120)
    assert read(sides['below'] + '.count') == str(len(children) * 5)


def test_what_the_holder_wrote_is_seen_by_whoever_gets_the_lock_next(sides):
    """A granted lock is a point where both sides agree: sizes, contents and names beside the file."""
    turns = 60

    def play(path, mine):
        with open(path, 'r+b') as f:
            done = 0
            while done < turns:
                fcntl.lockf(f, fcntl.LOCK_EX)
                f.seek(0)
                lines = f.read().decode().split('\n')
                n = len(lines) - 1
                if n % 2 == mine:
                    assert os.fstat(f.fileno()).st_size == sum(len(x) + 1 for x in lines[:-1])
                    assert os.path.exists(f'{path}.{n}') or n == 0
                    f.seek(0, 2)
                    f.write(b'turn %d\n' % n)
                    f.flush()
                    write(f'{path}.{n + 1}', 'x')
                    if n > 1:
                        os.unlink(f'{path}.{n - 1}')
                    done += 1
                fcntl.lockf(f, fcntl.LOCK_UN)
                time.sleep(0.0005)
    write(sides['below'], '')
    players = [Child(lambda: play(sides['mount'], 0)), Child(lambda: play(sides['below'], 1))]
    for p in players:
        p.result(120)
    assert read(sides['mount']) == ''.join(f'turn {i}\n' for i in range(2 * turns))


@both
def test_a_mount_ends_while_somebody_waits_for_a_lock(mount, kind):
    d = mount()
    s = d.session().use()
    write(s / 'f', 'x')
    holder = Holder(below(s, 'f'), kind)
    waiting = waiter(s / 'f', kind)
    d.stop(by=signal.SIGTERM)
    with pytest.raises(OSError):
        waiting.result(20)
    holder.let_go()
