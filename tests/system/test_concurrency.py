# SPDX-License-Identifier: Apache-2.0
"""Waiting: who waits for what, for how long, and what they are told. With the test backend, whose
callers wait as for remote files."""

import os
import signal
import subprocess
import threading
import time

import pytest

from harness import SLOWNESS, Hang, control, errno_of, in_child, read, wait_for, write

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def remote(mount):
    return mount.test_backend()


def provisions(daemon, of=None):
    """How often the backend was asked to provision (a workspace)."""
    try:
        lines = read(f'{daemon.top}/control/log').splitlines()
    except FileNotFoundError:
        return 0
    return sum(line.split()[0] == 'provision' and of in (None, line.split()[1]) for line in lines)


def in_threads(n, function):
    """Calls function(i) in n threads at once and returns what they returned."""
    results = [None] * n
    barrier = threading.Barrier(n)

    def one(i):
        barrier.wait()
        try:
            results[i] = function(i)
        except BaseException as e:  # pylint: disable=broad-except
            results[i] = e
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


# ── single flight ───────────────────────────────────────────────────────────────────────────

@pytest.mark.concurrency
def test_200_threads_that_touch_one_new_session_provision_it_once(remote):
    control(remote, 'default', 'delay_ms 300')
    s = remote.session()
    results = in_child(lambda: in_threads(200, lambda i: errno_of(os.listdir, s.path)), 200)
    assert results == [None] * 200
    assert provisions(remote) == 1


