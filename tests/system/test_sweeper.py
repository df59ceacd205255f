# SPDX-License-Identifier: Apache-2.0
"""What is idle is closed at its deadline, what is in use is not, and limits are kept."""

import mmap
import os
import select
import time

import pytest

from harness import control, errno_of, in_child, read, thread_files, wait_for, write

GONE = ('closed', 'evicted', 'expired')


def gone(events, s, timeout=60, seen=0):
    """Waits for the event that tells of the session's workspace being closed."""
    wanted = s.id()
    return events.wait(lambda e: e.get('id') == wanted and e['event'] in GONE, timeout, seen)


@pytest.fixture
def short(mount):
    return mount(ttl='2s')


@pytest.fixture
def events(short):
    follower = short.events()
    yield follower
    follower.close()


def pass_ttls(daemon, events, n=2):
    """Lets n ttls go by: uses a workspace and waits for it to be closed, n times."""
    other = daemon.session('time/passes/by')
    for _ in range(n):
        seen = len(events.lines)
        other.use()
        gone(events, other, seen=seen)


def test_an_idle_workspace_is_closed_at_its_deadline_and_not_before(short, events):
    s = short.session()
    write(s / 'f', 'x')
    start = time.monotonic()
    gone(events, s)
    assert time.monotonic() - start >= 1.5
    assert s.state() == 'absent'
    assert read(s / 'f') == 'x'


def test_each_workspace_has_its_own_deadline(short, events):
    first, second, third = (short.session(f'alice/a{i}/s').use() for i in range(3))
    second.ctl('ttl 600')
    third.ctl('ttl 1')
    third.ctl('touch')
    first.ctl('touch')
    gone(events, third)
    gone(events, first)
    order = [e['id'] for e in events.lines if e['event'] in GONE]
    assert order.index(third.id()) < order.index(first.id())
    assert second.state() == 'ready'


def test_use_moves_the_deadline(short, events):
    s, other = short.session().use(), short.session('bob/coder/s')
    for _ in range(2):
        seen = len(events.lines)
        other.use()
        while not any(e.get('id') == other.id() and e['event'] in GONE for e in events.lines[seen:]):
            errno_of(os.stat, s / f'n{time.monotonic_ns()}')
            events.more(0.3)
        assert s.state() == 'ready'


def test_touch_moves_the_deadline_and_looking_at_the_session_does_not(short, events):
    touched, looked_at = short.session('alice/a/s').use(), short.session('alice/b/s').use()
    while not any(e.get('id') == looked_at.id() and e['event'] in GONE for e in events.lines):
        touched.ctl('touch')
        os.stat(looked_at.path)
        looked_at.status()
        os.listdir(os.path.dirname(looked_at.path))
        events.more(0.3)
    assert touched.state() == 'ready'


def test_an_open_file_holds_its_workspace(short, events):
    s = short.session()
    with open(s / 'f', 'w', encoding='utf-8') as f:
        pass_ttls(short, events)
        assert s.state() == 'ready'
        f.write('x')
    gone(events, s)
    assert read(s / 'f') == 'x'


def test_a_mapped_open_file_holds_its_workspace(short, events):
    s = short.session()
    write(s / 'f', b'x' * 4096)
    with open(s / 'f', 'r+b') as f, mmap.mmap(f.fileno(), 4096):
        pass_ttls(short, events)
        assert s.state() == 'ready'
    gone(events, s)


def test_a_pin_holds_its_workspace_until_it_is_unpinned(short, events):
    s = short.session().use()
    s.ctl('pin')
    pass_ttls(short, events)
    assert s.state() == 'ready'
    s.ctl('unpin')
    gone(events, s)


def test_an_open_directory_does_not_hold_its_workspace(short, events):
    s = short.session().use()
    fd = os.open(s.path, os.O_RDONLY)
    try:
        gone(events, s)
        assert os.listdir(fd) == []
    finally:
        os.close(fd)


def test_use_that_the_kernel_answers_from_its_caches_holds_its_workspace(short, events):
    s = short.session()
    os.makedirs(s / 'a/b')
    write(s / 'a/b/f', 'x')
    os.stat(s / 'a/b/f')
    stop_read, stop_write = os.pipe()

    def look():
        while True:
            os.stat(s / 'a/b/f')
            if select.select([stop_read], [], [], 0.02)[0]:
                return
    looking = short.child(look)
    pass_ttls(short, events, 3)
    assert s.state() == 'ready'
    assert not any(e.get('id') == s.id() and e['event'] in GONE for e in events.lines)
    os.write(stop_write, b'.')
    looking.result()
    gone(events, s)
    for fd in [stop_read, stop_write]:
        os.close(fd)


