# SPDX-License-Identifier: Apache-2.0
"""What is changed behind the mount is seen on it, soon and never half; what is changed through the
mount is not asked for again."""

import contextlib
import errno
import mmap
import os
import subprocess
import sys
import time

import pytest

from harness import SLOWNESS, Child, append, errno_of, read, wait_for, write
from workbench import PROGRAMS, below

pytestmark = pytest.mark.timeout(200)

SOON_S = 1.0
AIM_MS = 50


def seen_after(change, condition):
    """Makes a change and returns for how many seconds the mount did not show it."""
    change()
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 20, 'it is never seen'
    return time.monotonic() - start


def judge(name, times):
    times = sorted(times)
    print(f'\n{name}: median {times[len(times) // 2] * 1000:.2f} ms, worst {times[-1] * 1000:.1f} ms of {len(times)}, '
          f'aim {AIM_MS} ms')
    assert times[-1] < SOON_S * SLOWNESS
    # One straggler on a busy machine is no fault; the rule is.
    assert times[len(times) // 2] * 1000 < AIM_MS * SLOWNESS


ROUNDS = 20


@pytest.fixture
def place(fresh):
    """A directory of a session that the kernel knows well, and the same on the disk."""
    os.makedirs(fresh / 'a/b')
    for where in [fresh / '', fresh / 'a', fresh / 'a/b']:
        os.listdir(where)
        os.stat(where)
    return fresh / 'a/b', below(fresh, 'a/b')


def test_a_name_made_behind_is_there_soon_though_it_was_looked_for_before(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        for _ in range(3):
            assert not os.path.exists(f'{mnt}/n{i}')
        times.append(seen_after(lambda i=i: write(f'{base}/n{i}', 'x'), lambda i=i: os.path.exists(f'{mnt}/n{i}')))
        assert read(f'{mnt}/n{i}') == 'x'
    judge('made behind', times)


def test_a_name_removed_behind_is_gone_soon(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        write(f'{mnt}/n{i}', 'x')
        os.stat(f'{mnt}/n{i}')
        times.append(seen_after(lambda i=i: os.unlink(f'{base}/n{i}'), lambda i=i: not os.path.exists(f'{mnt}/n{i}')))
        assert f'n{i}' not in os.listdir(mnt)
    judge('removed behind', times)


def test_a_name_renamed_behind_is_where_it_is_now_soon(place):
    mnt, base = place
    times = []
    write(f'{mnt}/n0', 'x')
    for i in range(ROUNDS):
        assert not os.path.exists(f'{mnt}/n{i + 1}')
        times.append(seen_after(lambda i=i: os.rename(f'{base}/n{i}', f'{base}/n{i + 1}'),
                                lambda i=i: os.path.exists(f'{mnt}/n{i + 1}') and not os.path.exists(f'{mnt}/n{i}')))
    judge('renamed behind', times)


def test_a_file_written_behind_has_its_new_size_and_content_soon(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        write(f'{mnt}/f', 'x')
        assert os.stat(f'{mnt}/f').st_size == 1 and read(f'{mnt}/f') == 'x'
        times.append(seen_after(lambda i=i: write(f'{base}/f', f'longer {i:03}'),
                                lambda: os.stat(f'{mnt}/f').st_size == 10))
        assert read(f'{mnt}/f') == f'longer {i:03}'
    judge('written behind', times)


def test_a_file_of_the_same_size_has_its_new_content_soon(place):
    mnt, base = place
    times = []
    write(f'{mnt}/f', 'aaaa')
    for i in range(ROUNDS):
        read(f'{mnt}/f')
        text = f'{i:04}'
        times.append(seen_after(lambda t=text: write(f'{base}/f', t), lambda t=text: read(f'{mnt}/f') == t))
    judge('overwritten behind', times)


def test_a_mode_set_behind_is_shown_soon(place):
    mnt, base = place
    times = []
    write(f'{mnt}/f', 'x')
    os.mkdir(f'{mnt}/d')
    os.listdir(f'{mnt}/d')
    for i in range(ROUNDS):
        for name in 'fd':
            os.stat(f'{mnt}/{name}')
            mode = 0o700 | i
            times.append(seen_after(lambda n=name, m=mode: os.chmod(f'{base}/{n}', m),
                                    lambda n=name, m=mode: os.stat(f'{mnt}/{n}').st_mode & 0o777 == m))
    judge('chmod behind', times)


def test_a_second_name_made_behind_is_counted_soon(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        os.mkdir(f'{mnt}/d{i}')
        write(f'{mnt}/d{i}/f', 'x')
    for again in range(3):  # what the kernel is told by these it believes, once all is quiet
        for i in range(ROUNDS):
            os.utime(f'{mnt}/d{i}/f', (again, 1))
            os.stat(f'{mnt}/d{i}/f')
    for i in range(ROUNDS):
        times.append(seen_after(lambda n=i: os.link(f'{base}/d{n}/f', f'{base}/d{n}/g'),
                                lambda n=i: os.stat(f'{mnt}/d{n}/f').st_nlink == 2))
    judge('linked behind', times)


def test_the_mode_of_a_directory_that_nobody_has_entered_is_shown_within_its_second(place):
    mnt, base = place
    os.mkdir(f'{base}/d')
    os.stat(f'{mnt}/d')
    assert seen_after(lambda: os.chmod(f'{base}/d', 0o711), lambda: os.stat(f'{mnt}/d').st_mode & 0o777 == 0o711) < 1.5 * SLOWNESS


def test_a_listing_shows_soon_what_was_made_and_removed_behind(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        os.listdir(mnt)
        times.append(seen_after(lambda i=i: os.mkdir(f'{base}/d{i}'), lambda i=i: f'd{i}' in os.listdir(mnt)))
        times.append(seen_after(lambda i=i: os.rmdir(f'{base}/d{i}'), lambda i=i: f'd{i}' not in os.listdir(mnt)))
    judge('listed', times)


def test_a_whole_tree_replaced_behind_is_the_new_one_soon(place):
    mnt, base = place
    times = []
    for i in range(ROUNDS):
        os.makedirs(f'{base}/new/x/y')
        write(f'{base}/new/x/y/f', str(i))
        if i:
            assert read(f'{mnt}/t/x/y/f') == str(i - 1)

        def swap():
            if os.path.exists(f'{base}/t'):
                os.rename(f'{base}/t', f'{base}/old{time.monotonic_ns()}')
            os.rename(f'{base}/new', f'{base}/t')

        def there(i=i):
            with contextlib.suppress(OSError):
                return read(f'{mnt}/t/x/y/f') == str(i)
            return False
        times.append(seen_after(swap, there))
    judge('tree replaced behind', times)


def test_a_link_changed_behind_leads_to_its_new_target_soon(place):
    mnt, base = place
    times = []
    for name in 'ab':
        write(f'{base}/{name}', name)
    for i in range(ROUNDS):
        target = 'ab'[i % 2]

        def change(t=target):
            os.symlink(t, f'{base}/l.new')
            os.rename(f'{base}/l.new', f'{base}/l')

        def right(t=target):
            with contextlib.suppress(OSError):
                return os.readlink(f'{mnt}/l') == t and read(f'{mnt}/l') == t
            return False
        times.append(seen_after(change, right))
    judge('link replaced behind', times)


def test_what_one_session_does_another_sees_at_once(fresh):
    """Without waiting: nobody else is changing names in the directory."""
    a = fresh.use()
    b = fresh.daemon.session(os.path.dirname(fresh.names) + '/s2').use()
    late = 0
    for i in range(50):
        assert not os.path.exists(b / f'n{i}')
        write(a / f'n{i}', 'x')
        late += not os.path.exists(b / f'n{i}')
        os.rename(b / f'n{i}', b / f'm{i}')
        late += os.path.exists(a / f'n{i}') + (not os.path.exists(a / f'm{i}'))
        append(a / f'm{i}', 'y')
        assert read(b / f'm{i}') == 'xy' and os.stat(b / f'm{i}').st_size == 2
        os.unlink(a / f'm{i}')
        late += os.path.exists(b / f'm{i}')
    assert late == 0


# ── under load ──────────────────────────────────────────────────────────────────────────────

def version_text(n):
    """Its length tells the version as well as every line of it does."""
    return (f'version {n:06}\n' * (1 + n % 400)).ljust(16 * (1 + n % 400) + n % 15, '.')


def look_at(path, how, stale):
    """A name that is replaced behind the mount twice between the kernel's questions is ESTALE: try again."""
    while True:
        try:
            return how(path)
        except OSError as e:
            if e.errno != errno.ESTALE or not stale:
                raise


def reader(path, seconds, stale):
    """Versions never go back, and what stat says and what a read gives belong to one of them."""
    last, rounds, end = -1, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        fd = look_at(path, lambda p: os.open(p, os.O_RDONLY), stale)
        try:
            data = b''
            while piece := os.read(fd, 1 << 16):
                data += piece
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        n = int(data[8:14])
        assert data.decode() == version_text(n), f'a mixture: {data[:60]} … {data[-60:]}'
        assert size == len(data), (size, len(data))
        assert n >= last, f'{n} after {last}'
        after = look_at(path, os.stat, stale)
        # what is there now is this version or a later one: never the size of an earlier one
        newest = int(look_at(path, read, stale)[8:14])
        assert after.st_size in {len(version_text(v)) for v in range(n, newest + 1)}, (n, newest, after.st_size)
        last, rounds = newest, rounds + 1
    return rounds, last


@pytest.mark.concurrency
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
@pytest.mark.parametrize('where', ['behind', 'through the other session'])
def test_what_stat_says_and_a_read_gives_belong_to_one_version(mount, where, passthrough):
    daemon = mount(passthrough=passthrough)
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    target = (below(a) if where == 'behind' else b.path) + '/'
    write(a / 'f', version_text(0))
    seconds = 3

    def writer():
        n, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            n += 1
            write(f'{target}f.new', version_text(n))
            os.rename(f'{target}f.new', f'{target}f')
        return n
    readers = [Child(lambda p=p: reader(p, seconds, where == 'behind')) for p in [a / 'f', b / 'f', a / 'f']]
    made = Child(writer).result()
    for r in readers:
        rounds, last = r.result()
        assert rounds > 0 and last <= made
    wait_for(lambda: read(a / 'f') == version_text(made) == read(b / 'f'), 10)


@pytest.mark.concurrency
@pytest.mark.parametrize('how', ['replaced', 'moved to and fro', 'in a directory that is moved'])
def test_a_name_that_another_session_changes_all_the_time_is_never_stale(mount, how):
    daemon = mount()
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    os.mkdir(a / 'd')
    write(a / 'd/f', 'x')
    end = time.monotonic() + 3

    def change(n):
        if how == 'replaced':
            write(b / 'd/new', 'x')
            os.rename(b / 'd/new', b / 'd/f')
        elif how == 'moved to and fro':
            os.rename(b / 'd/f', b / 'd/g')
            os.rename(b / 'd/g', b / 'd/f')
        else:
            os.rename(b / ('d' if n % 2 == 0 else 'e'), b / ('e' if n % 2 == 0 else 'd'))

    def writer():
        n = 0
        while time.monotonic() < end:
            change(n)
            n += 1
        return n

    def opener():
        seen = set()
        while time.monotonic() < end:
            for act in (read, os.stat):
                seen.add(errno_of(act, a / 'd/f'))
        return seen
    openers = [Child(opener) for _ in range(3)]
    assert Child(writer).result() > 10
    for o in openers:
        assert o.result() <= ({None} if how == 'replaced' else {None, 'ENOENT'})


@pytest.mark.concurrency
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_many_writers_on_all_sides_append_and_no_line_is_lost(mount, passthrough):
    daemon = mount(passthrough=passthrough)
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    write(a / 'log', '')
    sides = {'a': a / 'log', 'b': b / 'log', 'below': below(a, 'log')}
    lines = 200

    def writer(name):
        fd = os.open(sides[name[:-1]], os.O_WRONLY | os.O_APPEND)
        for i in range(lines):
            os.write(fd, f'{name} {i:04} {"." * (i % 50)}\n'.encode())
        os.close(fd)

    def watcher(path, end):
        last = 0
        while time.monotonic() < end:
            before = os.stat(path).st_size
            text = read(path)
            assert '\0' not in text, 'a hole where somebody wrote'
            assert len(text) >= before >= 0 and len(text) >= last, (last, before, len(text))
            last = len(text)
    fd = os.open(sides['a'], os.O_WRONLY | os.O_APPEND)  # somebody logs from before they look until the end
    watchers = [Child(lambda p=p: watcher(p, time.monotonic() + 2)) for p in [a / 'log', b / 'log']]
    writers = [Child(lambda n=n: writer(n)) for n in ['a1', 'a2', 'b1', 'b2', 'below1', 'below2']]
    for c in writers + watchers:
        c.result()
    with open(sides['a'], 'rb') as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped) == os.stat(sides['below']).st_size  # while it is open for appending
    os.close(fd)
    expected = sorted(f'{n}{k} {i:04} {"." * (i % 50)}' for n in sides for k in '12' for i in range(lines))
    for path in sides.values():
        wait_for(lambda p=path: sorted(read(p).splitlines()) == expected, 10)


@pytest.mark.parametrize('passthrough', ['auto', 'off'])
@pytest.mark.parametrize('cached', ['read', 'mapped', 'open'])
def test_a_cached_file_appended_behind_and_then_through_the_mount_holds_all_three_pieces(mount, passthrough, cached):
    s = mount(passthrough=passthrough).session().use()
    for i in range(10):
        path, base = s / f'f{i}', below(s, f'f{i}')
        write(path, 'one,' * 2000)
        assert read(path) == 'one,' * 2000
        with contextlib.ExitStack() as stack:
            if cached != 'read':
                f = stack.enter_context(open(path, 'rb'))
                f.read()
            if cached == 'mapped':
                m = stack.enter_context(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))
                assert m[:4] == b'one,'
            append(base, 'two,' * 2000)
            append(path, 'three,' * 2000)
        expected = 'one,' * 2000 + 'two,' * 2000 + 'three,' * 2000
        assert read(base) == expected
        assert read(path) == expected
        assert os.stat(path).st_size == len(expected)


@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_negative_name_never_hides_a_file_from_a_busy_looker(mount, passthrough):
    """Names are looked for all the time, by two sessions, while they are made and removed behind."""
    daemon = mount(passthrough=passthrough)
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    os.mkdir(a / 'd')
    end = time.monotonic() + 4

    def looker(s):
        while time.monotonic() < end:
            for i in range(8):
                os.path.exists(s / f'd/n{i}')
    lookers = [Child(lambda s=s: looker(s)) for s in (a, b)]
    worst = 0
    n = 0
    while time.monotonic() < end:
        name = f'd/n{n % 8}'
        n += 1
        write(below(a, name), 'x')
        start = time.monotonic()
        wait_for(lambda k=name: os.path.exists(a / k) and os.path.exists(b / k), 10)
        os.unlink(below(a, name))
        wait_for(lambda k=name: not os.path.exists(a / k) and not os.path.exists(b / k), 10)
        worst = max(worst, time.monotonic() - start)
    for c in lookers:
        c.result()
    print(f'\n{n} names, the slowest there and gone again in {worst * 1000:.1f} ms')
    assert worst < 2 * SOON_S * SLOWNESS


# ── no storms ───────────────────────────────────────────────────────────────────────────────

def requests(daemon, before=None):
    now = {k: v for k, v in daemon.metrics().items() if k.startswith('wsmfs_requests_total')}
    return now if before is None else {k: v - before.get(k, 0) for k, v in now.items() if v > before.get(k, 0)}


def test_own_changes_do_not_make_the_kernel_forget_what_it_just_learned(daemon):
    s = daemon.session().use()
    os.mkdir(s / 'd')
    for i in range(200):
        write(s / f'd/f{i}', 'x' * 100)
    for i in range(200):
        os.stat(s / f'd/f{i}')
    time.sleep(0.2)  # whatever the host has to tell about this has been told
    start = requests(daemon)
    for _ in range(5):
        for i in range(200):
            os.stat(s / f'd/f{i}')
    asked = sum(requests(daemon, start).values())
    assert asked < 100, f'{asked} requests for 1000 cached stats: {requests(daemon, start)}'


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_hundred_thousand_files_are_looked_at_under_a_limit_of_1024_descriptors(mount):
    """What the daemon keeps open does not grow with the number of files that the kernel knows."""
    d = mount.prepare()
    d.program = f'{d.top}/limited'
    write(d.program, f'#!/bin/sh\nulimit -n 1024\nexec {__import__("harness").WSMFS} "$@"\n')
    os.chmod(d.program, 0o755)
    d.start()
    limit = read(f'/proc/{d.pid}/limits')
    assert [line.split()[3:5] for line in limit.splitlines() if line.startswith('Max open files')] == [['1024', '1024']]
    s = d.session().use()
    subprocess.run([sys.executable, f'{PROGRAMS}/many_files.py', below(s), '1000', '100'], check=True)
    count = 0
    for where, _, files in os.walk(s.path):
        for name in files:
            os.stat(f'{where}/{name}')
            count += 1
    assert count == 100000
    assert d.descriptors() < 1000
    held = [os.open(s / f'd{i}/f{i % 100}', os.O_RDONLY) for i in range(300)]
    assert all(os.read(fd, 1) == b'x' for fd in held)
    for fd in held:
        os.close(fd)
    assert errno_of(read, s / 'd999/f99') is None
