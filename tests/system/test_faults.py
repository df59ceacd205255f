# SPDX-License-Identifier: Apache-2.0
"""A full disk, a base directory that goes away, a kernel that lacks a call: the right errno where it
happens, nothing elsewhere, and all is well again when the cause is gone."""

import errno
import os
import shutil
import signal

import pytest

from harness import Child, append, errno_of, read, run, sh, wait_for, write
from workbench import below, compiled, needs, tmpfs, without  # pylint: disable=unused-import

pytestmark = [pytest.mark.root, pytest.mark.timeout(200)]


def works_again(function):
    """Soon after there is room: the kernel tells the daemon a moment after an unlink that nobody has the file
    any more (docs/posix.md)."""
    wait_for(lambda: errno_of(function) is None, 20)


# ── a full disk ─────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def small(mount, workdir):
    """small(option=value, …): a mount whose base directory is a file system of a few megabytes."""
    made = []

    def make(**opts):
        d = mount.prepare(**opts)
        run('mount', '-t', 'tmpfs', '-o', 'size=8m,mode=0700', 'tmpfs', _made(d.basedir))
        made.append(d)
        return d.start()

    def _made(path):
        os.makedirs(path)
        return path
    yield make
    for d in made:
        d.stop()
        run('umount', '-l', d.basedir, check=False)


@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_full_disk_is_enospc_and_nothing_written_before_is_lost(small, passthrough):
    daemon = small(passthrough=passthrough)
    s, other = daemon.session().use(), daemon.session('bob/coder/s1').use()
    write(s / 'kept', 'kept')
    write(other / 'kept', 'kept')
    written, failed = 0, None
    with open(s / 'big', 'wb', buffering=0) as f:
        while failed is None and written < 64 << 20:
            try:
                written += f.write(b'x' * 65536)
            except OSError as e:
                failed = e.errno
    assert failed == errno.ENOSPC
    assert os.stat(s / 'big').st_size == written
    assert read(s / 'kept') == read(other / 'kept') == 'kept'
    # a write that does not fit at all fails in the other workspace too, as it is the same disk; reading goes on
    assert errno_of(write, other / 'more', 'x' * (1 << 20)) == 'ENOSPC'
    with open(s / 'big', 'rb') as f:
        data = f.read()
    assert data == b'x' * written
    assert os.statvfs(s.path).f_bavail < 300
    os.unlink(s / 'big')
    works_again(lambda: write(other / 'more', 'x' * (1 << 20)))
    assert os.stat(other / 'more').st_size == 1 << 20


def test_fallocate_beyond_the_disk_is_enospc(small):
    s = small().session().use()
    fd = os.open(s / 'f', os.O_RDWR | os.O_CREAT)
    assert errno_of(os.posix_fallocate, fd, 0, 64 << 20) == 'ENOSPC'
    os.posix_fallocate(fd, 0, 1 << 20)
    os.close(fd)


def test_no_inodes_left_is_enospc_for_new_names_only(mount):
    d = mount.prepare()
    os.makedirs(d.basedir)
    run('mount', '-t', 'tmpfs', '-o', 'size=8m,mode=0700,nr_inodes=60', 'tmpfs', d.basedir)
    try:
        s = d.start().session().use()
        failed = next(e for e in (errno_of(write, s / f'f{i}', 'x') for i in range(100)) if e)
        assert failed == 'ENOSPC'
        assert errno_of(os.mkdir, s / 'd') == errno_of(os.symlink, 'x', s / 'l') == 'ENOSPC'
        append(s / 'f0', 'y')
        assert read(s / 'f0') == 'xy'
        os.unlink(s / 'f0')
        works_again(lambda: write(s / 'again', 'x'))
        d.stop()
    finally:
        run('umount', '-l', d.basedir, check=False)


# ── a quota ─────────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def limited(mount):
    """limited(option=value, …): a mount where alice's workspace may hold 8 MiB, and the others what they like."""
    made = []

    def make(**opts):
        d = mount.prepare(**opts)
        os.makedirs(d.basedir)
        run('truncate', '-s', '300M', f'{d.top}/disk')
        said = sh(f'mkfs.btrfs -q {d.top}/disk && mount -o loop {d.top}/disk {d.basedir} && chmod 700 {d.basedir} && '
                  f'btrfs quota enable {d.basedir} && mkdir -m 700 {d.basedir}/alice && '
                  f'btrfs subvolume create {d.basedir}/alice/coder && chmod 700 {d.basedir}/alice/coder && '
                  f'btrfs qgroup limit 8M {d.basedir}/alice/coder && echo well', check=False)
        if os.path.ismount(d.basedir):
            made.append(d)
        if not said.endswith('well\n'):
            pytest.skip(f'no file system with a quota to be had here: {said.strip()[-100:]}')
        return d.start()
    yield make
    for d in made:
        d.stop()
        run('umount', '-l', d.basedir, check=False)