def test_a_ttl_of_zero_means_never(mount):
    daemon = mount(ttl='0')
    s = daemon.session().use()
    assert s.status()['ttl_s'] == 0
    other = daemon.session('bob/coder/s').use()
    events = daemon.events()
    try:
        for _ in range(2):
            other.use()
            seen = len(events.lines)
            other.ctl('ttl 1', 'touch')
            gone(events, other, seen=seen)
    finally:
        events.close()
    assert s.state() == 'ready'


def test_max_age_closes_even_what_is_busy_and_says_so(mount):
    daemon = mount(max_age='2s')
    s = daemon.session()
    events = daemon.events()
    try:
        with open(s / 'f', 'w', encoding='utf-8') as f:
            gone(events, s)
            f.write('still')
    finally:
        events.close()
    assert read(s / 'f') == 'still'


def test_sweep_closes_what_is_past_its_ttl(short, events):
    s = short.session().use()
    short.ctl('sweep')
    assert s.state() == 'ready'
    gone(events, s)
    short.ctl('sweep')


def test_a_shorter_ttl_after_reload_holds_for_what_is_live(mount):
    daemon = mount(config='[mount]\nttl = 1h\n')
    s = daemon.session().use()
    write(daemon.opts['config'], '[mount]\nttl = 2s\n')
    events = daemon.events()
    try:
        daemon.ctl('reload')
        gone(events, s)
    finally:
        events.close()


def test_an_evicted_workspace_comes_back_with_one_call(short, events):
    s = short.session()
    write(s / 'f', 'x')
    for _ in range(2):
        seen = len(events.lines)
        gone(events, s, seen=seen)
        assert s.state() == 'absent'
        assert in_child(lambda: read(s / 'f')) == 'x'
        assert s.state() == 'ready'


def test_an_evicted_workspace_comes_back_under_a_working_directory(short, events):
    s = short.session()
    os.mkdir(s / 'd')
    write(s / 'd/f', 'x')
    stop_read, stop_write = os.pipe()

    def work():
        os.chdir(s / 'd')
        os.read(stop_read, 1)
        return read('f'), os.listdir('.'), os.getcwd()
    worker = short.child(work)
    wait_for(lambda: os.readlink(f'/proc/{worker.pid}/cwd') == s / 'd')
    gone(events, s)
    os.write(stop_write, b'.')
    assert worker.result() == ('x', ['f'], s / 'd')
    os.close(stop_read)
    os.close(stop_write)


# ── admission ───────────────────────────────────────────────────────────────────────────────

def test_at_max_live_the_longest_idle_one_makes_room(mount):
    daemon = mount(max_live=3)
    sessions = [daemon.session(f'alice/a{i}/s') for i in range(5)]
    for s in sessions[:3]:
        s.use()
        time.sleep(0.02)  # more than a tick of any clock
    errno_of(os.stat, sessions[0] / 'used-again')
    time.sleep(0.02)
    sessions[3].use()
    assert [s.state() for s in sessions] == ['ready', 'absent', 'ready', 'ready', 'absent']
    sessions[4].use()
    assert [s.state() for s in sessions] == ['ready', 'absent', 'absent', 'ready', 'ready']


def test_at_max_live_what_is_busy_or_pinned_stays_and_the_newcomer_is_refused(mount):
    daemon = mount(max_live=2)
    daemon.expect('max_live')
    pinned, busy, third = (daemon.session(f'alice/a{i}/s') for i in range(3))
    pinned.use().ctl('pin')
    with open(busy / 'f', 'w', encoding='utf-8'):
        assert errno_of(os.listdir, third.path) == 'EDQUOT'
        assert 'max_live' in third.error() and '2' in third.error()
        assert (pinned.state(), busy.state()) == ('ready', 'ready')
    wait_for(lambda: errno_of(os.listdir, third.path) is None, 30)
    assert (pinned.state(), busy.state()) == ('ready', 'absent')


