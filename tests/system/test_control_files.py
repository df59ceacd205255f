# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the control files, with every way that tools have of doing so."""

import filecmp
import json
import mmap
import os
import select
import shutil
import stat
import subprocess
import tarfile
import threading

import pytest

from harness import (Child, Events, control, descriptors_of, errno_of, in_child, open_errno, put, read, run, sh, wait_for, write)
from jobs import Job, output

SESSION_FILES = ['id', 'state', 'status', 'error']
MANAGER_FILES = ['status', 'workspaces', 'metrics', 'config']
# Those whose content may differ from one second to the next.
MOVING = {'status', 'metrics', 'workspaces'}


@pytest.fixture
def ready(fresh):
    """A provisioned session with an error to tell of."""
    fresh.use()
    errno_of(fresh.ctl, 'nonsense')
    return fresh


def path_of(session, which, name):
    return {'session': f'{session.inner}/{name}', 'side': f'{session.control}/{name}',
            'manager': f'{session.daemon.mnt}/.wsm/{name}'}[which]


EACH = ([('session', n) for n in SESSION_FILES] + [('side', n) for n in SESSION_FILES] +
        [('manager', n) for n in MANAGER_FILES])


# ── reading ─────────────────────────────────────────────────────────────────────────────────

def by_read(path, out):
    return open(path, 'rb').read()


def by_cat(path, out):
    return subprocess.run(['cat', path], capture_output=True, check=True).stdout


def by_single_bytes(path, out):
    fd = os.open(path, os.O_RDONLY)
    try:
        text = b''
        while piece := os.read(fd, 1):
            text += piece
        return text
    finally:
        os.close(fd)


def by_sendfile(path, out):
    with open(path, 'rb') as src, open(out, 'wb') as dst:
        while os.sendfile(dst.fileno(), src.fileno(), None, 1 << 16):
            pass
    return open(out, 'rb').read()


def by_copyfile(path, out):
    shutil.copyfile(path, out)
    return open(out, 'rb').read()


def by_cp(path, out):
    run('cp', path, out)
    return open(out, 'rb').read()


def by_tar(path, out):
    run('tar', '-cf', out, '-C', os.path.dirname(path), os.path.basename(path))
    with tarfile.open(out) as t:
        return t.extractfile(os.path.basename(path)).read()


def by_mmap(path, out):
    def look():
        with open(path, 'rb') as f:
            size = os.fstat(f.fileno()).st_size
            return b'' if size == 0 else bytes(mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ))
    return in_child(look)


def by_dd(path, out):
    return subprocess.run(['dd', f'if={path}', 'bs=7', 'status=none'], capture_output=True, check=True).stdout


def by_pread(path, out):
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return b''.join(reversed([os.pread(fd, 1, i) for i in reversed(range(size))]))
    finally:
        os.close(fd)


def by_tac(path, out):
    """Starts at the end, as `tail` does."""
    return subprocess.run(['tail', '-c', '+1', path], capture_output=True, check=True).stdout


WAYS = {f.__name__[3:]: f for f in [by_read, by_cat, by_single_bytes, by_sendfile, by_copyfile, by_cp, by_tar,
                                    by_mmap, by_dd, by_pread, by_tac]}


def steady(name, text):
    """What of a text does not change by itself."""
    if name == 'status':
        found = json.loads(text)
        return {k: v for k, v in found.items() if k not in ('idle_s', 'uptime_s', 'uptime', 'expires')}
    if name == 'metrics':
        return [line for line in text.decode().splitlines() if line.startswith('#')]
    if name == 'workspaces':
        return [line.split()[0] for line in text.decode().splitlines() if line]
    return text.decode()


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('which, name', EACH)
def test_every_way_of_reading_gives_the_same_bytes(ready, workdir, which, name, way):
    path = path_of(ready, which, name)
    text = WAYS[way](path, f'{workdir}/out')
    assert text.endswith(b'\n') or name == 'error'
    assert steady(name, text) == steady(name, open(path, 'rb').read())


@pytest.mark.parametrize('which, name', EACH)
def test_a_control_file_has_its_exact_size(ready, which, name):
    path = path_of(ready, which, name)
    with open(path, 'rb') as f:
        st = os.fstat(f.fileno())
        text = f.read()
    assert st.st_size == len(text)
    assert stat.S_ISREG(st.st_mode)