@needs('mkfs.btrfs', 'btrfs')
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_quota_that_is_exceeded_is_edquot_for_that_workspace_alone_until_there_is_room(limited, passthrough):
    daemon = limited(passthrough=passthrough)
    s, other = daemon.session().use(), daemon.session('bob/coder/s1').use()
    write(s / 'kept', 'kept')

    def fill(name):
        """Writes until it fails; how much was written and the errno, which an fsync may be the first to tell."""
        n = 0
        with open(name, 'wb', buffering=0) as f:
            while n < 64 << 20:
                try:
                    n += f.write(os.urandom(1 << 20))
                    os.fsync(f.fileno())
                except OSError as e:
                    return n, errno.errorcode[e.errno]
        return n, None
    written, failed = fill(s / 'big')
    assert failed == 'EDQUOT' and 4 << 20 <= written < 9 << 20
    assert errno_of(lambda: [os.mkdir(s / f'd{i}') for i in range(5000)]) == 'EDQUOT'
    assert read(s / 'kept') == 'kept' and os.stat(s / 'big').st_size == written
    assert daemon.session().state() == 'ready'
    write(other / 'f', b'x' * (12 << 20))
    run('sync', '-f', daemon.basedir)
    assert os.stat(below(other, 'f')).st_size == 12 << 20 and len(read(other / 'f')) == 12 << 20
    os.unlink(s / 'big')

    def store():
        write(s / 'again', os.urandom(2 << 20))
        run('sync', '-f', daemon.basedir)
    works_again(store)
    assert os.stat(below(s, 'again')).st_size == 2 << 20


# ── a base directory that goes away ─────────────────────────────────────────────────────────

GONE = {'ESTALE', 'ENOENT', 'EIO', 'ENXIO', 'ENOTDIR'}


def test_a_workspace_removed_underneath_fails_and_comes_back_and_others_go_on(daemon):
    daemon.expect('.*')
    s, other = daemon.session().use(), daemon.session('bob/coder/s1').use()
    os.mkdir(s / 'd')
    write(s / 'd/f', 'x')
    write(other / 'f', 'other')
    fd = os.open(s / 'd/f', os.O_RDWR)
    shutil.rmtree(below(s))
    wait_for(lambda: errno_of(read, s / 'd/f') in GONE, 10)
    assert os.pread(fd, 1, 0) == b'x' and os.fstat(fd).st_nlink == 0  # as of any removed open file
    os.close(fd)
    assert read(other / 'f') == 'other'
    write(other / 'g', 'y')
    write(s / 'new', 'again')
    assert read(s / 'new') == 'again' == read(below(s, 'new'))
    assert read(other / 'g') == 'y'


@pytest.mark.parametrize('how', [
    lambda s: write(s / 'new', 'x'), lambda s: os.mkdir(s / 'new'), lambda s: os.symlink('x', s / 'new'),
    lambda s: (os.listdir(s.path), write(s / 'new', 'x')), lambda s: (os.path.exists(s / 'new'), write(s / 'new', 'x'))],
    ids=['create', 'mkdir', 'symlink', 'list', 'look'])
def test_the_first_access_after_a_workspace_was_removed_underneath_has_a_new_one(daemon, how):
    s, beside = daemon.session().use(), daemon.session('alice/coder/s2').use()
    write(s / 'old', 'x')
    assert not os.path.exists(s / 'new') and os.listdir(beside.path) == ['old']
    shutil.rmtree(below(s))
    how(s)
    assert os.listdir(below(s)) == ['new'] == os.listdir(s.path) == os.listdir(beside.path)
    wait_for(lambda: 'closed: its directory was removed behind the mount' in daemon.log())
    s.wait_state('ready')


def test_a_base_directory_that_was_removed_is_told_in_words(daemon):
    daemon.expect('.*')
    s = daemon.session().use()
    shutil.rmtree(daemon.basedir)
    assert errno_of(write, s / 'new', 'x') == 'ENOENT'
    assert 'the base directory has been removed' in s.error()
    assert daemon.session().state() == 'failed' and os.listdir(daemon.mnt) == ['alice']


def test_changes_are_seen_in_a_workspace_that_was_removed_underneath_and_made_again(daemon):
    daemon.expect('.*')
    s = daemon.session().use()
    assert os.listdir(s.path) == []
    shutil.rmtree(below(s))
    assert os.listdir(s.path) == []
    s.ctl('close')
    assert os.listdir(s.path) == []
    write(below(s, 'new'), 'x')
    wait_for(lambda: os.listdir(s.path) == ['new'], 10)
    os.unlink(below(s, 'new'))
    wait_for(lambda: os.listdir(s.path) == [], 10)