def test_at_max_live_the_newcomer_waits_for_the_close_of_what_makes_room(mount):
    daemon = mount.test_backend(max_live=1)
    first, second = daemon.session('alice/a/s').use(), daemon.session('alice/b/s')
    control(daemon, first.id(), 'close_delay_ms 1000')
    os.listdir(second.path)
    assert (first.state(), second.state()) == ('absent', 'ready')
    lines = [line for line in read(f'{daemon.top}/control/log').splitlines()]
    assert [line.split()[0] for line in lines if line.split()[0] in ('provision', 'close')][:3] == \
        ['provision', 'close', 'provision']


def test_max_live_per_user_counts_each_user_apart(mount):
    daemon = mount(max_live_per_user=1)
    alice = [daemon.session(f'alice/a{i}/s') for i in range(2)]
    bob = daemon.session('bob/b/s').use()
    alice[0].use()
    alice[1].use()
    assert [alice[0].state(), alice[1].state(), bob.state()] == ['absent', 'ready', 'ready']
    alice[1].ctl('pin')
    daemon.expect('max_live_per_user')
    assert errno_of(os.listdir, alice[0].path) == 'EDQUOT'
    assert 'max_live_per_user' in alice[0].error()


def test_a_users_own_limit_wins(mount):
    daemon = mount(max_live_per_user=1, config='[user alice]\nmax_live = 2\n')
    alice = [daemon.session(f'alice/a{i}/s').use() for i in range(2)]
    bob = [daemon.session(f'bob/a{i}/s').use() for i in range(2)]
    assert [s.state() for s in alice + bob] == ['ready', 'ready', 'absent', 'ready']


@pytest.mark.concurrency
def test_many_newcomers_at_max_live_keep_the_limit_and_are_all_served(mount):
    from test_concurrency import in_threads
    daemon = mount(max_live=4)
    daemon.expect('max_live')
    sessions = [daemon.session(f'alice/a{i}/s') for i in range(40)]

    def one(i):
        return errno_of(write, sessions[i] / 'f', str(i))
    results = in_child(lambda: in_threads(40, one), 100)
    assert set(results) <= {None, 'EDQUOT'}
    assert sum(s.state() == 'ready' for s in sessions) <= 4
    for i, s in enumerate(sessions):
        if results[i] is None:
            assert read(s / 'f') == str(i)


# ── many ────────────────────────────────────────────────────────────────────────────────────

def switches(pid):
    """How often the daemon's threads have gone to sleep."""
    return sum(int(line.split()[1]) for text in thread_files(pid, 'status') for line in text.splitlines()
               if line.startswith(('voluntary_ctxt', 'nonvoluntary_ctxt')))


def test_a_daemon_with_idle_workspaces_sleeps(daemon):
    for i in range(50):
        daemon.session(f'alice/a{i}/s').use()
    wait_for(lambda: _quiet(daemon.pid), 60, 'the daemon to sleep for a second')


def _quiet(pid):
    before = switches(pid)
    time.sleep(1)
    return switches(pid) - before <= 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_workspaces_are_swept_without_a_scan_of_them_all(mount):
    daemon = mount(isolation='per_session', ttl='1h')
    sessions = [daemon.session(f'alice/coder/s{i}') for i in range(10000)]
    for s in sessions:
        os.close(os.open(s.path, os.O_RDONLY | os.O_DIRECTORY))
    assert read(f'{daemon.mnt}/.wsm/workspaces').count('ready') == 10000
    wait_for(lambda: _quiet(daemon.pid), 60, 'the daemon to sleep for a second')
    # One with a deadline of its own goes; the others are not looked at for that.
    events = daemon.events()
    try:
        spent = cpu_s(daemon.pid)
        for s in sessions[::1000]:
            s.ctl('ttl 2', 'touch')
        for s in sessions[::1000]:
            gone(events, s)
        assert cpu_s(daemon.pid) - spent < 1.0
    finally:
        events.close()
    daemon.restart(ttl='5s')
    for s in sessions:
        os.close(os.open(s.path, os.O_RDONLY | os.O_DIRECTORY))
    wait_for(lambda: 'ready' not in read(f'{daemon.mnt}/.wsm/workspaces'), 300)


def cpu_s(pid):
    words = read(f'/proc/{pid}/stat').rsplit(')', 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK')