def test_cmp_and_diff_of_a_control_file_with_itself_are_silent(ready):
    for name in ['id', 'state', 'error']:
        assert filecmp.cmp(f'{ready.inner}/{name}', f'{ready.control}/{name}', shallow=False)
        run('diff', f'{ready.inner}/{name}', f'{ready.control}/{name}')


def test_a_reader_in_small_steps_never_sees_two_states_mixed(fresh):
    fd = os.open(f'{fresh.control}/state', os.O_RDONLY)
    try:
        first = os.read(fd, 3)
        fresh.use()
        rest = os.read(fd, 100)
    finally:
        os.close(fd)
    assert first + rest == b'absent\n'
    assert fresh.state() == 'ready'


def test_a_file_that_has_not_changed_keeps_its_node(fresh):
    fresh.use()
    with open(f'{fresh.control}/state', 'rb') as a, open(f'{fresh.control}/state', 'rb') as b:
        assert os.path.sameopenfile(a.fileno(), b.fileno())
    first = os.stat(f'{fresh.control}/state')
    for _ in range(20):
        again = os.stat(f'{fresh.control}/state')
        assert (again.st_ino, again.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_a_changed_file_keeps_its_inode_number_and_gets_a_new_mtime(fresh):
    before = os.stat(f'{fresh.control}/state')
    fresh.use()
    after = os.stat(f'{fresh.control}/state')
    assert after.st_ino == before.st_ino
    assert after.st_mtime_ns > before.st_mtime_ns
    assert after.st_size == len('ready\n')


def test_states_are_seen_at_once_by_who_opens_again(fresh):
    for _ in range(20):
        fresh.use()
        assert read(f'{fresh.inner}/state') == 'ready\n'
        fresh.ctl('close')
        assert read(f'{fresh.control}/state') == 'absent\n'


def test_the_same_directory_is_below_the_manager(ready):
    assert sorted(os.listdir(ready.inner)) == sorted(os.listdir(ready.control))
    for name in SESSION_FILES:
        if name not in MOVING:
            assert read(f'{ready.inner}/{name}') == read(f'{ready.control}/{name}')


def test_the_listed_control_files_are_those_of_the_documentation(ready):
    assert set(os.listdir(ready.inner)) >= {'id', 'state', 'status', 'progress', 'error', 'ctl'}
    assert set(os.listdir(f'{ready.daemon.mnt}/.wsm')) >= \
        {'status', 'workspaces', 'metrics', 'events', 'ctl', 'config', 'sessions'}


def test_other_names_in_the_control_directories_do_not_exist(ready):
    for where in [ready.inner, ready.control, f'{ready.daemon.mnt}/.wsm']:
        for name in ['nothing', '.wsm', 'State', 'id.new', 'id~']:
            assert errno_of(os.stat, f'{where}/{name}') == 'ENOENT'


def test_files_that_can_only_be_read_refuse_writers_and_the_other_way_round(ready):
    for name in ['state', 'status', 'progress', 'error']:
        assert open_errno(f'{ready.inner}/{name}', os.O_WRONLY) in ('EACCES', 'EPERM', 'EROFS')


def test_a_session_status_has_the_documented_keys(fresh):
    fresh.use()
    status = fresh.status()
    assert set(status) >= {'id', 'user', 'agent', 'session', 'sessions', 'backend', 'sandbox', 'state',
                           'created', 'last_access', 'idle_s', 'ttl_s', 'expires', 'open_files',
                           'running_jobs', 'pinned', 'error'}
    user, agent, session = fresh.names.split('/')
    assert (status['user'], status['agent'], status['session']) == (user, agent, session)
    assert status['id'] == fresh.id()
    assert status['sessions'] == [fresh.names]
    assert status['backend'] == 'local'
    assert status['state'] == 'ready'
    assert status['ttl_s'] == 3600
    assert status['open_files'] == 0
    assert status['running_jobs'] == 0
    assert status['pinned'] is False


def test_status_counts_open_files(fresh):
    with open(fresh / 'a', 'w', encoding='utf-8'), open(fresh / 'b', 'w', encoding='utf-8'):
        assert fresh.status()['open_files'] == 2
    wait_for(lambda: fresh.status()['open_files'] == 0)


def test_names_of_all_kinds_make_valid_json(shared_daemon, fresh):
    s = shared_daemon.session('qu"ote/back\\slash/ünï🦀')
    status = s.status()
    assert (status['user'], status['agent'], status['session']) == ('qu"ote', 'back\\slash', 'ünï🦀')


def test_the_managers_status_counts_states_and_names_no_tenant(daemon, s):
    s.use()
    status = daemon.status()
    assert set(status) >= {'version', 'backend', 'isolation'}
    assert status['isolation'] == 'per_agent'
    text = read(f'{daemon.mnt}/.wsm/status') + read(f'{daemon.mnt}/.wsm/metrics')
    assert 'alice' not in text and 'coder' not in text and s.id() not in text
    assert '"ready": 1' in text or '"ready":1' in text


def test_the_table_of_workspaces_has_a_line_for_each_live_one(daemon, s):
    assert s.id() not in read(f'{daemon.mnt}/.wsm/workspaces')
    s.use()
    line = next(l for l in read(f'{daemon.mnt}/.wsm/workspaces').splitlines() if s.id() in l)
    assert 'alice/coder' in line and 'local' in line and 'ready' in line
    s.ctl('close')
    assert s.id() not in read(f'{daemon.mnt}/.wsm/workspaces')


def test_the_metrics_are_in_the_prometheus_text_form(daemon, s):
    s.use()
    for line in read(f'{daemon.mnt}/.wsm/metrics').splitlines():
        if line and not line.startswith('#'):
            name, value = line.rsplit(' ', 1)
            assert name.startswith('wsmfs_')
            float(value)


def test_the_effective_configuration_can_be_read(mount):
    daemon = mount(ttl='17m', isolation='per_user')
    lines = read(f'{daemon.mnt}/.wsm/config').replace(' ', '').splitlines()
    assert 'isolation=per_user' in lines
    assert [l for l in lines if l.startswith('ttl=')] and 'ttl=1h' not in lines


# ── writing ctl ─────────────────────────────────────────────────────────────────────────────

def test_reading_control_files_is_no_activity(fresh):
    fresh.use()
    before = fresh.status()['last_access']
    for name in SESSION_FILES:
        read(f'{fresh.inner}/{name}')
        os.stat(fresh.path)
    assert fresh.status()['last_access'] == before


@pytest.mark.parametrize('line', [
    "echo pin > {d}/ctl", "echo pin >> {d}/ctl", "printf pin > {d}/ctl", "echo pin | tee {d}/ctl >&2",
    "echo pin | tee -a {d}/ctl >&2", "printf 'pin\\n' | dd of={d}/ctl status=none", "cd {d} && echo pin >| ctl",
    "printf 'pin\\n' | dd of={d}/ctl conv=notrunc status=none", "exec 3>{d}/ctl; echo pin >&3; exec 3>&-",
    "printf 'unpin\\npin\\n' > {d}/ctl", "printf 'unpin\\npin' > {d}/ctl", "printf '\\npin\\n\\n' > {d}/ctl",
    "{{ echo unpin; echo pin; }} > {d}/ctl", "printf ' pin ' > {d}/ctl", "printf 'pin\\r\\n' > {d}/ctl",
    "python3 -c \"open('{d}/ctl','w').write('pin')\"", "cp <(echo pin) {d}/ctl"])
def test_every_way_of_writing_a_verb_works(fresh, line):
    if 'printf \' pin \'' in line or '\\r' in line or '\\npin\\n\\n' in line:
        # Not promised: either it is understood or it is refused and changes nothing.
        sh(line.format(d=fresh.control), check=False)
        assert fresh.status()['pinned'] or fresh.error() != ''
        return
    sh(line.format(d=fresh.control))
    assert fresh.status()['pinned'] is True


def test_many_verbs_in_one_write_are_done_in_order(fresh):
    fresh.ctl('pin', 'ttl 600', 'touch', 'unpin', 'ttl 10m', 'provision')
    assert fresh.status()['pinned'] is False
    assert fresh.status()['ttl_s'] == 600
    assert fresh.state() == 'ready'


def test_a_bad_verb_among_good_ones_changes_nothing_and_is_named(fresh):
    assert errno_of(fresh.ctl, 'pin', 'dance', 'touch') == 'EINVAL'
    assert 'dance' in fresh.error()
    assert fresh.status()['pinned'] is False


@pytest.mark.parametrize('verb, ttl', [('ttl 600', 600), ('ttl 10m', 600), ('ttl 2h', 7200), ('ttl default', 3600),
                                       ('ttl 45s', 45), ('ttl 1d', 86400)])
def test_a_sessions_ttl_can_be_set(fresh, verb, ttl):
    fresh.ctl(verb)
    assert fresh.status()['ttl_s'] == ttl


def test_a_line_in_two_writes_is_two_lines(fresh):
    """The end of a write ends its last line."""
    fd = os.open(f'{fresh.control}/ctl', os.O_WRONLY)
    try:
        assert errno_of(os.write, fd, b'pi') == 'EINVAL'
        assert errno_of(os.write, fd, b'n\n') == 'EINVAL'
        assert fresh.status()['pinned'] is False
        os.write(fd, b'pin')
        assert fresh.status()['pinned'] is True
    finally:
        os.close(fd)


def test_offsets_of_writes_to_ctl_mean_nothing(fresh):
    fd = os.open(f'{fresh.control}/ctl', os.O_WRONLY)
    try:
        os.write(fd, b'pin\n')
        os.pwrite(fd, b'unpin\n', 12345)
        assert fresh.status()['pinned'] is False
        os.pwrite(fd, b'pin\n', 0)
        assert fresh.status()['pinned'] is True
    finally:
        os.close(fd)


def test_a_write_of_more_than_a_page_is_efbig_and_does_nothing(fresh):
    text = 'pin\n' * 1025
    assert errno_of(put, f'{fresh.control}/ctl', text) == 'EFBIG'
    assert fresh.status()['pinned'] is False
    assert errno_of(put, f'{fresh.control}/ctl', b'x' * (1 << 20)) == 'EFBIG'


def test_a_write_of_exactly_a_page_is_taken(fresh):
    put(f'{fresh.control}/ctl', ('touch\n' * 1000)[:4092] + 'pin\n')
    assert fresh.status()['pinned'] is True


def test_an_empty_write_changes_nothing(fresh):
    put(f'{fresh.control}/ctl', '')
    assert fresh.state() == 'absent'
    assert fresh.error() == ''


def test_an_error_is_forgotten_by_the_next_success(mount):
    daemon = mount.test_backend()
    daemon.expect('fail')
    s = daemon.session()
    control(daemon, 'default', 'fail ENXIO no such image here')
    assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert 'no such image here' in s.error()
    assert s.state() == 'failed'
    control(daemon, 'default')
    s.ctl('provision')
    assert s.error() == ''
    assert s.state() == 'ready'


def test_an_error_is_forgotten_by_whatever_succeeds_next(fresh):
    for what, succeed in {'provisioning': fresh.use, 'a verb': lambda: fresh.ctl('touch'),
                          'an id': lambda: fresh.bind('')}.items():
        assert errno_of(fresh.ctl, 'nonsense') == 'EINVAL'
        assert 'nonsense' in fresh.error() and 'nonsense' in fresh.status()['error'], what
        succeed()
        assert not fresh.error() and not fresh.status()['error'], what


@pytest.mark.root
def test_what_a_job_was_refused_for_is_forgotten_by_the_next_start(fresh):
    fresh.use()
    j = Job(fresh, 'bad').make()
    assert errno_of(write, j / 'tty', 'wide') == 'EINVAL'
    assert 'COLSxROWS' in fresh.error()
    assert output(fresh, 'echo x') == 'x\n'
    assert fresh.error() == ''


def test_an_editor_that_truncates_and_one_that_appends_are_accepted(fresh):
    for flags in [os.O_TRUNC, os.O_APPEND, os.O_CREAT, os.O_CREAT | os.O_TRUNC | os.O_APPEND]:
        for name, text in [('ctl', b'touch\n'), ('id', b'')]:
            fd = os.open(f'{fresh.control}/{name}', os.O_WRONLY | flags, 0o644)
            os.write(fd, text)
            os.close(fd)


def test_truncating_a_control_file_by_name_is_accepted_and_means_nothing(fresh):
    fresh.use()
    os.truncate(f'{fresh.control}/ctl', 0)
    os.truncate(f'{fresh.control}/id', 0)
    assert fresh.id() != ''
    assert fresh.state() == 'ready'


def test_an_id_can_be_read_back_through_the_same_descriptor(fresh):
    fd = os.open(f'{fresh.control}/id', os.O_RDWR)
    try:
        before = os.pread(fd, 100, 0).decode().strip()
        assert before == fresh.id()
        os.write(fd, b'x' * 7 + b'\n')
    finally:
        os.close(fd)
    assert fresh.id() == 'x' * 7
    fresh.bind('')


# ── while something waits ───────────────────────────────────────────────────────────────────

@pytest.fixture
def stuck(mount):
    """A session whose provisioning hangs until it is given up."""
    daemon = mount.test_backend()
    daemon.expect('provision|closed|close|gave up|cancel')
    s = daemon.session()
    control(daemon, s.id(), 'hang')
    return s


def test_a_close_gets_through_while_a_provision_waits(stuck):
    control(stuck.daemon, stuck.id(), 'delay_ms 600000')
    waiting = stuck.daemon.child(lambda: errno_of(stuck.ctl, 'provision'))
    stuck.wait_state('provisioning')
    control(stuck.daemon, stuck.id())  # whoever tries again does not hang
    for where in [stuck.inner, stuck.control]:
        assert in_child(lambda w=where: errno_of(put, f'{w}/ctl', 'touch\n'), 20) is None
    assert in_child(lambda: errno_of(stuck.ctl, 'close'), 30) is None
    assert waiting.result(30) in (None, 'ECANCELED')


def test_state_and_progress_answer_at_once_while_a_create_hangs(stuck):
    waiting = stuck.daemon.child(lambda: errno_of(write, stuck / 'f', 'x'))
    stuck.wait_state('provisioning')
    for name in ['state', 'status', 'id', 'error']:
        in_child(lambda n=name: read(f'{stuck.control}/{n}'), 20)

    def look():
        fd = os.open(f'{stuck.control}/progress', os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(fd, 4096)
        except BlockingIOError:
            return b''
    in_child(look, 20)
    assert not waiting.done()
    control(stuck.daemon, stuck.id())
    assert waiting.result(30) is None


def test_two_writers_of_ctl_do_not_wait_for_each_other(stuck):
    first = stuck.daemon.child(lambda: errno_of(stuck.ctl, 'provision'))
    stuck.wait_state('provisioning')
    for _ in range(10):
        in_child(lambda: stuck.ctl('touch'), 20)
    assert not first.done()


def test_progress_is_json_lines_and_ends_when_nothing_is_provisioned(mount):
    daemon = mount.test_backend()
    s = daemon.session()
    assert in_child(lambda: read(f'{s.control}/progress'), 20) == ''
    control(daemon, 'default', 'hang')
    waiting = daemon.child(lambda: os.listdir(s.path))
    s.wait_state('provisioning')
    reader = daemon.child(lambda: read(f'{s.control}/progress'))  # follows until it is done
    wait_for(lambda: f'{s.control}/progress' in descriptors_of(reader.pid))
    assert not reader.done()
    control(daemon, 'default')
    text = reader.result()
    waiting.result()
    assert s.state() == 'ready'
    for line in text.splitlines():
        assert isinstance(json.loads(line), dict)


# ── events ──────────────────────────────────────────────────────────────────────────────────

def test_events_follow_what_happens(daemon, s):
    events = daemon.events()
    try:
        s.use()
        seen = events.wait(lambda e: e.get('id') == s.id())
        assert seen['user'] == 'alice'
        s.ctl('close')
        events.wait(lambda e: e.get('id') == s.id() and 'clos' in e['event'])
    finally:
        events.close()


def test_a_blocking_reader_of_events_waits_for_the_next_one(daemon, s):
    def first():
        with open(f'{daemon.mnt}/.wsm/events', 'rb', buffering=0) as f:
            os.write(ready_write, b'.')
            return f.read(65536)
    ready_read, ready_write = os.pipe()
    reader = daemon.child(first)
    os.read(ready_read, 1)
    os.close(ready_read)
    os.close(ready_write)
    assert not reader.done()
    s.use()
    assert s.id() in reader.result().decode()


def test_a_blocked_reader_of_events_can_be_interrupted(daemon):
    reader = daemon.popen('cat', f'{daemon.mnt}/.wsm/events', stdout=subprocess.DEVNULL)
    wait_for(lambda: f'{daemon.mnt}/.wsm/events' in descriptors_of(reader.pid))
    reader.terminate()
    assert reader.wait(20) == -15


def test_with_o_nonblock_a_reader_of_events_gets_eagain(daemon):
    events = Events(daemon)
    try:
        assert in_child(lambda: errno_of(os.read, events.fd, 100), 20) == 'EAGAIN'
    finally:
        events.close()


@pytest.mark.parametrize('how', ['poll', 'select', 'epoll'])
def test_events_can_be_waited_for(daemon, s, how):
    with open(f'{daemon.mnt}/.wsm/events', 'rb', buffering=0) as f:
        os.set_blocking(f.fileno(), False)

        def wait(seconds):
            if how == 'select':
                return bool(select.select([f], [], [], seconds)[0])
            waiter = select.poll() if how == 'poll' else select.epoll()
            waiter.register(f, select.POLLIN)
            return bool(waiter.poll(seconds * (1000 if how == 'poll' else 1)))

        assert in_child(lambda: wait(0), 20) is False
        waiting = Child(lambda: wait(30))
        s.use()
        assert waiting.result(40) is True
        assert s.id() in f.read(65536).decode()


def test_two_readers_of_events_get_all_of_them(daemon, s):
    readers = [daemon.events(), daemon.events()]
    try:
        for i in range(20):
            daemon.session(f'alice/agent{i}/s').use()
        for events in readers:
            for i in range(20):
                events.wait(lambda e, i=i: e.get('agent') == f'agent{i}')
    finally:
        for events in readers:
            events.close()


def test_tail_f_follows_events(daemon, s):
    with open(f'{daemon.top}/out', 'wb') as out:
        tail = daemon.popen('cat', f'{daemon.mnt}/.wsm/events', stdout=out)
    wait_for(lambda: f'{daemon.mnt}/.wsm/events' in descriptors_of(tail.pid))
    s.use()
    wait_for(lambda: s.id() in read(f'{daemon.top}/out'))


def test_events_cannot_be_seeked_in(daemon):
    with open(f'{daemon.mnt}/.wsm/events', 'rb', buffering=0) as f:
        assert errno_of(os.lseek, f.fileno(), 0, os.SEEK_SET) == 'ESPIPE'


# ── the manager's ctl ───────────────────────────────────────────────────────────────────────

def test_the_manager_closes_one_workspace_by_id(daemon, s):
    s.use()
    other = daemon.session('bob/coder/s1').use()
    daemon.ctl(f'close {s.id()}')
    assert s.state() == 'absent'
    assert other.state() == 'ready'


def test_the_manager_closes_all(daemon):
    sessions = [daemon.session(f'alice/a{i}/s').use() for i in range(10)]
    daemon.ctl('close-all')
    assert {s.state() for s in sessions} == {'absent'}


@pytest.mark.parametrize('verb', ['dance', 'close', 'close nothing-like-it', 'log-level loud', 'close-all now'])
def test_a_malformed_verb_of_the_manager_is_refused(shared_daemon, fresh, verb):
    assert errno_of(shared_daemon.ctl, verb) in ('EINVAL', 'ENOENT')


def test_the_log_level_can_be_changed_live(daemon, s):
    daemon.ctl('log-level debug')
    assert 'log_level=debug' in read(f'{daemon.mnt}/.wsm/config').replace(' ', '')
    daemon.ctl('log-level info')


def test_sweep_wakes_the_sweeper_and_evicts_nothing_early(daemon, s):
    s.use()
    daemon.ctl('sweep')
    assert s.state() == 'ready'


# ── many at once ────────────────────────────────────────────────────────────────────────────

@pytest.mark.concurrency
def test_many_readers_and_writers_of_control_files_at_once(daemon, s):
    stop = threading.Event()
    failures = []

    def reader(name):
        while not stop.is_set():
            text = read(f'{s.control}/{name}')
            try:
                if name == 'status':
                    json.loads(text)
                if name == 'state':
                    assert text in ('absent\n', 'provisioning\n', 'ready\n', 'closing\n')
            except (ValueError, AssertionError) as e:
                failures.append((name, text, e))
                return

    threads = [threading.Thread(target=reader, args=(n,)) for n in ['status', 'state', 'id', 'error'] * 2]
    for t in threads:
        t.start()
    for _ in range(100):
        s.use()
        s.ctl('pin', 'unpin', 'close')
    stop.set()
    for t in threads:
        t.join()
    assert failures == []