def test_a_base_directory_unmounted_underneath_fails_and_comes_back(mount):
    """Lazily, as it happens to a network disk or by a mistake."""
    d = mount.prepare()
    os.makedirs(d.basedir)
    image = f'{d.top}/disk'
    run('truncate', '-s', '16M', image)
    made = sh(f'mkfs.ext4 -q -F {image} && mount -o loop {image} {d.basedir} && chmod 700 {d.basedir}', check=False)
    if not os.path.ismount(d.basedir):
        pytest.skip(f'no loop device to be had here: {made.strip()[-100:]}')
    try:
        d.start()
        d.expect('.*')
        s, other = d.session().use(), d.session('bob/coder/s1').use()
        write(s / 'f', 'x')
        write(other / 'f', 'other')
        run('umount', '-l', d.basedir)
        # what is open stays, as with any file system; the rest has an errno or still works
        assert errno_of(read, s / 'f') in GONE | {None}
        assert errno_of(os.listdir, d.mnt) is None
        run('mount', '-o', 'loop', image, d.basedir)
        for session, text in [(s, 'x'), (other, 'other')]:
            wait_for(lambda k=session: errno_of(k.ctl, 'close') is None, 20)
            wait_for(lambda k=session: errno_of(read, k / 'f') is None, 40)
            assert read(session / 'f') == text == read(below(session, 'f'))
        write(s / 'g', 'after')
        assert read(below(s, 'g')) == 'after'
        d.stop()
    finally:
        for _ in range(3):
            run('umount', '-l', d.basedir, check=False)


def test_requests_that_the_disk_does_not_answer_hold_nobody_else_up(mount):
    """Far more than one: each takes a thread that reads requests until the disk is thawed."""
    d = mount.prepare()
    os.makedirs(d.basedir)
    image = f'{d.top}/disk'
    run('truncate', '-s', '16M', image)
    made = sh(f'mkfs.ext4 -q -F {image} && mount -o loop {image} {d.basedir} && chmod 700 {d.basedir}', check=False)
    if not os.path.ismount(d.basedir):
        pytest.skip(f'no loop device to be had here: {made.strip()[-100:]}')
    stuck = []
    try:
        d.start()
        s = d.session().use()
        os.mkdir(s / 'calm')
        for i in range(5):
            os.mkdir(s / f'd{i}')
        run('fsfreeze', '-f', d.basedir)
        for i in range(5):
            stuck.append(Child(lambda k=i: write(s / f'd{k}/new', 'y')))
            for k in range(20):
                answered = Child(lambda k=k, i=i: errno_of(os.stat, s / f'calm/{i}-{k}'))
                assert answered.result(5) == 'ENOENT'
        assert not any(c.done() for c in stuck)
        run('fsfreeze', '-u', d.basedir)
        for c in stuck:
            c.result(30)
        assert read(s / 'd4/new') == 'y'
        d.stop()
    finally:
        run('fsfreeze', '-u', d.basedir, check=False)
        for _ in range(3):
            run('umount', '-l', d.basedir, check=False)


def test_a_file_removed_or_replaced_underneath_is_a_plain_enoent_or_the_new_one(daemon):
    s = daemon.session().use()
    for i in range(30):
        write(s / 'f', str(i))
        with open(s / 'f', 'rb') as f:
            os.unlink(below(s, 'f'))
            if i % 2:
                write(below(s, 'f'), 'new')
            assert f.read() == str(i).encode()
            assert os.fstat(f.fileno()).st_size == len(str(i))
        wait_for(lambda k=i: errno_of(read, s / 'f') == (None if k % 2 else 'ENOENT'), 10)
        if i % 2:
            wait_for(lambda: read(s / 'f') == 'new', 10)
            os.unlink(s / 'f')


# ── calls that are missing ──────────────────────────────────────────────────────────────────

def works(s):
    """A little of everything."""
    os.makedirs(s / 'a/b')
    write(s / 'a/f', 'text')
    os.link(s / 'a/f', s / 'a/g')
    os.symlink('../a/f', s / 'a/l')
    os.rename(s / 'a/g', s / 'a/b/g')
    assert read(s / 'a/l') == read(s / 'a/b/g') == 'text'
    with open(s / 'a/f', 'rb') as src, open(s / 'copy', 'wb') as dst:
        shutil.copyfileobj(src, dst)
    run('cp', s / 'a/f', s / 'copy2')
    assert sorted(os.listdir(s.path)) == ['a', 'copy', 'copy2']
    assert errno_of(os.stat, s / 'later') == 'ENOENT'
    write(below(s, 'later'), 'x')
    wait_for(lambda: os.path.exists(s / 'later'), 10)
    write(below(s, 'a/f'), 'changed')
    wait_for(lambda: read(s / 'a/f') == 'changed', 10)
    fd = os.open(s / 'a/f', os.O_RDWR)
    os.unlink(s / 'a/f')
    os.write(fd, b'x')
    os.close(fd)
    for i in range(30):
        write(s / 'again', str(i))
        assert read(s / 'again') == str(i)
        os.unlink(s / 'again')
    run('rm', '-r', s / 'a')


