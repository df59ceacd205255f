# SPDX-License-Identifier: Apache-2.0
"""Starting, ending, crashing, upgrading."""

import datetime
import errno
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import time

import pytest

from harness import (WSMFS, MountFailed, control, descriptors_of, environment, errno_of, in_child, mount_fails, mountinfo,
                     processes_of, read, run, wait_for, write)

pytestmark = pytest.mark.timeout(300)


# ── starting ────────────────────────────────────────────────────────────────────────────────

def test_in_the_background_it_returns_when_the_mount_answers(mount):
    d = mount.prepare()
    d.start_background()  # looks at once
    s = d.session()
    write(s / 'f', 'x')
    assert read(s / 'f') == 'x'
    d.stop()
    assert not processes_of(d.top + '/')


@pytest.mark.parametrize('what', ['no mount point', 'a file', 'bad option', 'bad source'])
def test_in_the_background_it_fails_loudly_when_it_cannot_mount(mount, what):
    d = mount.prepare()
    if what == 'no mount point':
        os.rmdir(d.mnt)
    elif what == 'a file':
        os.rmdir(d.mnt)
        write(d.mnt, '')
    elif what == 'bad option':
        d.opts['nonsense'] = '1'
    else:
        d.source = 'nothing-like-it:x'
    with pytest.raises(MountFailed) as e:
        d.start_background()
    code, text = e.value.args
    assert code in (1, 32)
    assert text.strip() != ''
    assert not processes_of(d.top + '/')