@pytest.mark.concurrency
def test_callers_of_all_kinds_through_several_sessions_provision_a_workspace_once(remote):
    control(remote, 'default', 'delay_ms 300')
    sessions = [remote.session(f'alice/coder/s{i}') for i in range(5)]
    calls = [lambda s, i: os.listdir(s.path), lambda s, i: write(s / f'f{i}', 'x'), lambda s, i: os.mkdir(s / f'd{i}'),
             lambda s, i: os.path.exists(s / 'nothing'), lambda s, i: s.ctl('provision')]
    results = in_child(lambda: in_threads(50, lambda i: errno_of(calls[i % 5], sessions[i // 10], i)), 200)
    assert results == [None] * 50
    assert provisions(remote) == 1
    assert len(os.listdir(sessions[0].path)) == 20


@pytest.mark.concurrency
def test_many_new_sessions_at_once_are_each_provisioned_once(remote):
    control(remote, 'default', 'delay_ms 20')
    sessions = [remote.session(f'alice/agent{i}/s') for i in range(100)]
    results = in_child(lambda: in_threads(200, lambda i: errno_of(os.listdir, sessions[i % 100].path)), 200)
    assert results == [None] * 200
    assert provisions(remote) == 100
    assert [provisions(remote, s.id()) for s in sessions] == [1] * 100


# ── a slow one delays nobody ────────────────────────────────────────────────────────────────

def use_many(daemon, first, n):
    """Provisions and uses n new sessions from 4 threads; returns what the slowest took."""
    def one(i):
        slowest = 0
        for k in range(n // 4):
            s = daemon.session(f'user/agent{first + i * n + k}/s')
            start = time.monotonic()
            write(s / 'f', 'x')
            assert read(s / 'f') == 'x'
            slowest = max(slowest, time.monotonic() - start)
        return slowest
    results = in_threads(4, one)
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return max(results)


@pytest.mark.concurrency
def test_a_workspace_that_hangs_with_500_callers_delays_nobody(remote):
    hung = remote.session('alice/hung/s1')
    control(remote, hung.id(), 'hang')
    n = 1000 if SLOWNESS < 10 else 200
    use_many(remote, 0, 40)
    before = [in_child(lambda t=t: use_many(remote, 10000 * (t + 1), n), 250) for t in range(2)]
    waiting = remote.child(lambda: in_threads(500, lambda i: errno_of(os.listdir, hung.path)))
    hung.wait_state('provisioning')
    wait_for(lambda: len(os.listdir(f'/proc/{waiting.pid}/task')) > 500)
    # The slowest of a thousand is weather; what the hanging one delays is late in every round.
    for t in range(6):
        after = in_child(lambda t=t: use_many(remote, 10000 * (t + 5), n), 250)
        if after <= 2 * max(before) + 0.05:
            break
    assert after <= 2 * max(before) + 0.05
    assert not waiting.done()
    assert hung.state() == 'provisioning'
    control(remote, hung.id())
    assert waiting.result(100) == [None] * 500
    assert provisions(remote, hung.id()) == 1


def test_the_mount_answers_while_a_workspace_hangs(remote):
    hung, other = remote.session('alice/hung/s1'), remote.session('alice/coder/s1')
    control(remote, hung.id(), 'hang')
    callers = [remote.child(lambda: errno_of(os.listdir, hung.path)),
               remote.child(lambda: errno_of(write, hung / 'f', 'x')),
               remote.child(lambda: errno_of(os.stat, hung / 'g'))]
    hung.wait_state('provisioning')

    def look():
        os.stat(hung.path)
        os.listdir(remote.mnt)
        os.listdir(f'{remote.mnt}/alice/hung')
        remote.status()
        os.statvfs(remote.mnt)
        write(other / 'f', 'x')
        return hung.state()
    assert in_child(look, 30) == 'provisioning'
    assert not any(c.done() for c in callers)
    control(remote, hung.id())
    assert [c.result(30) for c in callers] == [None, None, 'ENOENT']


def test_more_hanging_workspaces_than_the_daemon_has_threads_delay_nobody(remote):
    hung = [remote.session(f'alice/hung{i}/s') for i in range(40)]
    for s in hung:
        control(remote, s.id(), 'hang')
    callers = [remote.child(lambda s=s: errno_of(os.listdir, s.path)) for s in hung]
    for s in hung:
        s.wait_state('provisioning')
    in_child(lambda: use_many(remote, 0, 40), 60)
    for s in hung:
        control(remote, s.id())
    for c in callers:
        assert c.result(60) is None


# ── interrupts ──────────────────────────────────────────────────────────────────────────────

def waits_in_mount(pid):
    """The process sleeps in a request to the mount."""
    try:
        return 'request_wait' in read(f'/proc/{pid}/wchan') or 'fuse' in read(f'/proc/{pid}/stack')
    except (FileNotFoundError, PermissionError):
        return False


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize('words', [['ls', '{s}'], ['cat', '{s}/f'], ['touch', '{s}/f'], ['mkdir', '{s}/d'],
                                   ['sh', '-c', 'exec 3>{c}/ctl; echo provision >&3']], ids=lambda w: w[0])
def test_ctrl_c_on_a_waiting_caller_returns_at_once_and_leaves_the_others_waiting(remote, words, number):
    s = remote.session()
    control(remote, s.id(), 'hang')
    other = remote.child(lambda: errno_of(os.listdir, s.path))
    s.wait_state('provisioning')
    caller = remote.popen(*[w.format(s=s.path, c=s.control) for w in words], stderr=subprocess.DEVNULL,
                          start_new_session=True)
    wait_for(lambda: waits_in_mount(caller.pid), 20)
    start = time.monotonic()
    caller.send_signal(number)
    try:
        assert caller.wait(30) != 0
    except subprocess.TimeoutExpired as e:
        raise Hang('the caller cannot be interrupted') from e
    assert time.monotonic() - start < 2 * SLOWNESS
    assert not other.done()
    assert s.state() == 'provisioning'
    assert provisions(remote) == 1
    control(remote, s.id())
    assert other.result(30) is None


def test_an_interrupted_caller_does_not_stop_the_provisioning(remote):
    s = remote.session()
    control(remote, s.id(), 'hang')
    caller = remote.popen('ls', s.path)
    s.wait_state('provisioning')
    wait_for(lambda: waits_in_mount(caller.pid), 20)
    caller.send_signal(signal.SIGINT)
    caller.wait(30)
    assert s.state() == 'provisioning'
    control(remote, s.id())
    s.wait_state('ready')
    assert provisions(remote) == 1
    assert os.listdir(s.path) == []
    assert provisions(remote) == 1


@pytest.mark.concurrency
def test_500_interrupted_callers_leave_nothing_behind(remote):
    s = remote.session()
    control(remote, s.id(), 'hang')
    callers = [remote.child(lambda: os.listdir(s.path)) for _ in range(100)]
    s.wait_state('provisioning')
    for c in callers:
        wait_for(lambda c=c: waits_in_mount(c.pid), 20)
        c.signal(signal.SIGKILL)
    for c in callers:
        with pytest.raises(Exception):
            c.result(30)
    control(remote, s.id())
    assert os.listdir(s.path) == []
    assert provisions(remote) == 1


# ── failures ────────────────────────────────────────────────────────────────────────────────

ERRORS = ['EHOSTUNREACH', 'EACCES', 'ENXIO', 'EINVAL', 'EDQUOT', 'ETIMEDOUT', 'EIO']


@pytest.mark.parametrize('code', ERRORS)
def test_a_failure_has_its_errno_and_its_sentence(remote, code):
    remote.expect('.*fails on purpose')
    s = remote.session()
    control(remote, 'default', f'fail {code} it fails on purpose')
    assert errno_of(os.listdir, s.path) == code
    assert errno_of(write, s / 'f', 'x') == code
    assert s.state() == 'failed'
    assert 'it fails on purpose' in s.error()
    assert 'it fails on purpose' in s.status()['error']


def test_any_other_failure_is_eio(remote):
    remote.expect('.*fails on purpose')
    s = remote.session()
    control(remote, 'default', 'fail ENOSPC it fails on purpose')
    assert errno_of(os.listdir, s.path) == 'EIO'


def test_within_the_back_off_accesses_fail_at_once_and_after_it_the_next_one_tries_again(remote):
    remote.expect('.*fails on purpose')
    s = remote.session()
    control(remote, s.id(), 'fail EHOSTUNREACH it fails on purpose')

    def until_tried(n):
        """Accesses until the backend was asked n times; when the last of them began and ended."""
        while True:
            before = time.monotonic()
            assert errno_of(os.listdir, s.path) == 'EHOSTUNREACH'
            if provisions(remote) == n:
                return before, time.monotonic()
            assert before - begin < 60
    begin = time.monotonic()
    first = until_tried(1)
    second = until_tried(2)
    third = until_tried(3)
    assert second[1] - first[0] >= 0.95  # 1 s
    assert third[1] - second[0] >= 1.95  # doubled
    control(remote, s.id())
    wait_for(lambda: errno_of(os.listdir, s.path) is None, 60)
    assert s.state() == 'ready' and s.error() == ''


def test_nothing_retries_by_itself(remote):
    remote.expect('.*fails on purpose')
    s, other = remote.session(), remote.session('bob/coder/s')
    control(remote, s.id(), 'fail EIO it fails on purpose')
    assert errno_of(os.listdir, s.path) == 'EIO'
    control(remote, other.id(), 'delay_ms 3000')
    other.use()  # three seconds later
    assert provisions(remote, s.id()) == 1


def test_ctl_provision_tries_again_at_once(remote):
    remote.expect('.*fails on purpose')
    s = remote.session()
    control(remote, s.id(), 'fail ENXIO it fails on purpose')
    for _ in range(5):
        assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert provisions(remote) == 5
    control(remote, s.id())
    s.ctl('provision')
    assert os.listdir(s.path) == []


def test_one_failing_workspace_does_not_disturb_another(remote):
    remote.expect('.*fails on purpose')
    bad, good = remote.session('alice/bad/s'), remote.session('alice/good/s')
    control(remote, bad.id(), 'fail EIO it fails on purpose')
    for i in range(20):
        assert errno_of(os.listdir, bad.path) == 'EIO'
        write(good / f'f{i}', 'x')


def test_provisioning_that_takes_too_long_is_etimedout_and_given_up(mount):
    remote = mount.test_backend(provision_timeout='2s')
    remote.expect('time|provision')
    s, other = remote.session(), remote.session('bob/coder/s1')
    control(remote, s.id(), 'hang')
    callers = [remote.child(lambda: errno_of(os.listdir, s.path)), remote.child(lambda: errno_of(write, s / 'f', '')),
               remote.child(lambda: errno_of(s.ctl, 'provision'))]
    other.use()
    start = time.monotonic()
    for c in callers:
        assert c.result(60) == 'ETIMEDOUT'
    assert time.monotonic() - start < 20
    assert s.state() == 'failed'
    assert s.error() != ''
    control(remote, s.id())
    s.ctl('provision')
    assert os.listdir(s.path) == []


def test_callers_get_etimedout_even_when_the_backend_does_not_give_up(mount):
    remote = mount.test_backend(provision_timeout='2s', shutdown_timeout='2s')
    remote.expect('.*')
    s = remote.session()
    control(remote, s.id(), 'hang hard')
    caller = remote.child(lambda: errno_of(os.listdir, s.path))
    assert caller.result(60) == 'ETIMEDOUT'
    in_child(lambda: remote.session('bob/coder/s1').use() and None, 30)
    control(remote, s.id())


# ── closing ─────────────────────────────────────────────────────────────────────────────────

def test_an_access_waits_for_a_close_that_goes_on(remote):
    s = remote.session()
    write(s / 'f', 'x')
    control(remote, s.id(), 'close_delay_ms 1500')
    closing = remote.child(lambda: s.ctl('close'))
    s.wait_state('closing')
    reader = remote.child(lambda: read(s / 'f'))
    other = remote.session('bob/coder/s1')
    in_child(lambda: other.use() and None, 30)
    assert reader.result(60) == 'x'
    closing.result(60)
    assert provisions(remote, s.id()) == 2
    assert s.state() == 'ready'


@pytest.mark.parametrize('verb', ['close', 'close force'])
def test_who_waits_for_a_provisioning_that_is_closed_is_told_and_the_next_access_provisions(remote, verb):
    """To begin again by itself would undo the close, and hang again if it was hanging."""
    s = remote.session()
    control(remote, s.id(), 'delay_ms 600000')
    callers = [remote.child(lambda: errno_of(os.listdir, s.path)) for _ in range(5)] + \
        [remote.child(lambda: errno_of(write, s / 'f', 'x'))]
    s.wait_state('provisioning')
    for c in callers:
        wait_for(lambda c=c: waits_in_mount(c.pid), 20)
    control(remote, s.id())
    in_child(lambda: s.ctl(verb), 30)
    assert [c.result(30) for c in callers] == ['ECANCELED'] * 6
    assert provisions(remote) == 1
    assert in_child(lambda: os.listdir(s.path), 30) == []
    assert provisions(remote) == 2


def test_a_close_that_fails_says_why(remote):
    remote.expect('.*refuses on purpose')
    s = remote.session()
    write(s / 'f', 'x')
    control(remote, s.id(), 'close_fail EIO it refuses on purpose')
    assert errno_of(s.ctl, 'close') == 'EIO'
    assert 'it refuses on purpose' in s.error()
    control(remote, s.id())
    wait_for(lambda: errno_of(s.ctl, 'close') is None, 40)
    assert s.state() == 'absent'
    assert read(s / 'f') == 'x'


def test_closing_what_is_absent_succeeds(remote):
    s = remote.session()
    s.ctl('close')
    assert s.state() == 'absent'
    assert provisions(remote) == 0


@pytest.mark.concurrency
def test_closes_and_accesses_that_race_end_in_a_usable_workspace(remote):
    control(remote, 'default', 'delay_ms 5', 'close_delay_ms 5')
    s = remote.session()
    write(s / 'f', 'x')
    stop = time.monotonic() + 6

    def work(i):
        odd = set()
        while time.monotonic() < stop:
            if i < 2:
                odd.add(errno_of(s.ctl, 'close'))
            elif i < 4:
                odd.add(errno_of(s.ctl, 'provision'))
            else:
                odd.add(errno_of(read, s / 'f'))
                odd.add(errno_of(os.listdir, s.path))
        return odd
    results = in_child(lambda: in_threads(12, work), 120)
    for i, odd in enumerate(results):
        allowed = {None, 'ECANCELED'} | ({'EBUSY'} if i < 2 else set())  # cancelled by a close
        assert odd <= allowed, (i, odd)
    assert read(s / 'f') == 'x'


@pytest.mark.concurrency
def test_verbs_binds_and_accesses_that_race_neither_hang_nor_crash(mount):
    daemon = mount()
    sessions = [daemon.session(f'alice/coder/s{i}') for i in range(4)]
    stop = time.monotonic() + 6

    def work(i):
        s, odd, n = sessions[i % 4], set(), 0
        calls = [lambda: s.ctl('close force'), lambda: s.ctl('fresh'), lambda: s.bind('shared'), lambda: s.bind(''),
                 lambda: write(s / f'f{i}', 'x'), lambda: os.listdir(s.path), lambda: os.rmdir(s.path),
                 lambda: s.ctl('pin', 'unpin', 'touch'), lambda: os.mkdir(s / f'd{n}'), lambda: s.status() and None,
                 lambda: s.ctl('destroy force')]
        while time.monotonic() < stop:
            n += 1
            odd.add(errno_of(calls[(n * 7 + i) % len(calls)]))
        return odd
    results = in_child(lambda: in_threads(12, work), 120)
    allowed = {None, 'EBUSY', 'EEXIST', 'ENOENT', 'ESTALE', 'EINTR', 'ENOTEMPTY', 'EAGAIN', 'ECANCELED'}
    for odd in results:
        assert odd <= allowed, odd
    for s in sessions:
        s.bind('')
        write(s / 'end', 'x')
        assert read(s / 'end') == 'x'


@pytest.mark.concurrency
def test_names_made_and_removed_by_many_threads_on_the_upper_levels(daemon):
    def work(i):
        odd = set()
        for n in range(40):
            path = f'{daemon.mnt}/user.{n % 5}'
            odd.add(errno_of(os.mkdir, path))
            odd.add(errno_of(os.mkdir, f'{path}/agent.{i % 2}'))
            odd.add(errno_of(os.listdir, daemon.mnt))
            odd.add(errno_of(os.rmdir, f'{path}/agent.{i % 2}'))
            odd.add(errno_of(os.rmdir, path))
        return odd
    for odd in in_child(lambda: in_threads(8, work), 100):
        assert odd <= {None, 'EEXIST', 'ENOENT', 'ENOTEMPTY', 'ESTALE'}, odd
    for name in os.listdir(daemon.mnt):
        for agent in os.listdir(f'{daemon.mnt}/{name}'):
            os.rmdir(f'{daemon.mnt}/{name}/{agent}')
        os.rmdir(f'{daemon.mnt}/{name}')
    assert os.listdir(daemon.mnt) == []


@pytest.mark.concurrency
def test_an_unmount_while_callers_wait_frees_them(mount):
    remote = mount.test_backend(shutdown_timeout='5s')
    remote.expect('.*')
    s = remote.session()
    control(remote, s.id(), 'hang')
    callers = [remote.child(lambda: errno_of(os.listdir, s.path)) for _ in range(20)]
    s.wait_state('provisioning')
    os.kill(remote.pid, signal.SIGTERM)
    for c in callers:
        assert c.result(60) is not None
    remote.proc.wait(60)
    assert remote.proc.returncode == 0