@pytest.mark.parametrize('calls', ['openat2', 'fanotify', 'evictable', 'handles', 'birth', 'copy_file_range',
                                   'openat2,fanotify,handles,birth,copy_file_range'])
def test_files_work_without(mount, compiled, calls):
    d = mount.prepare()
    d.extra_env = without(compiled('without.c', '-shared', '-fPIC'), *calls.split(','))
    d.start()
    assert 'without.so' in read(f'/proc/{d.pid}/maps')
    works(d.session().use())


def test_without_openat2_no_link_leads_out_either(mount, compiled):
    d = mount.prepare()
    d.extra_env = without(compiled('without.c', '-shared', '-fPIC'), 'openat2')
    s = d.start().session().use()
    write(f'{d.top}/canary', 'outside')
    for name, target in {'l': f'{d.top}/canary', 'up': '../' * 20 + d.top[1:] + '/canary', 'r': '/etc/passwd'}.items():
        os.symlink(target, below(s, name))
    for name in ['l', 'up']:
        assert errno_of(read, s / name) not in (None, 'ENOSYS')
        assert os.readlink(s / name).startswith('.wsm/root/')
    assert errno_of(os.listdir, s / '.wsm/root') != 'ENOSYS'
    assert read(s / 'r') == read('/etc/passwd')  # which a sandbox sees as well


def test_without_fanotify_changes_behind_show_within_the_short_timeouts_and_status_says_why(mount, compiled):
    d = mount.prepare()
    d.extra_env = without(compiled('without.c', '-shared', '-fPIC'), 'fanotify')
    d.start()
    s = d.session().use()
    write(s / 'f', 'x')
    assert errno_of(os.stat, s / 'n') == 'ENOENT'
    write(below(s, 'n'), 'x')
    write(below(s, 'f'), 'longer')
    wait_for(lambda: os.path.exists(s / 'n') and read(s / 'f') == 'longer', 5)
    assert 'fanotify' in d.log()


def test_a_directory_that_cannot_be_watched_has_short_timeouts_and_metrics_say_so(mount, compiled):
    d = mount.prepare()
    d.extra_env = without(compiled('without.c', '-shared', '-fPIC'), 'marks')
    s = d.start().session().use()
    write(s / 'f', 'x')
    assert errno_of(os.stat, s / 'n') == 'ENOENT' and read(s / 'f') == 'x'
    write(below(s, 'n'), 'x')
    write(below(s, 'f'), 'longer')
    wait_for(lambda: os.path.exists(s / 'n') and read(s / 'f') == 'longer', 5)
    assert d.metrics()['wsmfs_watch_failures_total'] >= 1


def test_when_notices_overflow_all_is_asked_anew_and_metrics_say_so(mount, compiled):
    """The daemon stands still while more happens behind the mount than the kernel keeps notices of."""
    most = int(read('/proc/sys/fs/fanotify/max_queued_events'))
    if most > 50000:
        pytest.skip(f'the kernel keeps {most} notices here')
    d = mount.prepare()
    d.extra_env = without(compiled('without.c', '-shared', '-fPIC'), 'queue')
    s = d.start().session().use()
    os.makedirs(s / 'd/many')
    os.mkdir(s / 'd/few')
    for name in ['f', 'gone', 'few/f']:
        write(s / f'd/{name}', 'x')
    os.listdir(s / 'd/many')

    def look():
        return [errno_of(os.stat, s / f'd/{name}') or read(s / f'd/{name}') for name in ['f', 'gone', 'few/f', 'new']]
    assert look() == ['x', 'x', 'x', 'ENOENT']
    os.kill(d.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: {read(f'/proc/{d.pid}/task/{t}/stat').rsplit(') ')[1][0]
                          for t in os.listdir(f'/proc/{d.pid}/task')} == {'T'})
        for i in range(most + 100):
            os.mknod(below(s, f'd/many/{i}'))
        write(below(s, 'd/f'), 'longer')
        write(below(s, 'd/few/f'), 'longer')
        os.unlink(below(s, 'd/gone'))
        write(below(s, 'd/new'), 'new')
    finally:
        os.kill(d.pid, signal.SIGCONT)
    wait_for(lambda: d.metrics().get('wsmfs_watch_overflows_total', 0) >= 1, 30)
    wait_for(lambda: look() == ['longer', 'ENOENT', 'longer', 'new'], 20)
    assert len(os.listdir(s / 'd/many')) == most + 100