def test_it_runs_from_any_directory_with_relative_paths(mount):
    d = mount.prepare()
    done = subprocess.run([WSMFS, 'local:base', 'mnt', '-o', 'state_dir=state'], cwd=d.top, timeout=60,
                          capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    try:
        write(f'{d.mnt}/alice/coder/s1/f', 'x')
        assert read(f'{d.basedir}/alice/coder/f') == 'x'
    finally:
        run('umount', d.mnt)
        wait_for(lambda: not any(holds_open(p, d.top) for p in processes_of('local:base')), 60)


def holds_open(pid, path):
    return any(target.startswith(path) for target in descriptors_of(pid))


def test_a_second_mount_on_the_same_point_is_refused_or_stacked_never_broken(daemon, mount):
    write(daemon.session() / 'f', 'x')
    other = mount.prepare()
    other.mnt = daemon.mnt
    code, text = mount_fails_or_none(other)
    other.mnt = f'{other.top}/mnt'
    if code is not None:
        assert daemon.mnt in text
    assert read(daemon.session() / 'f') == 'x' or code is None


def mount_fails_or_none(d):
    done = subprocess.run(d.command(), timeout=60, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode == 0:
        run('umount', d.mnt)
        wait_for(lambda: not processes_of(d.top + '/'))
        return None, ''
    return done.returncode, done.stdout + done.stderr


def test_check_and_version_and_help_say_what_is_asked(mount):
    assert run(WSMFS, '--version').startswith('wsmfs')
    assert 'isolation' in run(WSMFS, '--help')
    text = run(WSMFS, '--check', check=False)
    assert 'fuse' in text.lower()


def test_a_mount_over_a_directory_with_files_shows_the_mount(mount):
    d = mount.prepare()
    write(f'{d.mnt}/hidden', 'x')
    d.start()
    assert os.listdir(d.mnt) == []
    d.stop()
    assert read(f'{d.mnt}/hidden') == 'x'


# ── ending ──────────────────────────────────────────────────────────────────────────────────

def change_without_a_pause(directory):
    """Until the mount is gone."""
    os.chdir(directory)
    for i in range(1 << 30):
        try:
            write(f'x{i % 3}', '')
            os.rename(f'x{i % 3}', f'y{i % 2}')
            os.unlink(f'y{i % 2}')
        except FileNotFoundError:
            pass  # another one has it
        except OSError as e:
            return e.errno
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason='an ordinary user needs /sys/fs/fuse/connections for this')
def test_a_signal_ends_it_while_sessions_change_one_directory(mount):
    """Its threads tell the kernel of each change, which waits for a client in another session."""
    d = mount()
    sessions = [d.session(f'alice/coder/s{i}').use() for i in range(4)]
    os.mkdir(sessions[0] / 'd')
    for s in sessions * 2:
        d.child(functools.partial(change_without_a_pause, str(s / 'd')))
    for child in d.children:
        wait_for(lambda c=child: os.readlink(f'/proc/{c.pid}/cwd').endswith('/d'))
    wait_for(lambda: os.listdir(sessions[0] / 'd'))
    os.kill(d.pid, signal.SIGTERM)
    wait_for(lambda: d.proc.poll() is not None, 30)
    for child in d.children:
        assert child.result() in {errno.ECONNABORTED, errno.ENOTCONN}
    assert not mountinfo(d.mnt)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_and_ends_it(daemon, s, number):
    write(s / 'f', 'x')
    daemon.stop(by=number)
    assert not mountinfo(daemon.mnt)
    assert read(f'{daemon.basedir}/alice/coder/f') == 'x'


def test_an_unmount_closes_every_workspace_in_parallel(mount):
    remote = mount.test_backend()
    control(remote, 'default', 'close_delay_ms 1500')
    sessions = [remote.session(f'alice/a{i}/s').use() for i in range(12)]
    ids = {s.id() for s in sessions}
    start = time.monotonic()
    remote.stop()
    assert time.monotonic() - start < 12 * 1.5
    closed = {line.split()[1] for line in read(f'{remote.top}/control/log').splitlines() if line.startswith('close ')}
    assert closed == ids


def test_a_close_that_hangs_ends_with_shutdown_timeout_and_is_told(mount):
    remote = mount.test_backend(shutdown_timeout='2s')
    remote.expect('clos')
    s = remote.session().use()
    control(remote, s.id(), 'close_delay_ms 600000')
    start = time.monotonic()
    os.kill(remote.pid, signal.SIGTERM)
    remote.proc.wait(60)
    assert time.monotonic() - start < 40
    assert s.names.split('/', maxsplit=1)[0] in remote.log()


def test_with_keep_on_exit_nothing_is_closed(mount):
    remote = mount.test_backend(keep_on_exit=True)
    remote.session().use()
    remote.stop()
    assert 'close ' not in read(f'{remote.top}/control/log')


def test_a_lazy_unmount_lets_open_files_finish(daemon, s):
    with open(s / 'f', 'w', encoding='utf-8') as f:
        f.write('1')
        f.flush()
        run('umount', '-l', daemon.mnt)
        assert not mountinfo(daemon.mnt)
        f.write('2')
    daemon.proc.wait(60)
    assert daemon.proc.returncode == 0
    assert read(f'{daemon.basedir}/alice/coder/f') == '12'


def test_a_mount_that_ends_under_open_files_and_working_directories_ends(daemon, s):
    s.use()
    with open(s / 'f', 'w', encoding='utf-8') as f:
        f.write('1')
        f.flush()
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.proc.wait(90)
        assert daemon.proc.returncode == 0
        assert errno_of(lambda: (f.write('2'), f.flush())) in ('ENOTCONN', 'ECONNABORTED', 'EIO', None)
        try:
            f.close()
        except OSError:
            pass
    assert read(f'{daemon.basedir}/alice/coder/f').startswith('1')


# ── crash ───────────────────────────────────────────────────────────────────────────────────

def write_until_killed(session, record, seed):
    """Appends numbered lines to several files, notes on the native disk what fsync has promised."""
    rng = random.Random(seed)
    note = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for i in range(1000000):
            name = f'f{rng.randrange(3)}'
            fd = os.open(session / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(fd, f'{i} {"x" * rng.randrange(5000)}\n'.encode())
            if i % 3 == 0:
                os.fsync(fd)
                os.write(note, f'{name} {os.fstat(fd).st_size}\n'.encode())
            os.close(fd)
            write(session / 'new', str(i))
            os.rename(session / 'new', session / 'renamed')
    except OSError:
        return


def crash(daemon, s, record, seed):
    s.use()
    write(record, '')
    writer = daemon.child(lambda: write_until_killed(s, record, seed))
    n = random.Random(seed).randrange(3, 60)
    wait_for(lambda: read(record).count('\n') >= n)
    daemon.kill()
    writer.result(30)
    promised = {}
    for line in read(record).splitlines():
        name, size = line.split()
        promised[name] = int(size)
    assert errno_of(os.listdir, daemon.mnt) == 'ENOTCONN'
    daemon.start()
    for name, size in promised.items():
        data = read(s / name)
        assert len(data) >= size
        for line in data[:size].splitlines():
            number, text = line.split(' ')
            assert number.isdigit() and set(text) <= {'x'}
    assert read(s / 'renamed').isdigit()
    for name in promised:
        os.unlink(s / name)


def test_a_kill_in_the_middle_of_writes_loses_nothing_that_was_fsynced(daemon, s, workdir):
    for seed in range(4):
        crash(daemon, s, f'{workdir}/record', seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills_in_the_middle_of_writes_lose_nothing_that_was_fsynced(daemon, s, workdir):
    for seed in range(50):
        crash(daemon, s, f'{workdir}/record', 100 + seed)


def test_a_dead_mount_with_a_working_directory_and_open_files_in_it_is_replaced(daemon, s):
    write(s / 'f', 'x')
    fd = os.open(s / 'f', os.O_RDONLY)
    sleeper = daemon.popen('sleep', '600', cwd=s.path)
    try:
        daemon.kill()
        assert errno_of(os.listdir, daemon.mnt) in ('ENOTCONN', 'ECONNABORTED')
        daemon.start()
        assert read(s / 'f') == 'x'
        assert len(mountinfo(daemon.mnt)) == 1
    finally:
        errno_of(os.close, fd)
        sleeper.kill()
        sleeper.wait()


@pytest.mark.local('each has a base directory of its own')
def test_starts_in_the_same_moment_on_a_dead_mount_take_no_live_one_away(daemon, mount):
    others = [mount.prepare() for _ in range(5)]
    for _ in range(4):
        daemon.kill()
        for d in others:
            d.mnt = daemon.mnt
        starts = [subprocess.Popen(d.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env=environment()) for d in others]
        said = [p.communicate(timeout=60)[0] for p in starts]
        mounted = [d for d, p in zip(others, starts) if p.returncode == 0]
        try:
            assert mounted and all(p.returncode == 0 or 'live mount' in text for p, text in zip(starts, said)), said
            assert [d.top for d in mounted] == [d.top for d in others if processes_of(d.top + '/')]
            assert len(mountinfo(daemon.mnt)) == len(mounted)
        finally:
            for _ in mountinfo(daemon.mnt):
                run('umount', daemon.mnt)
            wait_for(lambda: not any(processes_of(d.top + '/') for d in others))
            for d in others:
                d.mnt = f'{d.top}/mnt'
        daemon.start()


def test_in_the_background_a_dead_mount_is_replaced_too(daemon, s):
    write(s / 'f', 'x')
    daemon.kill()
    daemon.start_background()
    assert read(s / 'f') == 'x'


def test_after_a_crash_known_names_bindings_and_pins_are_there(daemon, s):
    os.mkdir(f'{daemon.mnt}/a.b')
    s.bind('team-7')
    write(s / 'f', 'x')
    # Names are written behind; a binding waits until it is stored, and so carries them.
    other = daemon.session('bob/coder/s1')
    other.bind('team-8')
    daemon.kill()
    daemon.start()
    assert s.id() == 'team-7' and other.id() == 'team-8'
    assert read(s / 'f') == 'x'


def test_after_a_crash_what_was_live_is_found_and_swept(mount):
    remote = mount.test_backend(ttl='2s')
    s = remote.session().use()
    remote.kill()
    remote.start()
    wait_for(lambda: f'close {s.id()}' in read(f'{remote.top}/control/log'), 60)
    wait_for(lambda: s.state() == 'absent')


def test_a_kill_while_provisioning_leaves_a_mount_that_works(mount):
    remote = mount.test_backend()
    s = remote.session()
    control(remote, 'default', 'hang')
    caller = remote.child(lambda: errno_of(os.listdir, s.path))
    s.wait_state('provisioning')
    remote.kill()
    assert caller.result(30) in ('ENOTCONN', 'ECONNABORTED')
    control(remote, 'default')
    remote.start()
    assert os.listdir(s.path) == []


# ── upgrade ─────────────────────────────────────────────────────────────────────────────────

def detached(daemon, how):
    if how == 'signal':
        daemon.stop(by=signal.SIGUSR1, expect_exit=75)
    else:
        daemon.end_children()
        # The write is answered; the close of its descriptor may meet the end of the mount.
        assert errno_of(daemon.ctl, 'detach') in (None, 'ECONNABORTED', 'ENOTCONN')
        daemon.proc.wait(60)
        daemon.stop(expect_exit=75)


def taken_over(s):
    """The daemon knows from its start that it is live, and asks the backend for it meanwhile."""
    assert s.state() in ('provisioning', 'ready')
    s.wait_state('ready')


@pytest.mark.parametrize('how', ['signal', 'verb'])
def test_detach_and_start_keep_everything_that_was_live(mount, how):
    remote = mount.test_backend(ttl='1h')
    s, pinned, timed = (remote.session(f'alice/{n}/s1').use() for n in ['a', 'b', 'c'])
    bound = remote.session('alice/d/s1')
    pinned.ctl('pin')
    timed.ctl('ttl 600')
    bound.bind('team-7')
    bound.use()
    write(s / 'f', 'x')
    detached(remote, how)
    assert 'close ' not in read(f'{remote.top}/control/log')
    assert not mountinfo(remote.mnt)
    remote.start()
    for x in [s, pinned, timed, bound]:
        taken_over(x)
    assert [x.status()['pinned'] for x in [s, pinned]] == [False, True]
    assert timed.status()['ttl_s'] == 600
    assert bound.id() == 'team-7'
    assert read(s / 'f') == 'x'


def when(text):
    return datetime.datetime.fromisoformat(text.replace('Z', '+00:00'))


@pytest.mark.local('a container takes its time to be ready')
def test_detach_in_the_local_backend_keeps_state_and_clock(mount):
    daemon = mount(ttl='1h')
    s = daemon.session().use()
    s.ctl('pin', 'ttl 700')
    before = s.status()['last_access']
    daemon.stop(by=signal.SIGUSR1, expect_exit=75)
    daemon.start()
    taken_over(s)
    status = s.status()
    assert status['pinned'] is True and status['ttl_s'] == 700
    assert abs((when(status['last_access']) - when(before)).total_seconds()) < 0.1


def test_what_was_kept_is_still_swept_at_its_deadline(mount):
    remote = mount.test_backend(ttl='3s')
    s = remote.session().use()
    remote.stop(by=signal.SIGUSR1, expect_exit=75)
    remote.start()
    wait_for(lambda: f'close {s.id()}' in read(f'{remote.top}/control/log'), 60)


def test_a_program_that_ends_normally_forgets_what_was_live_and_keeps_pins(mount):
    daemon = mount()
    s = daemon.session().use()
    s.ctl('pin')
    daemon.restart()
    assert s.state() == 'absent'


def test_a_start_waits_for_an_instance_that_is_still_closing(mount):
    remote = mount.test_backend()
    remote.expect('wait|clos')
    s = remote.session().use()
    control(remote, s.id(), 'close_delay_ms 3000')
    first = remote.proc
    os.kill(remote.pid, signal.SIGTERM)
    wait_for(lambda: not mountinfo(remote.mnt))
    assert first.poll() is None
    remote.start()
    assert first.wait(30) == 0
    assert os.listdir(s.path) == []


def takes_lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_start_waits_for_what_a_killed_daemon_had_just_forked(mount):
    """Between fork and exec a process has the lock of the state directory, which it got from the daemon."""
    d = mount()
    d.kill()
    lock = f'{d.top}/state/lock'
    with open(lock, 'rb') as held:
        wait_for(lambda: takes_lock(held))  # the daemon may have forked one in that moment, too
        d.start(wait=False)
        wait_for(lambda: d.proc.poll() is not None or lock in descriptors_of(d.pid))
        with pytest.raises(subprocess.TimeoutExpired):
            d.proc.wait(0.5)
    d.wait_mounted()


# ── reload ──────────────────────────────────────────────────────────────────────────────────

def reload(daemon, how):
    if how == 'verb':
        daemon.ctl('reload')
    else:
        os.kill(daemon.pid, signal.SIGHUP)


def effective(daemon, key):
    for line in read(f'{daemon.mnt}/.wsm/config').splitlines():
        if line.replace(' ', '').startswith(key + '='):
            return line.split('=', 1)[1].strip()
    return None


@pytest.mark.local('the configuration file must say where the engine is')
@pytest.mark.parametrize('how', ['verb', 'signal'])
def test_reload_takes_over_ttl_users_and_log_level(mount, how):
    daemon = mount(config='[mount]\nttl = 1h\n')
    write(daemon.opts['config'], '[mount]\nttl = 30m\nusers = listed\nlog_level = debug\n[user alice]\n')
    reload(daemon, how)
    wait_for(lambda: errno_of(os.stat, f'{daemon.mnt}/carol') == 'ENOENT')
    assert daemon.session().use().status()['ttl_s'] == 1800
    assert effective(daemon, 'log_level') == 'debug'


@pytest.mark.parametrize('how', ['verb', 'signal'])
def test_reload_of_a_bad_file_changes_nothing_and_says_why(mount, how):
    daemon = mount(config='[mount]\nttl = 1h\n')
    daemon.expect('nonsense')
    write(daemon.opts['config'], '[mount]\nttl = 30m\nnonsense = 1\n')
    if how == 'verb':
        assert errno_of(daemon.ctl, 'reload') == 'EINVAL'
    else:
        reload(daemon, how)
        wait_for(lambda: 'nonsense' in daemon.log())
    assert daemon.session().use().status()['ttl_s'] == 3600


def test_reload_names_what_needs_a_new_start(mount):
    daemon = mount(config='[mount]\nttl = 1h\n')
    daemon.expect('isolation')
    write(daemon.opts['config'], '[mount]\nisolation = per_user\nttl = 30m\n')
    errno_of(daemon.ctl, 'reload')
    wait_for(lambda: 'isolation' in daemon.log())
    assert effective(daemon, 'isolation') == 'per_agent'
    assert daemon.session().use().status()['ttl_s'] == 1800


def test_the_command_line_wins_over_the_file(mount):
    daemon = mount(ttl='10m', config='[mount]\nttl = 1h\nisolation = per_user\n')
    assert daemon.session().use().status()['ttl_s'] == 600
    assert effective(daemon, 'isolation') == 'per_user'


# ── two mounts ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.local('the source is the base directory')
def test_two_mounts_with_state_directories_of_their_own_share_a_base_directory(daemon, mount):
    other = mount.prepare(source=daemon.source)
    other.start()
    a, b = daemon.session(), other.session()
    write(a / 'f', '1')
    assert a.id() == b.id()
    assert read(b / 'f') == '1'
    write(b / 'f', '22')
    wait_for(lambda: read(a / 'f') == '22', 20)
    write(b / 'new', 'x')
    wait_for(lambda: os.path.exists(a / 'new'), 20)
    b.ctl('close')
    assert read(a / 'f') == '22'


def test_a_second_mount_with_the_same_state_directory_is_refused_by_name(daemon, mount):
    other = mount.prepare(source=daemon.source)
    other.opts['state_dir'] = daemon.opts['state_dir']
    code, text = mount_fails(other)
    assert code in (1, 32)
    assert daemon.mnt in text and str(daemon.pid) in text
    write(daemon.session() / 'f', 'x')


@pytest.mark.root
def test_a_start_says_who_still_has_the_mount_that_is_gone_from_here(daemon, mount):
    """A mount namespace that was copied from ours keeps the mount, and the daemon with it."""
    keeper = daemon.popen('unshare', '-m', 'sleep', '300')
    wait_for(lambda: os.readlink(f'/proc/{keeper.pid}/ns/mnt') != os.readlink('/proc/self/ns/mnt'))
    run('umount', daemon.mnt)
    other = mount.prepare(source=daemon.source)
    other.opts['state_dir'] = daemon.opts['state_dir']
    code, text = mount_fails(other)
    assert code == 1 and f'process {daemon.pid} still serves' in text and 'another mount namespace' in text, text
    keeper.kill()
    keeper.wait(60)
    daemon.proc.wait(60)
    other.start()


# ── others ──────────────────────────────────────────────────────────────────────────────────

def test_notify_socket_is_told_when_the_mount_answers(mount):
    d = mount.prepare()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f'{d.top}/notify')
        sock.settimeout(60)
        d.extra_env = {'NOTIFY_SOCKET': f'{d.top}/notify'}
        d.start(wait=False)
        while b'READY=1' not in sock.recv(4096):
            pass
        d.check_answers()
        d.stop(by=signal.SIGTERM)
        sock.settimeout(5)
        assert b'STOPPING=1' in sock.recv(4096)


@pytest.mark.local('there is no configuration file to name the engine')
def test_it_mounts_by_mount_8_and_is_unmounted_by_umount(mount):
    helper = f'{os.path.dirname(os.path.dirname(WSMFS))}/mount-helpers/mount.wsmfs'
    source_helper = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                                 'mount-helpers/mount.wsmfs')
    d = mount.prepare()
    env = environment() | {'PATH': os.path.dirname(WSMFS) + ':' + os.environ['PATH']}
    run(helper if os.path.exists(helper) else source_helper, d.source, d.mnt, '-o',
        f'rw,nofail,_netdev,x-systemd.automount,state_dir={d.top}/state', env=env)
    try:
        write(d.session() / 'f', 'x')
    finally:
        run('umount', d.mnt)
        wait_for(lambda: not processes_of(d.top + '/'), 60)


def test_the_log_has_a_line_an_event_with_its_fields(daemon, s):
    s.use()
    s.ctl('close')
    wait_for(lambda: [l for l in daemon.log().splitlines()
                      if 'user=alice' in l and 'session=s1' in l and f'id={s.id()}' in l])


def test_no_name_can_forge_a_line_of_the_log(mount):
    daemon = mount(names='any', log_level='debug')
    s = daemon.session('alice/x\u2028wsmfs: error: forged/s user=root')
    write(s / 'f', 'x')
    s.ctl('close')
    assert not [l for l in daemon.log().split('\n') if l.startswith('wsmfs: error')]


def test_what_the_daemon_holds_open_does_not_grow_with_use(daemon, s):
    def use(n):
        for i in range(n):
            write(s / 'f', str(i))
            os.listdir(s.path)
            read(f'{s.inner}/status')
            s.ctl('touch')
            os.unlink(s / 'f')
        s.ctl('close')
        os.listdir(s.path)
    in_child(lambda: use(20))
    before = daemon.descriptors()
    in_child(lambda: use(300), 120)
    wait_for(lambda: daemon.descriptors() <= before + 3, what=f'{before} descriptors again')
